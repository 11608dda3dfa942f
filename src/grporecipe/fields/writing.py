"""Write a setting by a framework's table of fields: a recipe, native keys for a fix, and sizes in the framework's unit.

Sizes are whole micro-batches of completions on every process, or prompts per rollout and per step.
docs/reference/frameworks.md compares the frameworks' features.
"""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

import yaml

from grporecipe.model import planning
from grporecipe.model.framework import FRAMEWORKS, RELEASE, Field, Framework, TranslatedRecipe
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.setting import OPTIONS, TRL, Setting, has_effect
from grporecipe.model.values import nest


def write_rows(framework: Framework, s: Setting) -> dict[str, Any]:
    """Return the keys of a table in its order; None for those that the framework's own functions write."""
    native: dict[str, Any] = {}
    for row in framework.fields:
        if row.type and (value := getattr(s, row.name)) is not None:
            native[row.key] = row.native(in_rollouts(s, value) if row.rollouts and value >= 1 else value)
        else:
            native.setdefault(row.key, None)
    return native


def write_release(
    framework: Framework, s: Setting, takes: Mapping[str, KeySpec], default: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keys of a release that are always written, or whose field is not the default, in the table's order."""
    native_keys: dict[str, Any] = {}
    for row in framework.fields:
        if row.type != RELEASE or not row.plain or row.key not in takes:
            continue
        value, kind = getattr(s, row.name), takes[row.key].type
        if value is None and (default.get(row.name) is None or not kind.endswith("?")):
            continue  # another framework has no key for it: the release's default
        if row.always or value != default.get(row.name):
            native = row.native(value)
            if native is None and not kind.endswith("?"):
                continue
            native_keys[row.key] = int(native) if isinstance(native, float) and kind.startswith("int") else native
    return native_keys


def overlay(framework: Framework, s: Setting, fields: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a table with other values for some fields and keys. Keys without a value are left out."""
    native = write_rows(framework, s)
    native |= {framework.by_name[name].key: value for name, value in fields.items()} | dict(keys)
    return {key: value for key, value in native.items() if value is not None}


# Options that are no part of loss and sampling. A framework may have a key of its own for them, which is not written.
NOT_WRITTEN = ("mask_truncated_completions", "optim", "sync_ref_model", "use_liger_kernel")


def unwritten(name: str, s: Setting, rows: tuple[Field, ...]) -> Iterator[str]:
    """Yield the effective options of loss and sampling in a setting for which a framework has no key."""
    defaults = FRAMEWORKS["trl"].takes(TRL)
    named = {row.name for row in rows} | {"vllm_enable_sleep_mode"}  # EasyR1's and verl's engines always sleep
    # A framework with one key for the correction has functions that report the rest.
    is_reported = "vllm_importance_sampling_mode" in named or not (s.use_vllm and s.vllm_importance_sampling_correction)
    if not is_reported and s.framework.unit == "completions":
        yield f"vllm_importance_sampling_correction: on in TRL unless set, not written for {name}: another objective"
    for option in (*OPTIONS, *NOT_WRITTEN):
        value = getattr(s, option)
        is_idle = is_reported or option not in s.given if option.startswith("vllm_") else not has_effect(s, option)
        if option not in named and not is_idle and value not in (None, defaults[option].default):
            yield f"{option}={value}: {'not written for ' + name if option in NOT_WRITTEN else name + ' has no such key'}"


def write_table(framework: Framework, s: Setting) -> TranslatedRecipe:
    """Write a setting by the table."""
    sized, lost = in_prompts(s) if framework.traits.unit == "prompts" else in_completions(s)
    keys = overlay(framework, sized, {}, {})
    words = next(((name, command.word, "recipe.yaml") for name, command in framework.commands.items()), ())
    environment = {} if s.processes is None else {"NPROC_PER_NODE": str(s.processes)}
    without = sorted(s.given - framework.by_name.keys() - {"framework"})
    dropped = (f"{name}: {framework.name} has no such key" for name in without)
    return TranslatedRecipe(render_keys(framework, keys), "recipe.yaml", words, environment, (*lost, *dropped))


def render_keys(framework: Framework, keys: Mapping[str, Any]) -> str:
    """Return native keys as the text of a recipe. Dotted keys are written on top of the framework's defaults."""
    if not framework.is_dotted:
        return yaml.safe_dump(dict(keys), sort_keys=False, allow_unicode=True)
    defaults = {"defaults": list(framework.config_defaults)} if framework.config_defaults else {}
    return yaml.safe_dump({**defaults, **nest(keys)}, sort_keys=False, allow_unicode=True)


def to_native(framework: Framework, change: Mapping[str, Any], recipe: Recipe, s: Setting) -> dict[str, Any] | None:
    """Return a change of fields as a change of native keys (None removes one). None if a recipe cannot express it.

    ``processes`` stands for the count of the command that starts the recipe.
    """
    native: dict[str, Any] = {}
    for name, value in change.items():
        special, row = framework.special.get(name), framework.by_name.get(name)
        if special is not None:
            keys = special(value, recipe, s, native)
        elif name == "processes" and not framework.is_dotted:
            keys = {"processes": value}
        elif row is None or not row.fixable:
            keys = None
        elif row.rollouts and value is not None and value >= 1:
            keys = {s.key(name): row.native(in_rollouts(s, value))}
        else:
            keys = {s.key(name): row.native(value) if row.type or row.write else value}
        if keys is None:
            return None
        native |= keys
    if not framework.is_dotted:
        return native
    return {_spelled(key, recipe.config, framework.renamed): value for key, value in native.items()}


def _spelled(key: str, config: Mapping[str, Any], renamed: Mapping[str, str]) -> str:
    """Return a dotted key in the recipe's form: with the sign of its override, or under an older name."""
    signed = next((written for written in config if written.lstrip("+") == key), None)
    return signed or next((old for old, new in renamed.items() if new == key and old in config), key)


def in_completions(s: Setting) -> tuple[Setting, tuple[str, ...]]:
    """Return the setting with B, A and S for all its processes and the same completions per rollout and step, and the losses.

    Sizes that are already B, A and S stay. The size of a rollout is replaced by micro-steps.
    """
    micro_steps = planning.micro_steps_per_generation(s)
    plain = s.replace({"generation_batch_size": None, "steps_per_generation": micro_steps})
    if s.prompts_per_rollout is None and s.data_processes in (None, s.processes):
        return plain, ()
    # From here on all processes are data ranks, so B counts completions in every version.
    plain = plain.replace({"prompts_per_rollout": None, "prompts_per_step": None, "data_processes": s.processes})
    rollout, step = planning.completions_per_rollout(s), planning.completions_per_step(s)
    if not s.processes or not rollout or not step:
        return plain, ("its sizes count prompts, and without --processes they cannot be divided among ranks",)
    for size in range(max(s.per_device_train_batch_size, 1), 0, -1):
        micro = size * s.processes
        if rollout % micro == 0 and step % micro == 0:
            changes = {
                "per_device_train_batch_size": size,
                "gradient_accumulation_steps": step // micro,
                "steps_per_generation": rollout // micro,
            }
            return _evaluated(plain.replace(changes)), ()
    nearest = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": max(round(step / s.processes), 1),
        "steps_per_generation": max(round(rollout / s.processes), 1),
    }
    lost = f"{rollout} completions per rollout and {step} per step do not divide among {s.processes} processes: sizes rounded"
    return _evaluated(plain.replace(nearest)), (lost,)


def _evaluated(s: Setting) -> Setting:
    """Return the setting with an evaluation batch of whole groups, because sizes in prompts do not include one."""
    solved = planning.realise(s.replace({"auto": frozenset({"per_device_eval_batch_size"})}))
    return solved.replace({"auto": frozenset()})


GPUS = 8  # assumed if the number of processes is unknown


def in_prompts(s: Setting) -> tuple[Setting, tuple[str, ...]]:
    """Return the setting with P, p and a micro-batch that divides a step on every data rank, and the losses."""
    lost: list[str] = []
    if s.processes is None:
        s = s.replace({"processes": GPUS})
        lost.append(f"the number of GPUs is not known; {GPUS} are written")
    if s.prompts_per_rollout is None or s.prompts_per_step is None:
        s, more = _counted(s)
        lost += more
    shared = s.tensor_parallel_size * s.sequence_parallel_size * s.context_parallel_size * s.pipeline_parallel_size
    ranks = max((s.processes or 1) // max(shared, 1), 1)
    each = (s.prompts_per_step or 0) * s.num_generations // ranks
    size = next((n for n in range(min(s.per_device_train_batch_size, each), 0, -1) if each % n == 0), 1)
    if (s.prompts_per_step or 0) * s.num_generations % ranks:
        step = f"{s.prompts_per_step} prompts x {s.num_generations} per step"
        lost.append(f"{step} do not divide among {ranks} data ranks")
    return planning.resize(s.replace({"per_device_train_batch_size": size})), tuple(lost)


def _counted(s: Setting) -> tuple[Setting, list[str]]:
    """Return sizes in prompts: whole groups per step and whole steps per rollout, and the losses."""
    group = max(s.num_generations, 1)
    rollout, step = planning.completions_per_rollout(s) or group, planning.completions_per_step(s) or group
    lost = []
    prompts, taken = max(rollout // group, 1), -(-step // group)
    if step % group:
        lost.append(f"{step} completions per step are not whole groups of {group}: {taken * group} are taken")
    if taken > prompts or prompts % taken:
        whole = max(n for n in range(1, prompts + 1) if prompts % n == 0 and n <= taken)
        lost.append(f"a rollout of {prompts} prompts cannot be {prompts / taken:.3g} steps: steps have {whole} prompts")
        taken = whole
    return s.replace({"prompts_per_rollout": prompts, "prompts_per_step": taken}), lost


def rollout_steps(s: Setting) -> float:
    """Return the optimizer steps per rollout, 1 if the sizes give none."""
    return float(planning.steps_per_rollout(s)) or 1.0


def in_rollouts(s: Setting, steps: float) -> int:
    """Return optimizer steps as whole rollouts, rounded up."""
    return max(ceil(steps / rollout_steps(s)), 1)
