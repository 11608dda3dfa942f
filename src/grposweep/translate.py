"""Translate a recipe into another framework's keys, or into groups and a study that ``run.py`` can sweep.

The recipe is read, written and read back. `differences` compares the two settings: the plan's numbers, and values that mean the
same in every framework. A translation comes with its launch command and a list of what is lost.
"""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from grposweep import frameworks, planning
from grposweep.check import check, errors
from grposweep.config.precision import IMPLIED, read_precision
from grposweep.config.to_setting import ARGS, KEYS, NUMBERS, SOURCES, own_values
from grposweep.errors import UserError
from grposweep.files import parse_yaml, run_command, write_text
from grposweep.frameworks.base import TranslatedRecipe, read_mapping
from grposweep.frameworks.lora import PEFT_TARGETS, lora_losses
from grposweep.frameworks.parsing.load import Options, load_recipe, load_recipes, parse_recipe
from grposweep.frameworks.reading import release_defaults
from grposweep.frameworks.trl.keys import span
from grposweep.frameworks.trl.recipes import NAMES, SAME, fitted
from grposweep.frameworks.writing import in_completions
from grposweep.planning import save_every, total_steps
from grposweep.recipe import Recipe
from grposweep.rules.helpers import cut
from grposweep.schema import Experiment
from grposweep.setting import TRL, Setting
from grposweep.terminal import printable, say, write_data

PLAN_NUMBERS = {
    "completions per rollout": planning.completions_per_rollout,
    "prompts per rollout": planning.prompts_per_rollout,
    "completions per optimizer step": planning.completions_per_step,
    "optimizer steps per rollout": planning.steps_per_rollout,
    "optimizer steps": planning.total_steps,
}
FIELDS = ("num_generations", "num_iterations", "learning_rate", "temperature", "max_completion_length", "lora")
LORA = ("lora_rank", "lora_alpha")


def differences(before: Setting, after: Setting) -> Iterator[str]:
    """Return the numbers that are known on both sides and differ."""
    for name, number in PLAN_NUMBERS.items():
        yield from _differs(name, number(before), number(after))
    for name in (*FIELDS, *LORA) if before.lora and after.lora else FIELDS:
        yield from _differs(name, getattr(before, name), getattr(after, name))
    yield from _differs("KL coefficient in the loss", before.beta, after.beta)


def _differs(name: str, before: Any, after: Any) -> Iterator[str]:
    if before is not None and after is not None and before != after:
        yield f"{name}: {float(before):g} becomes {float(after):g}"


OWN = "grposweep"
NAME = "translated"  # of the options, and of the study
WHAT = {
    "batch": "Generations and sizes, in completions.",
    "optimizer": "AdamW and the learning rate's way.",
    "kl": "The KL penalty.",
    "loss": "The loss and its clips.",
    "schedule": "How long, and how often it evaluates and saves.",
    "generation": "How completions are sampled.",
}
COMMAND = ("python", *run_command(), "--config-dir", ".", f"sweeps={NAME}")
# Other keys set these, or none does because grposweep places evaluations and checkpoints itself.
PLACED = frozenset(
    ["generation_batch_size", "do_eval", "eval_strategy", "eval_steps", "save_steps", "save_strategy", "launcher",
     "reward_weights", "rewards", "load_best_model_at_end", "minimum_learning_rate_ratio", "max_prompt_length"]
)  # fmt: skip


def write_own(s: Setting, types: Mapping[str, str] | None = None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return files for a folder that ``--config-dir`` names, and what they cannot express; ``types`` are keys of the model."""
    sized, undivided = in_completions(s)
    fits, lost = fitted(frameworks.FRAMEWORKS["trl"], sized, TRL)
    values = own_values(fits, every=True)
    values["schedule"] |= _frequencies(fits)
    files = {f"{group}/{NAME}.yaml": f"# {WHAT[group]}\n{_yaml(values[group])}" for group in NUMBERS}
    study = {"defaults": [{f"override /{group}": NAME} for group in NUMBERS], **_study(fits, values, types or {})}
    head = (
        f"# @package _global_\n# {shlex.join(COMMAND)}\n#\n# Written by grposweep translate; add -m and parameters.\n"
    )
    return {f"sweeps/{NAME}.yaml": head + _yaml(study), **files}, (*undivided, *lost, *_unsaid(fits), *_open(fits))


def _study(s: Setting, values: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys outside of groups: learning rate, seed, model name, processes."""
    found = {name: values[name] for name in ("lr", "seed") if name in values}
    model: dict[str, Any] = ({} if s.model_name_or_path is None else {"path": s.model_name_or_path}) | dict(types)
    if s.lora:
        model["lora"] = {"enabled": True, "r": s.lora_rank, "alpha": round(s.lora_alpha), "dropout": s.lora_dropout,
                         "target_modules": list(s.lora_targets or PEFT_TARGETS)}  # fmt: skip
    found |= {"model": model} if model else {}
    arguments = {name: value for name, value in _unnamed(s).items() if name in ARGS}
    found |= {"trainer": {"args": arguments}} if arguments else {}
    return found | ({"cluster": {"processes": s.processes}} if s.processes else {})


def model_types(recipe: Recipe, s: Setting) -> dict[str, str]:
    """Return grposweep's keys for the numeric types that a recipe of TRL or Open-R1 sets; empty if it leaves them to TRL.

    By default weights are float32 and are computed in bfloat16 (trl model_config.py; base_config.py since 0.19).
    """
    config = recipe.config
    if not s.framework.follows_trl or not {"dtype", "torch_dtype", "bf16", "fp16"} & config.keys():
        return {}
    weights = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    in_half = config.get("bf16", recipe.version >= (0, 19, 0)) is not False
    mixed = "fp16" if config.get("fp16") is True else "bf16" if in_half else "none"
    if weights not in IMPLIED:  # auto: the type of the model's files, which the recipe does not state
        return {"mixed_precision": mixed}
    return {"dtype": weights} | ({} if mixed == IMPLIED[weights] else {"mixed_precision": mixed})


def _frequencies(s: Setting) -> dict[str, Any]:
    """Return evaluations and checkpoints as counts instead of intervals, if the run's length is known."""
    total, found = total_steps(s), {}
    if s.evaluates and s.eval_steps and total:
        found["evaluations"] = max(round(1 / s.eval_steps if s.eval_steps < 1 else total / s.eval_steps), 1)
    every = save_every(s)
    if every and total and s.save_strategy in (None, "steps"):
        found["checkpoints"] = max(round(total / every), 1)
    return found


def _unnamed(s: Setting) -> dict[str, Any]:
    """Return the fields that are set, matter, and have no grposweep key."""
    default = {**vars(Setting()), **release_defaults(frameworks.FRAMEWORKS["trl"], TRL)}
    found = {name: getattr(s, name) for name in sorted(SAME - KEYS.keys() - PLACED - NAMES) if span(name) is not None}
    return {
        name: value
        for name, value in found.items()
        if (name not in SOURCES or name in ARGS)
        and value not in (None, default[name])
        and not (name.startswith("vllm_") and not s.use_vllm)
    }


def _unsaid(s: Setting) -> Iterator[str]:
    """Describe the fields that are lost."""
    for name, value in _unnamed(s).items():
        if name not in ARGS:
            yield f"{name}={value}: grposweep's own trainer has no key for it"


def _open(s: Setting) -> Iterator[str]:
    """List what cannot be translated because it is code, not a number."""
    data = f" (the recipe's data are {s.dataset_name})" if s.dataset_name else ""
    yield f"prompts and rewards belong to the framework's own code: set task=...{data}"
    yield from lora_losses(s, OWN, has_dropout=True)
    if s.lora and s.lora_alpha != round(s.lora_alpha):
        yield f"lora_alpha={s.lora_alpha:g}: model.lora.alpha is a whole number, so {round(s.lora_alpha)} is written"
    if s.model_name_or_path is None:
        yield "the recipe names no model: set model=... or model.path=..."
    if s.eval_steps and total_steps(s) is None:
        yield "evaluations in steps of a run whose length is unknown: set --dataset-size, or schedule.evaluations"


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)


COUNTED = frozenset({"rewards", "reward_weights"})  # fields that only count the entries of a key
# Keys of transformers' TrainingArguments that mean the same in every framework built on it.
TRANSFORMERS = frozenset(
    ["bf16", "fp16", "tf32", "gradient_checkpointing", "logging_steps", "output_dir", "report_to", "run_name",
     "save_total_limit", "lr_scheduler_kwargs", "deepspeed", "torch_dtype"]
)  # fmt: skip
NO_KEYS = frozenset({"config", "num_processes"})  # options of a launcher
LAUNCH = "launch.sh"


@dataclass(frozen=True)
class Translation:
    """A translated recipe: its files (the first is the recipe), its launch command, and what is lost.

    ``changed`` lists numbers of the plan that differ, which is a failure of the translation.
    """

    files: Mapping[str, str]
    command: str
    losses: tuple[str, ...]
    changed: tuple[str, ...] = ()


def translate_file(path: Path, target: str, options: Options, folder: Path | None) -> int:
    """Translate one recipe. Return exit code 1 if its plan could not be kept or the recipe is broken."""
    try:
        recipe, others = load_recipe(path, options), len(load_recipes(path, options)) - 1
        setting = frameworks.read(recipe).setting
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    broken = errors(check(setting))
    translation = translate(setting, target, recipe)
    if others:
        where = f", the one on line {min(recipe.lines.values())}," if recipe.lines else ""
        lost = f"{others} more in this file: one recipe{where} is translated"
        translation = replace(translation, losses=(lost, *translation.losses))
    if folder is None:
        write_data(render(translation, f"{path} ({frameworks.describe_version(recipe)})", target))
    else:
        say(f"{path}: read as {frameworks.describe_version(recipe)}", sys.stderr)
        _write(folder, translation)
        sys.stderr.write(printable(_report(translation)))
    for problem in broken:
        say(f"{path} breaks {problem.code} as it is: {problem.broken.what}: {problem.broken.why}.", sys.stderr)
    return int(bool(broken or translation.changed))


def translate(
    setting: Setting, target: str, recipe: Recipe | None = None, native: Mapping[str, Any] | None = None
) -> Translation:
    """Translate a setting into a framework's keys, or into grposweep's, with the numeric types of its recipe.

    Keys of the recipe that the setting does not hold are copied if the target takes them, and listed otherwise.
    ``native`` are such keys of a grposweep experiment, under TRL's names.
    """
    if target == OWN:
        files, losses = write_own(setting, {} if recipe is None else model_types(recipe, setting))
        if recipe is not None and "auto" in (recipe.config.get("dtype"), recipe.config.get("torch_dtype")):
            losses = (*losses, "dtype=auto: only the model's files say which type that is: set model.dtype")
        left = {} if recipe is None else find_left_out(recipe, setting)
        listed = _listed(left, dict.fromkeys(("dtype", "torch_dtype", "bf16", "fp16")))
        return Translation(files, shlex.join(COMMAND), (*_unknown(setting, recipe), *losses, *listed))
    left = dict(native or {}) if recipe is None else find_left_out(recipe, setting)
    setting = _with_minimum_rate(setting, left)
    written = frameworks.write(setting, target)
    after = read_back(written, target, setting)
    changed = (*differences(setting, after), *_newly_broken(setting, after))
    kept = _kept_as_they_are(left, setting, target, written.recipe)
    text = written.recipe + (f"# Copied from the recipe.\n{_yaml(kept)}" if kept else "")
    losses = (*_unknown(setting, recipe), *written.losses, *_listed(left, kept))
    return Translation({written.file_name: text}, _command(written), losses, changed)


def native_keys(experiment: Experiment) -> dict[str, Any]:
    """Return TRL's keys for values of an experiment that its setting does not hold."""
    model, precision = experiment.model, read_precision(experiment.model)
    sharding = experiment.trainer.sharding
    found = {
        "dtype": precision.weights, "bf16": precision.mixed == "bf16", "fp16": precision.mixed == "fp16", "tf32": model.tf32,
        "gradient_checkpointing": model.gradient_checkpointing, "model_revision": model.revision,
        "attn_implementation": model.attn_implementation, "trust_remote_code": model.trust_remote_code or None,
        "use_kernels": model.use_kernels or None, "chat_template_kwargs": model.chat_template_kwargs or None,
        "load_in_4bit": model.quantization == "4bit" or None, "load_in_8bit": model.quantization == "8bit" or None,
        "reward_weights": experiment.task.reward_weights, "torch_compile": experiment.trainer.compile or None,
        "sharding": None if sharding == "none" else sharding, **experiment.trainer.args,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def find_left_out(recipe: Recipe, setting: Setting) -> dict[str, Any]:
    """Return the keys of a recipe that its setting does not hold and that are not at their default."""
    framework, known = frameworks.FRAMEWORKS[recipe.framework], frameworks.known_keys(recipe)
    held = {key for name, key in setting.keys.items() if name not in COUNTED and getattr(setting, name) is not None}
    found = []
    for written, value in {**recipe.config, **recipe.unresolved}.items():
        key = str(written).lstrip("+~")
        is_held = key in setting.keys.values() if written in recipe.unresolved else key in held
        is_default = key in known and known[key].default == value
        if not (is_held or is_default or written in NO_KEYS):
            found.append(written)
    left = [key for key in found if key not in recipe.config] + _undecided(recipe, found, setting)
    values = {**recipe.config, **recipe.unresolved}
    return {framework.renamed.get(key := str(written).lstrip("+~"), key): values[written] for written in left}


def _undecided(recipe: Recipe, keys: list[str], setting: Setting) -> list[str]:
    """Return the keys whose removal leaves the setting unchanged. Searches by halves, because a recipe may have hundreds."""
    keys = [key for key in keys if key in recipe.config]
    if not keys or not _decide(recipe, keys, setting):
        return keys
    half = len(keys) // 2
    return [*_undecided(recipe, keys[:half], setting), *_undecided(recipe, keys[half:], setting)] if half else []


def _decide(recipe: Recipe, keys: list[str], setting: Setting) -> bool:
    """Return whether removing some keys from a recipe changes its setting."""
    rest = {name: value for name, value in recipe.config.items() if name not in keys}
    try:
        other = frameworks.read(replace(recipe, config=rest)).setting
    except UserError:  # the recipe cannot be read without them
        return True
    return other.replace({name: getattr(setting, name) for name in ("given", *COUNTED)}) != setting


def _with_minimum_rate(setting: Setting, left: dict[str, Any]) -> Setting:
    """Return a setting with the lowest learning rate of a cosine, which TRL's recipes hold in a mapping taken from ``left``."""
    options = read_mapping(left.get("lr_scheduler_kwargs"))
    ratio = options.get("min_lr_rate")
    if (
        setting.lr_scheduler_type != "cosine_with_min_lr"
        or options.keys() != {"min_lr_rate"}
        or not isinstance(ratio, float)
    ):
        return setting
    del left["lr_scheduler_kwargs"]
    return setting.replace({"lr_scheduler_type": "cosine", "minimum_learning_rate_ratio": ratio})


def _kept_as_they_are(left: dict[str, Any], setting: Setting, target: str, text: str) -> dict[str, Any]:
    """Return the keys that the target takes under the same name and that are not yet written.

    Between frameworks that follow TRL, these are all keys. For one that extends TRL, they are the keys of transformers.
    """
    framework = frameworks.FRAMEWORKS[target]
    both = (setting.framework, framework.traits)
    if not all(traits.follows_trl or traits.extends_trl for traits in both):
        return {}
    takes, written = framework.takes(framework.version), parse_yaml(text)
    if "dtype" in left and "dtype" not in takes:  # before 0.24
        left["torch_dtype"] = left.pop("dtype")
    names = left.keys() if all(traits.follows_trl for traits in both) else left.keys() & TRANSFORMERS
    names = (names & takes.keys()) - written.keys()
    return {key: value for key, value in left.items() if key in names and not _is_unknown(value)}


def _shown(value: Any) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _is_unknown(value: Any) -> bool:
    return isinstance(value, str) and "$" in value


def _listed(left: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[str]:
    """Return a line that names the keys that are not translated."""
    rest = [f"{key}={_shown(value)}" for key, value in left.items() if key not in kept]
    if rest:
        yield f"not translated, so set it yourself if you need it: {', '.join(rest)}"


def _unknown(setting: Setting, recipe: Recipe | None) -> Iterator[str]:
    """Name the values that only a running shell knows. The framework's defaults are written for them."""
    for key, value in recipe.unresolved.items() if recipe is not None else ():
        if key.lstrip("+") in setting.keys.values():
            yield f"{key}={value}: only the running script knows it, so {setting.trainer}'s default is taken: set it"


def _newly_broken(before: Setting, after: Setting) -> Iterator[str]:
    """Yield the errors of a translation whose recipe is valid."""
    if not errors(check(before)):
        yield from (f"{problem.code}: {problem.broken.what}: {problem.broken.why}" for problem in errors(check(after)))


def read_back(written: TranslatedRecipe, target: str, setting: Setting) -> Setting:
    """Read a written recipe with the framework's own reader, for the same processes and prompts."""
    options = Options(target, None, setting.processes, setting.train_prompts)
    found = frameworks.read(parse_recipe(Path(written.file_name), written.recipe, options)).setting
    return replace(found, processes=setting.processes) if found.processes is None else found


def render(translation: Translation, source: str, target: str) -> str:
    """Return a translation as one text that is a valid recipe: everything else is in comments."""
    (first, text), *others = translation.files.items()
    shebang, text = _split_shebang(text)
    source = " ".join(source.split())  # a file name may contain line breaks, and this text is a script
    lines = [f"# {source} for {target}, as grposweep translate wrote it. Save it as {first}, and launch it:"]
    lines += [f"#   {translation.command}", *_comments("Lost or changed:", translation.losses)]
    lines += _comments("Not kept:", translation.changed)
    parts = [f"# --- {name} ---\n{content}" for name, content in others]
    return shebang + "\n".join(lines) + "\n" + "\n".join([text, *parts])


def _split_shebang(text: str) -> tuple[str, str]:
    if not text.startswith("#!"):
        return "", text
    head, _, rest = text.partition("\n")
    return head + "\n", rest


def _comments(title: str, items: tuple[str, ...]) -> list[str]:
    return [f"# {title}", *(f"#   - {item}" for item in items)] if items else []


def _write(folder: Path, translation: Translation) -> None:
    """Write every file, and the command as a script, to the folder."""
    try:
        for name, text in translation.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, text)
        write_text(folder / LAUNCH, f'#!/bin/sh\ncd "$(dirname "$0")" || exit\n{translation.command}\n')
    except OSError as error:
        raise UserError(f"-o {folder}: it cannot be written ({error.strerror}). Name a folder that can.") from error


def _report(translation: Translation) -> str:
    said = [f"wrote {', '.join([*translation.files, LAUNCH])}", *(f"lost: {item}" for item in translation.losses)]
    return "\n".join([*said, *(f"not kept: {item}" for item in translation.changed)]) + "\n"


def _command(written: TranslatedRecipe) -> str:
    """Return the command with its variables before it."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in written.environment.items()]
    return " ".join([*variables, shlex.join(written.command)])
