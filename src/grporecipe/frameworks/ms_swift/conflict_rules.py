"""GV505 and GV506 for ms-swift: key combinations that it refuses or silently overrules, as listed
in conflicts.yaml.

Sources: ms-swift 4.6.0 arguments/rlhf_args.py and sft_args.py, trainers/arguments.py,
rlhf_trainers/grpo_trainer.py.
"""

from collections.abc import Callable, Iterator, Mapping

from grporecipe.files import Config, Json, read_own_yaml
from grporecipe.frameworks.ms_swift.keys import is_megatron, known, read_value, spelled
from grporecipe.frameworks.ms_swift.recipes import RENAMED
from grporecipe.frameworks.ms_swift.rules import MS_SWIFT
from grporecipe.model.conditions import meets
from grporecipe.model.recipe import Recipe
from grporecipe.model.values import listed
from grporecipe.rules.helpers import of_key, show
from grporecipe.rules.registry import Violation, recipe_rule

# in a complete command line; a YAML file may leave them to it
NEEDED = ("dataset", "reward_funcs")
# every key, with its default if it is not set
Values = Config


def _two_precisions(v: Values) -> bool:
    """Return whether fp16 and bf16 are both on: base_args/model_args.py _init_mixed_precision
    derives what is not set.
    """
    dtype = v["torch_dtype"]
    fp16 = dtype in ("float16", "float32") if v["fp16"] is None else v["fp16"]
    bf16 = dtype == "bfloat16" if v["bf16"] is None else v["bf16"]
    return bool(fp16 and bf16)


def _another_length_wins(v: Values) -> bool:
    other = v["response_length"] or v["max_new_tokens"]
    return bool(other) and v["max_completion_length"] not in (512, other)


def _max_epochs_end_early(v: Values) -> bool:
    most = v["max_epochs"]
    return bool(most) and (v["max_steps"] > 0 or most < v["num_train_epochs"])


def _plugins_are_missing(v: Values) -> bool:
    plugins = v["reward_model_plugin"]
    return bool(plugins) and len(plugins) != len(v["reward_model"] or [])


# conditions of several keys, by the names that conflicts.yaml has
CASES: Mapping[str, Callable[[Values], bool]] = {
    "two_precisions": _two_precisions,
    "another_length_wins": _another_length_wins,
    "max_epochs_end_early": _max_epochs_end_early,
    "plugins_are_missing": _plugins_are_missing,
    "several_losses": lambda v: isinstance(v["loss_type"], list) and len(v["loss_type"]) > 1,
}


CONFLICTS: Config = read_own_yaml(__file__, "conflicts.yaml")


def _applies(when: str | Config | list[Config], values: Values) -> bool:
    """Return whether the values are one of the cases of a conflict."""
    if isinstance(when, str):
        return CASES[when](values)
    return any(_meets_all(case, values) for case in listed(when))


def _meets_all(case: Config, values: Values) -> bool:
    return all(meets(values[key], test) for key, test in case.items())


@recipe_rule("GV505", "error", of=MS_SWIFT)
def ms_swift_accepts_the_combination(recipe: Recipe) -> Iterator[Violation]:
    """Keys that ms-swift refuses together at start or at the first step, or that leave it without a
    training signal.

    Missing data; missing rewards (measured: it silently trains without any); warmup set twice;
    options that the Liger loss, a teacher or asynchronous generation exclude; fp16 with bf16.
    arguments/rlhf_args.py _init_grpo, _check_grpo, _check_opd_rl, _check_rlsd, _check_sdar,
    _init_rollout; transformers training_args.py __post_init__.
    """
    yield from _broken(recipe, "refused")


@recipe_rule("GV506", "warning", of=MS_SWIFT)
def ms_swift_means_what_is_set(recipe: Recipe) -> Iterator[Violation]:
    """Keys that another one silently overrules, or that do more than their names promise.

    arguments/sft_args.py _init_eval_strategy, base_args/data_args.py, rlhf_args.py
    _init_max_completion_length, trainers/patcher.py (``max_epochs``).
    """
    yield from _broken(recipe, "overruled")


@recipe_rule("GV507", "warning", of=MS_SWIFT)
def the_keys_are_of_this_method(recipe: Recipe) -> Iterator[Violation]:
    """A key of another method of `swift rlhf`: it is accepted, but GRPO does not read it.

    For example, ``kl_coef`` is PPO's penalty. GRPO's is ``beta``, 0.04 unless set.
    arguments/rlhf_args.py.
    """
    methods = CONFLICTS["other_methods"]
    meant_by = CONFLICTS["meant"]
    for key, value in recipe.config.items():
        name = spelled(str(key), recipe.version)
        if method := methods.get(name):
            meant = meant_by.get(name)
            advice = f"GRPO's key is {meant}." if meant else "Leave it out."
            reason = f"it is a key of rlhf_type {method}, and GRPO does not read it"
            change = {str(key): None}
            yield of_key(str(key), value, reason, advice, change, without_effect=frozenset(change))


def _broken(recipe: Recipe, kind: str) -> Iterator[Violation]:
    if is_megatron(recipe):
        return
    values, given = _values(recipe)
    unknown = {spelled(str(key), recipe.version) for key in recipe.unresolved}
    given |= unknown
    for conflict in CONFLICTS[kind]:
        keys = conflict["keys"]
        if recipe.version < tuple(conflict.get("since", ())):
            continue
        if given.isdisjoint(keys) and not (recipe.launch and keys[0] in NEEDED):
            continue
        if unknown.isdisjoint(keys) and _applies(conflict["when"], values):
            set_here = [key for key in keys if key in given]
            what = f"{keys[0]} is not set"
            if set_here:
                what = f"{set_here[0]}={show(values[set_here[0]])}"
            instead = conflict.get("instead", "Leave one of them out.")
            changes = (conflict["change"],) if "change" in conflict else ()
            yield Violation(what, conflict["why"], instead, tuple(set_here or keys[:1]), changes)


def _values(recipe: Recipe) -> tuple[Values, set[str]]:
    """Return every key as ms-swift reads it, with defaults for unset and unreadable keys, and the
    keys that are set and readable.
    """
    takes = known(recipe.version)
    given = set[str]()
    # A key that the release does not have counts as unset.
    values: Json = {**known().defaults, **takes.defaults}
    for key, value in recipe.stated.items():
        name = spelled(str(key), recipe.version)
        if name in takes:
            converted = read_value(value, takes[name].type)
            name = RENAMED.get(name, name)
            if not converted.trouble:
                values[name] = converted.value
                given.add(name)
    if "loss_type" not in given:
        values["loss_type"] = ["grpo"]
    return values, given
