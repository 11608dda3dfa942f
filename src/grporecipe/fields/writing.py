"""Write a setting by a framework's table of fields: a recipe, native keys for a fix, and sizes in
the framework's unit.

Sizes are whole micro-batches of completions on every process, or prompts per rollout and per step.
docs/reference/frameworks.md compares the frameworks' features.
"""

from collections.abc import Mapping
from math import ceil, gcd
from typing import Any

import yaml

from grporecipe.files import Config
from grporecipe.model import planning
from grporecipe.model.framework import Framework, NativeChange
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting
from grporecipe.model.values import Fields, nest


def render_keys(framework: Framework, keys: Config) -> str:
    """Return native keys as the text of a recipe. Dotted keys are written on top of the framework's
    defaults.
    """
    written = dict(keys)
    if framework.is_dotted:
        written = nest(keys)
    if framework.is_dotted and framework.config_defaults:
        written = {"defaults": list(framework.config_defaults), **written}
    return yaml.safe_dump(written, sort_keys=False, allow_unicode=True)


def to_native(framework: Framework, change: Config, recipe: Recipe, s: Setting) -> Fields | None:
    """Return a change of fields as a change of native keys (None removes one). None if a recipe
    cannot express it.

    ``processes`` stands for the count of the command that starts the recipe.
    """
    native: Fields = {}
    for name, value in change.items():
        special = framework.special.get(name)
        row = framework.by_name.get(name)
        if special is not None:
            keys = special(value, recipe, s, native)
        elif name == "processes" and not framework.is_dotted:
            keys = {"processes": value}
        elif row is None or not row.fixable:
            keys = None
        else:
            if row.rollouts and value is not None and value >= 1:
                value = in_rollouts(s, value)
            keys = {s.key(name): row.native(value)}
        if keys is None:
            return None
        native |= keys
    if not framework.is_dotted:
        return native
    return {_spelled(key, recipe.config, framework.renamed): value for key, value in native.items()}


def _spelled(key: str, config: Config, renamed: Mapping[str, str]) -> str:
    """Return a dotted key in the recipe's form: with the sign of its override, or under an older
    name.
    """
    for written in config:
        if written.lstrip("+") == key:
            return written
    for old, new in renamed.items():
        if new == key and old in config:
            return old
    return key


def warmup_change(steps: str, share: str, in_steps: bool = False) -> NativeChange:
    """Return the change of keys for another warmup: steps under one key, as rollouts unless
    ``in_steps``, and a share under another.
    """

    def change(value: Any, recipe: Recipe, s: Setting, _: Config) -> Fields:
        key, other = share, steps
        if value >= 1:
            key, other = steps, share
            value = int(value) if in_steps else in_rollouts(s, value)
        keys: Fields = {key: value}
        if other in {name.lstrip("+") for name in recipe.config}:
            keys[other] = None
        return keys

    return change


def in_completions(s: Setting) -> Setting:
    """Return the setting with B, A and S for all its processes and the same completions per rollout
    and step.

    Sizes that are already B, A and S stay. The size of a rollout is replaced by micro-steps.
    """
    micro_steps = planning.micro_steps_per_generation(s)
    plain = s.replace({"generation_batch_size": None, "steps_per_generation": micro_steps})
    if s.prompts_per_rollout is None and s.data_processes in (None, s.processes):
        return plain
    # From here on all processes are data ranks, so B counts completions in every version.
    plain = plain.replace(
        {"prompts_per_rollout": None, "prompts_per_step": None, "data_processes": s.processes}
    )
    rollout = planning.completions_per_rollout(s)
    step = planning.completions_per_step(s)
    if not s.processes or not rollout or not step:
        return plain
    shared = gcd(rollout, step)
    sizes = range(max(s.per_device_train_batch_size, 1), 0, -1)
    # if no size divides both, the nearest whole ones
    size = next((size for size in sizes if shared % (size * s.processes) == 0), 1)
    micro = size * s.processes
    changes = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": max(round(step / micro), 1),
        "steps_per_generation": max(round(rollout / micro), 1),
    }
    return _evaluated(plain.replace(changes))


def _evaluated(s: Setting) -> Setting:
    """Return the setting with an evaluation batch of whole groups, because sizes in prompts do not
    include one.
    """
    solved = planning.realise(s.replace({"auto": frozenset({"per_device_eval_batch_size"})}))
    return solved.replace({"auto": frozenset()})


# assumed if the number of processes is unknown
GPUS = 8


def in_prompts(s: Setting) -> tuple[Setting, bool]:
    """Return the setting with P, p and a micro-batch that divides a step on every data rank, and
    whether no size is rounded.
    """
    is_exact = s.processes is not None
    if s.processes is None:
        s = s.replace({"processes": GPUS})
    if s.prompts_per_rollout is None or s.prompts_per_step is None:
        s, is_whole = _counted(s)
        is_exact = is_exact and is_whole
    ranks = max((s.processes or 1) // planning.shared(s), 1)
    each, rest = divmod((s.prompts_per_step or 0) * s.num_generations, ranks)
    size = next(
        (n for n in range(min(s.per_device_train_batch_size, each), 0, -1) if each % n == 0), 1
    )
    resized = planning.resize(s.replace({"per_device_train_batch_size": size}))
    return resized, is_exact and rest == 0


def _counted(s: Setting) -> tuple[Setting, bool]:
    """Return sizes in prompts, whole groups per step and whole steps per rollout, and whether none
    is rounded.
    """
    group = max(s.num_generations, 1)
    rollout = planning.completions_per_rollout(s) or group
    step = planning.completions_per_step(s) or group
    prompts = max(rollout // group, 1)
    taken = -(-step // group)
    is_whole = step % group == 0
    if taken > prompts or prompts % taken:
        taken = max(n for n in range(1, prompts + 1) if prompts % n == 0 and n <= taken)
        is_whole = False
    return s.replace({"prompts_per_rollout": prompts, "prompts_per_step": taken}), is_whole


def rollout_steps(s: Setting) -> float:
    """Return the optimizer steps per rollout, 1 if the sizes give none."""
    return float(planning.steps_per_rollout(s)) or 1.0


def in_rollouts(s: Setting, steps: float) -> int:
    """Return optimizer steps as whole rollouts, rounded up."""
    return max(ceil(steps / rollout_steps(s)), 1)
