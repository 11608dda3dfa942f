"""GV and GE for TRL and Open-R1: keys that a version takes, values that it can read, and data for
evaluation.

Sources: trl scripts/utils.py TrlParser, transformers hf_argparser.py, transformers trainer_utils.py
(strategies); scripts/grpo.py and the `trl` command of every release from 0.14.0 to 1.16.0 (what
happens to a key that a launch does not take); transformers parse_args_into_dataclasses ("Some
specified arguments are not used by the HfArgumentParser"). keys.json has the keys of every release.
"""

from collections.abc import Iterator
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from grporecipe.files import Config
from grporecipe.frameworks import open_r1
from grporecipe.frameworks.trl import keys
from grporecipe.frameworks.trl.keys import HABITS, PASSED_ON, instead
from grporecipe.frameworks.trl.recipes import has_own_batches
from grporecipe.memory.catalog import find_model
from grporecipe.model.framework import known_keys
from grporecipe.model.recipe import KeySpec, KeySpecs, Recipe
from grporecipe.model.releases import closest_keys, text
from grporecipe.model.setting import TRL_FAMILY, Version
from grporecipe.model.values import Fields, Value, convert, listed, read_mapping
from grporecipe.project.repository import find_repository
from grporecipe.rules.helpers import cut, did_you_mean, each, misnamed, of_key, one_of, set_to, show
from grporecipe.rules.keys import ambiguous
from grporecipe.rules.registry import Severity, Violation, recipe_rule, variant
from grporecipe.terminal import first_of

# TrlParser refuses keys of a YAML that no dataclass has since this release
PARSER_STOPS = (0, 19)
# trl.scripts.grpo drops them since this release, until 0.29 also flags
SCRIPT_DROPS = (0, 22)
SCRIPT_CHECKS_FLAGS = (1, 0)
# `trl grpo` passes unknown options to accelerate launch since this release
COMMAND_HANDS_ON = (0, 29)
OWN_PROGRAMS = ("trl.scripts.grpo", "trl/scripts/grpo.py", "open_r1/grpo.py")


ANYTHING = KeySpec("any", None)

variant("GL101", TRL_FAMILY, one_of("loss_type", lambda s: keys.losses(s.version)))


class Fate(NamedTuple):
    """The result of a key that is not taken: in words, and "warning" if training continues without
    it.
    """

    text: str
    severity: Severity | None = None


def taken(recipe: Recipe) -> KeySpecs:
    """Return every key that a recipe may set: those of the release (or the source in the
    repository), and of the script.

    The values of a script's own keys are not judged, because only the script knows how it reads
    them.
    """
    takes = recipe.vendored or known_keys(recipe)
    return {**takes, **dict.fromkeys(recipe.code.declares, ANYTHING)} if recipe.code else takes


def is_own_script(recipe: Recipe) -> bool:
    """Return whether a script may read own keys that are unknown here."""
    launch = recipe.launch
    code = recipe.code
    if not launch or launch.launcher == "trl":
        return not launch and code.declares_more
    is_read = code.declares or code.parsers - {"ArgumentParser"}
    if code.declares_more or (is_read and code.other_keys):
        return code.declares_more
    own = next(filter(launch.program.endswith, OWN_PROGRAMS), "")
    return not own or _is_missing(recipe, PurePosixPath(own))


def _is_missing(recipe: Recipe, program: PurePosixPath) -> bool:
    """Return whether a repository has the folder of the launched file but not the file, as in a
    fork that renamed it.
    """
    repository = find_repository(Path(recipe.file)) if recipe.file and not recipe.code else None
    if repository is None or program.suffix != ".py":
        return False
    parts = program.parent.parts
    return any(folder.parts[-len(parts) :] == parts for folder in repository.folders)


def fate(recipe: Recipe, key: str) -> Fate:
    """Return what happens to a key of a recipe that its launch does not take."""
    launch = recipe.launch
    version = recipe.version
    if recipe.in_python:
        return Fate("GRPOConfig() raises a TypeError")
    # keys of a YAML that a script names have no lines
    is_flag = bool(launch) and key in recipe.lines
    if launch.launcher == "trl" and version >= COMMAND_HANDS_ON:
        return Fate("accelerate launch, which gets it from `trl grpo`, refuses it")
    if recipe.code.other_keys == "dropped":
        return Fate(f"{recipe.code.file} drops it silently, so it is lost", "warning")
    if is_own_script(recipe):
        program = launch.program or recipe.code.file
        return Fate(f"TRL's parser refuses it; fine if {program} takes it", "warning")
    if launch.launcher == "trl" or "trl.scripts.grpo" in launch.program.replace("/", "."):
        checks = is_flag and version >= SCRIPT_CHECKS_FLAGS
        if version >= SCRIPT_DROPS and not checks:
            return Fate("trl.scripts.grpo drops it silently, so it is lost", "warning")
    if not is_flag and version < PARSER_STOPS:
        return Fate(
            f"the parser of TRL {text(version)} drops it silently, so it is lost", "warning"
        )
    return Fate("TRL's parser refuses it")


# iterated without a check: a string means its letters
LISTS = frozenset({"reward_funcs", "benchmarks", "callbacks"})
# keys whose words are in the table
CHOSEN = frozenset(
    [
        "eval_strategy",
        "save_strategy",
        "logging_strategy",
        "lr_scheduler_type",
        "optim",
        "dtype",
        "torch_dtype",
        "hub_strategy",
        "vllm_mode",
        "vllm_importance_sampling_mode",
        "report_to",
    ]
)
# TRL's keys that are read only with vLLM
UNREAD = frozenset({"vllm_mode", "vllm_importance_sampling_mode"})
EXCLUSIVE = (("bf16", "fp16"), ("bf16_full_eval", "fp16_full_eval"))
WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false"}


@recipe_rule("GV103", "warning")
def numbers_are_numbers(recipe: Recipe) -> Iterator[Violation]:
    """A number that YAML reads as a string: YAML 1.1 requires a dot and a signed exponent, so
    ``3e-06`` is text.

    TRL's parser (argparse) still converts it to a number, so it is a note. A script that builds
    ``GRPOConfig(**yaml)`` fails late, or misreads the value: the text "false" counts as true.
    """
    takes = taken(recipe)
    is_read_by_own = recipe.in_python or not recipe.file or recipe.code.reads_recipes
    severity: Severity = "warning" if is_read_by_own else "note"
    for key, value in recipe.stated.items():
        if isinstance(value, str) and key in takes:
            converted = convert(value, takes[key].type)
            if converted.trouble == "string":
                is_quoted = recipe.in_python or recipe.file.endswith(".json")
                reason = (
                    f"YAML reads it as text; TRL's parser makes {show(converted.value)} of it, a "
                    "script of your own may not"
                )
                if recipe.in_python:
                    reason = "it is text, and GRPOConfig() does not convert it"
                elif is_quoted:
                    reason = reason.removeprefix("YAML reads it as text; ")
                if is_quoted or value == show(converted.value):
                    value = f'"{value}"'
                yield Violation(
                    f"{key}: {show(value)}",
                    reason,
                    f"Write {key}: {show(converted.value)}.",
                    (key,),
                    ({key: converted.value},),
                    frozenset({key}),
                    severity=severity,
                )


def _is_declared_list(recipe: Recipe, key: str) -> bool:
    """Return whether the launched program's own parser reads an option as a list of words."""
    own = recipe.code.declares.get(key)
    return own is not None and own.type.rstrip("?") in ("list", "any")


@recipe_rule("GV104", "error", by_release=True)
def values_have_their_type(recipe: Recipe) -> Iterator[Violation]:
    """A value that its key cannot hold: text for a number, a fraction for a count, a name that is
    no choice.

    argparse refuses words for numbers ("invalid int value"); other types pass it and fail later,
    some after the model is loaded. ``eval_strategy: no`` without quotes is the boolean false in
    YAML.
    """
    takes = taken(recipe)
    for key, value in recipe.stated.items():
        if key in UNREAD and not _is_read(key, recipe.config):
            continue
        wrong = _wrong_choice(key, value) if key in CHOSEN else None
        converted = convert(value, takes[key].type) if key in takes else Value(value)
        if wrong is not None:
            yield wrong
        elif (
            key in LISTS
            and key in takes
            and isinstance(value, str)
            and not _is_declared_list(recipe, key)
        ):
            change = {key: [value]}
            yield _mistyped(
                key, value, "a list (a string is taken for a list of its letters)", change
            )
        elif key == "env" and not isinstance(value, dict):
            yield _mistyped(key, value, "a mapping of environment variables", None)
        elif converted.trouble == "type":
            yield _mistyped(
                key, value, WANTED[takes[key].type.rstrip("?")], _round(key, value, converted.value)
            )
        elif key == "num_generations" and value is None:
            yield _mistyped(key, value, WANTED["int"], {key: 8})


def _is_read(key: str, config: Config) -> bool:
    """Return whether vLLM is on, and for the mode of its correction that as well."""
    corrects = config.get("vllm_importance_sampling_correction") is not False
    return config.get("use_vllm") is True and (key == "vllm_mode" or corrects)


def _wrong_choice(key: str, value: Any) -> Violation | None:
    """Return the problem of a value that is none of the key's choices."""
    choices = keys.choices(key)
    if value is False and "no" in choices:
        return Violation(
            f"{key}: no",
            "YAML reads a bare no as false, which is no strategy",
            f'Write {key}: "no".',
            (key,),
            ({key: "no"},),
            without_effect=frozenset({key}),
        )
    names = value if key == "report_to" and isinstance(value, list) else [value]
    unknown = [
        name for name in names if isinstance(name, (bool, str, list, dict)) and name not in choices
    ]
    if not unknown:
        return None
    near = closest_keys(str(unknown[0]), choices)
    advice = did_you_mean(near, f"Set one of {', '.join(choices)}.")
    words = [] if isinstance(value, list) else near[:1]
    changes = each(key, words)
    owner = "TRL" if key in UNREAD or key.endswith("dtype") else "transformers"
    reason = f"{owner} has no such choice"
    return of_key(key, unknown[0], reason, advice, *changes, certain=True, may_be_new=True)


@recipe_rule("GV113", "error")
def one_precision_is_set(recipe: Recipe) -> Iterator[Violation]:
    """``bf16`` and ``fp16`` together, or ``bf16_full_eval`` and ``fp16_full_eval``.

    transformers 5.23 training_args.py __post_init__ stops: "At most one of fp16 and bf16 can be
    True, but not both". TRL's GRPOConfig sets ``bf16`` by default only if ``fp16`` is not set.
    """
    for first, second in EXCLUSIVE:
        are_on = recipe.config.get(first) is True is recipe.config.get(second)
        if are_on and not {first, second} & recipe.unresolved.keys():
            yield Violation(
                f"{first}=true and {second}=true",
                "transformers takes at most one of them",
                f"Keep {first} on GPUs since Ampere, {second} on older ones.",
                (second, first),
                ({second: None}, {first: None}),
            )


@recipe_rule("GS208", "warning")
def the_warmup_is_set_once(recipe: Recipe) -> Iterator[Violation]:
    """``warmup_ratio`` next to ``warmup_steps``: transformers reads the steps only.

    transformers 4.57 training_args.py get_warmup_steps. Release 5 has no ratio.
    """
    ratio = recipe.config.get("warmup_ratio")
    steps = recipe.config.get("warmup_steps")
    if ratio and steps:
        yield Violation(
            f"warmup_ratio={ratio}",
            f"warmup_steps={steps} overrides it, so it is not read",
            "Leave one of them out.",
            ("warmup_ratio", "warmup_steps"),
            ({"warmup_ratio": None}, {"warmup_steps": None}),
        )


@recipe_rule("GV114", "error")
def transformers_takes_the_values(recipe: Recipe) -> Iterator[Violation]:
    """Values that transformers' ``TrainingArguments`` refuses at start, alone or together.

    A frequency of 0 or with a fraction above 1, ``dataloader_prefetch_factor`` without workers,
    ``torch_empty_cache_steps`` below 1, unknown words of ``fsdp`` and ``debug``, and unknown keys
    of ``accelerator_config``. Source: transformers 4.47 and
    5.23 training_args.py (__post_init__, _validate_args, _process_fsdp_args); trainer_pt_utils.py
    AcceleratorConfig.
    """
    values = recipe.stated
    for use in ("logging", "save", "eval"):
        key = f"{use}_steps"
        strategy = f"{use}_strategy"
        every = values.get(key)
        usual = "no" if use == "eval" else "steps"
        is_read = recipe.config.get(strategy, usual) == "steps"
        if isinstance(every, bool) or not isinstance(every, (int, float)) or not is_read:
            continue
        if every == 0 and use == "logging":
            reason = "the frequency of logging is not 0"
            yield _refused(key, every, reason, {key: 1}, {strategy: "no"})
        elif every > 1 and every != int(every):
            yield _refused(key, every, "a number of steps above 1 is whole", {key: round(every)})
    workers = recipe.config.get("dataloader_num_workers", 0)
    if (
        values.get("dataloader_prefetch_factor") is not None
        and workers == 0
        and not recipe.may_have_more
    ):
        reason = "only other processes load data ahead, and dataloader_num_workers is 0"
        key = "dataloader_prefetch_factor"
        yield _refused(key, values[key], reason, {key: None}, {"dataloader_num_workers": 1})
    key = "torch_empty_cache_steps"
    count = values.get(key)
    if isinstance(count, int) and count < 1:
        yield _refused(key, count, "it is at least 1", {key: None})
    for key, known in (
        ("fsdp", keys.choices("fsdp")),
        ("debug", {"underflow_overflow", "tpu_metrics_debug"}),
    ):
        value = values.get(key)
        words = value.split() if isinstance(value, str) else listed(value)
        wrong = [word for word in words if isinstance(word, str) and word not in known]
        if wrong and str(value).lower() not in ("true", "false", ""):
            yield _refused(key, value, f"its words are {', '.join(sorted(known))}")
    key = "accelerator_config"
    inside = values.get(key)
    strange = inside.keys() - {*keys.choices(key)} if isinstance(inside, dict) else ()
    if strange:
        yield _refused(key, inside, f"it has no key {', '.join(sorted(map(str, strange)))}")


# before, log-probabilities came from the model's own logits
NO_ADAPTED_HEAD: Version = (1, 15, 0)
CHECKS_AUX_LOSS: Version = (1, 14, 0)
STREAMS: Version = (1, 9, 0)


@recipe_rule("GV118", "error")
def trl_takes_the_values(recipe: Recipe) -> Iterator[Violation]:
    """Values that TRL's GRPOTrainer refuses at start.

    LoRA on the LM head: "Applying a PEFT adapter to `lm_head` is not supported".
    ``router_aux_loss_coef`` of a dense model: "is not a Mixture-of-Experts model". Liger's fused
    cross-entropy. Batches that one process dispatches, if data are streamed. Source: trl 1.9
    (streamed data), 1.14 (auxiliary loss), 1.15 and 1.16 trainer/grpo_trainer.py (__init__).
    """
    values = recipe.stated
    if recipe.code.own_trainer:
        return
    is_fused = recipe.version >= NO_ADAPTED_HEAD
    targets = values.get("lora_target_modules")
    if is_fused and values.get("use_peft") is True and "lm_head" in listed(targets):
        reason = (
            "TRL computes log-probabilities from the weights of lm_head, so an adapter on it "
            "is refused"
        )
        yield Violation(
            "lora_target_modules has lm_head",
            reason,
            "Leave lm_head out.",
            ("lora_target_modules",),
        )
    coefficient = values.get("router_aux_loss_coef")
    model = find_model(str(values.get("model_name_or_path")))
    if (
        recipe.version >= CHECKS_AUX_LOSS
        and coefficient
        and model is not None
        and not model.experts
    ):
        reason = (
            f"{cut(str(values['model_name_or_path']))} is dense, so it has no auxiliary loss "
            "to weigh"
        )
        key = "router_aux_loss_coef"
        yield _refused(key, coefficient, reason, {key: None}, by="TRL")
    kernel = read_mapping(values.get("liger_kernel_config"))
    if (
        is_fused
        and values.get("use_liger_kernel") is True
        and kernel.get("fused_linear_cross_entropy")
    ):
        reason = "Liger's fused cross-entropy replaces the forward pass that TRL itself patches"
        key = "liger_kernel_config"
        yield _refused(key, "fused_linear_cross_entropy", reason, {key: None}, by="TRL")
    accelerator = read_mapping(values.get("accelerator_config"))
    if (
        recipe.version >= STREAMS
        and values.get("dataset_streaming") is True
        and accelerator.get("dispatch_batches")
    ):
        reason = "streamed data need dispatch_batches=false"
        key = "accelerator_config"
        yield _refused(key, "dispatch_batches", reason, {key: None}, by="TRL")


def _refused(
    key: str, value: Any, reason: str, *changes: Fields, by: str = "transformers"
) -> Violation:
    advice = "Correct it."
    if changes[:1] == ({key: None},):
        advice = "Remove it."
    elif changes:
        advice = f"Set {' and '.join(set_to(changes[0], name) for name in changes[0])}."
    return of_key(key, value, f"{by} stops at start: {reason}", advice, *changes)


def _mistyped(key: str, value: Any, wanted: str, change: Config | None) -> Violation:
    suggestions = (dict(change),) if change else ()
    if isinstance(value, float) and not isfinite(value):
        reason = "it is not a finite number, so every weight that it affects becomes NaN"
        return Violation(f"{key}={value}", reason, "Write a number such as 1.0e-6.", (key,))
    # 8.0 is shown with its point, which is what is wrong
    shown = value if isinstance(value, float) else show(value)
    return Violation(
        f"{key}={shown}",
        f"{key} must be {wanted}",
        f"Set {key} to {wanted}.",
        (key,),
        suggestions,
    )


def _round(key: str, value: Any, number: Any) -> Fields | None:
    """Return the change to a whole number (8.0 is 8). In transformers 4 a share of warmup has its
    own key.
    """
    if isinstance(value, float) and number is not None and number == value:
        return {key: number}
    if key == "warmup_steps" and isinstance(value, float) and 0 < value < 1:
        return {key: None, "warmup_ratio": value}
    return None


@recipe_rule("GV101", "error", by_release=True)
def keys_exist_in_this_version(recipe: Recipe) -> Iterator[Violation]:
    """A key that TRL (or its transformers) takes in another version: removed, renamed, or not yet
    added.

    The result depends on release and launch. Before 0.19, TRL's parser silently drops a key of a
    YAML: a warning, because the setting is lost. Since 0.19 it stops: "Unknown arguments from
    config file: [...]". ``trl.scripts.grpo`` drops it again since 0.22, and ``trl grpo`` passes it
    on to accelerate, which stops, since 0.29. A flag on a command line always stops, except
    ``trl.scripts.grpo`` from 0.22 to 0.29. Renamed keys are read by their new name for every other
    rule.
    """
    takes = taken(recipe)
    for key in recipe.config:
        if key in takes or (
            keys.span(str(key)) is None and (key not in open_r1.KEYS or is_own_script(recipe))
        ):
            continue
        way = instead(key, recipe.config, takes)
        end = fate(recipe, str(key))
        change = way.change
        reason = f"{_when(str(key), recipe)}; {end.text}"
        advice = (
            f"Instead: {way.reason}."
            if way.reason
            else "Remove it, or lint for a release that takes it."
        )
        # a fix that only removes a key needs an explanation
        if way.reason and change == {key: None}:
            reason = f"{reason}; {way.reason}"
            advice = "Remove it."
        changes = (change,) if change else ()
        safe = frozenset(change) if change and way.safe else frozenset[str]()
        yield Violation(
            set_to(recipe.config, key), reason, advice, (str(key),), changes, safe, end.severity
        )


@recipe_rule("GV102", "error", by_release=True)
def keys_are_known(recipe: Recipe) -> Iterator[Violation]:
    """A key that neither a release of TRL nor the launched script takes: a typo, or another
    library's key.

    Whether training stops or the key is lost depends on release and launch, as in GV101.
    """
    if not is_own_script(recipe):
        takes = taken(recipe)
        for key, near in _strangers(recipe):
            if recipe.code.reads_recipes and (not recipe.launch or key not in recipe.lines):
                continue
            short = ambiguous(recipe, key, takes)
            if short is not None:
                yield short
                continue
            end = fate(recipe, str(key))
            if not recipe.launch and recipe.code and end.severity and not near:
                # the program lets other keys pass, so other code may read them
                continue
            is_known = recipe.version_source.known or _is_typo_in_every_release(
                near, recipe.config[key], takes
            )
            severity = end.severity if is_known else "warning"
            yield _stranger(recipe, key, near, end.text, severity)


@recipe_rule("GV108", "note")
def own_scripts_may_have_own_keys(recipe: Recipe) -> Iterator[Violation]:
    """A key that TRL does not take, in the launch of a script that may declare its own
    arguments.
    """
    launch = recipe.launch
    if not launch or not is_own_script(recipe):
        return
    strangers = list(_strangers(recipe))
    # A script with many keys of its own may also have those that resemble TRL's.
    few = strangers if len(strangers) < 3 else []
    typos = [key for key, near in few if near and not recipe.config.keys() & {*near}]
    for key, near in strangers:
        if key in typos:
            reason = f"TRL has no such key; fine if {launch.program} takes it"
            yield _stranger(recipe, key, near, reason, severity="warning")
    others = tuple(str(key) for key, _ in strangers if key not in typos)
    if others:
        shown = first_of([*map(cut, others)], 8)
        yield Violation(
            shown, "TRL has none of these keys", f"Fine if {launch.program} takes them.", others
        )


@recipe_rule("GV112", "note")
def batches_are_those_of_trl(recipe: Recipe) -> Iterator[Violation]:
    """Another trainer than TRL's GRPOTrainer, which makes batches in its own way: sizes and the
    plan are not judged.

    Many such trainers generate ``num_generations`` completions for each prompt of a batch, so
    ``per_device_train_batch_size`` counts prompts, and have no check of divisibility. TRL's
    AsyncGRPOTrainer fills batches from a queue of completions while it trains, so no other rule
    judges its recipes.
    """
    if has_own_batches(recipe):
        name = recipe.code.trainer or "AsyncGRPOTrainer"
        reason = (
            "it makes batches in its own way, so TRL's rules on their sizes were not applied, "
            "and there is no plan"
        )
        if keys.is_async(recipe):
            reason = (
                "it generates while it trains and makes batches in its own way, so nothing "
                "else was judged"
            )
        instead = f"Read in {name} how it makes batches."
        yield Violation(f"{name} trains", reason, instead, ("per_device_train_batch_size",))


@recipe_rule("GE104", "error")
def evaluation_has_data(recipe: Recipe) -> Iterator[Violation]:
    """A Python file whose ``eval_strategy`` is ``steps`` or ``epoch``, and whose
    ``GRPOTrainer(...)`` gets no ``eval_dataset``.

    transformers 5.23 trainer.py stops at start: "You have set `args.eval_strategy` to steps but you
    didn't pass an `eval_dataset` to `Trainer`." Judged for TRL's own class only, and not if
    ``**words`` may hold the data.
    """
    code = recipe.code
    key = "eval_strategy"
    if code.no_evaluation is None or code.trainer != "GRPOTrainer" or code.own_trainer:
        return
    strategy = recipe.stated.get(key)
    if strategy in ("steps", "epoch"):
        reason = (
            f"GRPOTrainer(...) on line {code.no_evaluation} gets no eval_dataset, so "
            "transformers stops at start"
        )
        yield of_key(key, strategy, reason, "Pass eval_dataset.", {key: "no"})


@recipe_rule("GV115", "error")
def rewards_are_given(recipe: Recipe) -> Iterator[Violation]:
    """A Python file whose ``GRPOTrainer(...)`` gets no ``reward_funcs``.

    Until TRL 1.7 Python raises a TypeError. Since 1.8 an environment may give the rewards instead;
    without one TRL stops: "No reward source provided". Judged for TRL's own class only, and not if
    other words may hold the functions. Source: trl trainer/grpo_trainer.py (__init__).
    """
    code = recipe.code
    if code.no_rewards is not None and code.trainer == "GRPOTrainer" and not code.own_trainer:
        reason = (
            f"GRPOTrainer(...) on line {code.no_rewards} gets no reward_funcs, so TRL stops "
            "at start"
        )
        yield Violation(
            "no rewards",
            reason,
            "Pass reward_funcs, a function or a list of functions.",
            ("reward_funcs",),
        )


# sources of a release that do not follow from the keys
STATED = frozenset({"asked", "project", "pinned", "range"})


@recipe_rule("GV117", "error")
def imports_exist_in_this_version(recipe: Recipe) -> Iterator[Violation]:
    """A script that imports a name or module that the stated release of TRL does not have: it ends
    with an ImportError.

    Judged are imports that a file makes in any case, not those in a ``try``, below a condition or
    in a function. Of a module only its existence is judged, not what is imported from it. Source:
    trl/__init__.py and the files of each release.
    """
    code = recipe.code
    version = recipe.version
    if recipe.version_source.kind not in STATED:
        return
    for name, line in code.imports:
        lived = keys.span_of_import(name)
        if lived is not None and lived[0] <= version and (lived[1] is None or version < lived[1]):
            continue
        what = f"import {name}" if name.startswith("trl.") else f"from trl import {name}"
        file = PurePosixPath(code.file).name
        when = f"no release up to {text(keys.releases()[-1])} has it"
        if lived is not None and version < lived[0]:
            when = f"it came with {text(lived[0])}"
        elif lived is not None:
            when = f"{text(lived[1] or version)} removed it"
        reason = (
            f"line {line} of {file} ends with an ImportError in TRL {text(version)}, because {when}"
        )
        yield Violation(
            what,
            reason,
            "Import it from where this release has it, or state the release that trains.",
            (name,),
        )


@recipe_rule("GV109", "error")
def mixtures_are_well_formed(recipe: Recipe) -> Iterator[Violation]:
    """Open-R1's ``dataset_mixture``: a mapping with a list of datasets, all with the same columns.

    Source: open-r1 src/open_r1/configs.py ScriptArguments.__post_init__.
    """
    mixture = recipe.config.get("dataset_mixture")
    if recipe.framework != "open-r1" or mixture is None:
        return
    trouble = open_r1.mixture_trouble(mixture)
    if trouble:
        key = "dataset_mixture"
        reason = f"Open-R1 refuses it: {trouble}"
        yield Violation(key, reason, "See its README for an example.", (key,))


def _strangers(recipe: Recipe) -> Iterator[tuple[str, list[str]]]:
    """Yield the keys that no release takes, with the keys that they may mean."""
    takes = taken(recipe)
    for key in recipe.config:
        if key in takes or key in PASSED_ON:
            continue
        if keys.span(str(key)) is None and (key not in open_r1.KEYS or is_own_script(recipe)):
            habit = HABITS.get(str(key))
            near = [habit] if habit else closest_keys(str(key), takes)
            if not near and not recipe.version_source.known:
                near = closest_keys(str(key), keys.table()["keys"])
            yield key, near


def _is_typo_in_every_release(near: list[str], value: Any, takes: KeySpecs) -> bool:
    """Return whether the nearest key has always existed and can hold the value: a fork's
    ``dataset_configs`` is a list.
    """
    if not near or keys.span(near[0]) != (keys.releases()[0], None):
        return False
    return not isinstance(value, (list, dict)) or takes[near[0]].type.rstrip("?") in ("any", "list")


def _stranger(
    recipe: Recipe, key: str, near: list[str], reason: str, severity: Severity | None
) -> Violation:
    # a name from habit may be a script's own key
    is_typo = bool(near) and key not in HABITS
    reason = f"unknown key: {reason}"
    return misnamed(recipe.config, key, near, reason, severity=severity, certain=is_typo)


def _when(key: str, recipe: Recipe) -> str:
    """Say which releases have a key, and the version of the recipe."""
    now = f"TRL {text(recipe.version)}"
    releases = keys.span(key)
    if releases is None:
        return f"a key of Open-R1, which {now} does not take"
    first, last = releases
    if recipe.version < first:
        return f"it came with TRL {text(first)}, after {now}"
    words = f"{now} (transformers {keys.transformers(recipe.version)}) has no such key"
    if last and last < recipe.version:
        return f"{words}; TRL {text(last)} removed it"
    return words
