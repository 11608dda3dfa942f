"""Which keys a trainer reads: an external one leaves its own to its recipe, and one key may switch off others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from grposweep.config.asked import asks
from grposweep.config.fields import OF_RECIPES
from grposweep.external.command import unplaced
from grposweep.registries import is_external, is_opaque
from grposweep.schema import Experiment, Trainer, keys_with, trl_arguments, value_at

SHARDING = ("trainer.sharding", "trainer.offload", "trainer.deepspeed_config", "trainer.fsdp_config")
READ = ("task.train_prompts", *(f"trainer.{name}" for name in (
    "kind", "keep", "command", "recipe", "python", "workdir", "arguments", "environment", "script", "launcher",
    "launch_arguments", "args")))  # fmt: skip


def reaches(key: str) -> bool:
    """Return whether a key, or the option of a group, affects an external trainer."""
    return key == "trainer" or key.startswith(READ) or not f"{key}.".startswith(OF_RECIPES)


def _theirs(key: str) -> str:
    """Return the key of a recipe with the same meaning, under TRL's names."""
    whole = {"model": "model.path", "task": "task.path"}.get(key, key)
    return trl_arguments().get(whole) or str(keys_with("native").get(whole, whole.rpartition(".")[2])).split()[0]


def check_reach(trainer: Trainer, names: Iterable[str]) -> Iterator[str]:
    """Name keys that an external trainer does not read, each with the nearest key that it reads."""
    if is_opaque(trainer.kind):
        yield from unplaced(trainer, names)
        return
    for name in names if is_external(trainer.kind) else ():
        if reaches(name):
            continue
        if name in SHARDING:
            advice = "Set trainer.launch_arguments=[--config_file,FILE], an accelerate configuration."
        elif name == "task.max_completion_length":
            advice = "Set generation.max_completion_length."
        elif not asks(trainer):
            advice = "Set it in trainer.recipe, or among trainer.arguments."
        else:
            advice = f"Set the option of your command that has it, such as trainer.args.{_theirs(name)}."
        yield f"{name}: trainer={trainer.kind} does not read it, so it would change nothing. {advice}"


# Beginnings of keys, the key that switches them on, and its value then.
SWITCHES: dict[str, tuple[str, Any]] = {
    "model.lora.": ("model.lora.enabled", True),
    "generation.vllm_": ("generation.use_vllm", True),
    "kl.ref_model_": ("kl.sync_ref_model", True),
    "loss.entropy_coef_": ("loss.use_adaptive_entropy", True),
    "loss.entropy_target": ("loss.use_adaptive_entropy", True),
    "loss.sapo_": ("loss.loss_type", "sapo"),
    "loss.vespo_": ("loss.loss_type", "vespo"),
    "trainer.fake.": ("trainer.kind", "fake"),
    **dict.fromkeys(keys_with("async_trl"), ("trainer.kind", "async_trl")),
}


def check_switches(names: Iterable[str], distinct: Callable[[str], Sequence[Experiment]]) -> Iterator[str]:
    """Name searched keys that another key switches off at every point.

    ``distinct`` returns the experiments of the space that differ in a section, such as ``model``.
    """
    for name in names:
        switch = next((SWITCHES[start] for start in SWITCHES if name.startswith(start)), None)
        if switch is None or name == switch[0]:
            continue
        key, wanted = switch
        experiments = distinct(key.partition(".")[0])
        if any(is_external(item.trainer.kind) or value_at(item, key) == wanted for item in experiments):
            continue
        present = str(value_at(experiments[0], key)).lower()
        yield (
            f"{name}: nothing reads it while {key} is {present}, so its values would all train the same. "
            f"Set {key.removesuffix('.kind')}={str(wanted).lower()}, or leave it out."
        )
