"""Which keys of an Experiment decide which fields of a setting.

``KEYS`` maps each field to the key that a user types, which messages and fixes name. A few fields
are derived from several keys; ``DERIVED`` names these keys.
"""

from collections.abc import Iterator, Sequence

from grporecipe.files import read_own_yaml
from grporecipe.model.setting import Setting
from grposweep.schema import keys_of

# The groups that hold a recipe's numbers. The others set what is trained, where, and how it is
# searched.
NUMBERS = ("batch", "optimizer", "kl", "loss", "schedule", "generation")


def _keys() -> Iterator[tuple[str, str]]:
    """Yield every field of the setting that one key sets, and the key.

    The schema names the field in the key's metadata. In the groups of numbers both have the same
    name otherwise.
    """
    for path, key in keys_of():
        name = key.metadata.get("setting")
        if name is None and path.partition(".")[0] in NUMBERS:
            name = key.name
        if name in Setting.__dataclass_fields__:
            yield name, path


# A field of the setting -> the key of its value.
KEYS = dict(_keys())

_FILE = read_own_yaml(__file__, "fields.yaml")
# Fields that follow from several keys (or sections), and from what preparation counted.
DERIVED: dict[str, list[str]] = _FILE["derived"]
# Fields of the loss, the optimizer and vLLM that only ``trainer.args`` sets.
OF_ARGS: list[str] = _FILE["of_args"]
# Fields that only ``trainer.args`` sets, with the key of each.
ARGS: dict[str, str] = {**_FILE["args"], **{name: f"trainer.args.{name}" for name in OF_ARGS}}
# Beginnings of keys that an external trainer has in its own recipe, or that are unknown: model,
# data, and generation.
OF_RECIPES = (
    "model.",
    "task.",
    "trainer.",
    "generation.use_vllm",
    "generation.vllm_",
    "schedule.eval_at_start",
)
FROM_RECIPE = frozenset(name for name, path in KEYS.items() if path.startswith(OF_RECIPES)) - {
    "train_prompts"
}
# Keys below these that an external trainer reads nevertheless.
READ = (
    "task.train_prompts",
    *(
        f"trainer.{name}"
        for name in (
            "kind",
            "keep",
            "command",
            "python",
            "workdir",
            "environment",
            "args",
        )
    ),
)


def reaches(key: str) -> bool:
    """Return whether a key, or the option of a group, affects an external trainer."""
    return key == "trainer" or key.startswith(READ) or not f"{key}.".startswith(OF_RECIPES)


# Every field that an Experiment decides -> the keys (or sections) that it depends on.
SOURCES: dict[str, Sequence[str]] = {
    **{name: (path,) for name, path in KEYS.items()},
    **DERIVED,
    **dict.fromkeys(ARGS, ("trainer.args",)),
}
PLAIN = Setting(
    keys={
        **KEYS,
        **ARGS,
        "rewards": "task.rewards",
        "reward_weights": "task.reward_weights",
        "lora": "model.lora.r",
        "lora_targets": "model.lora.target_modules",
    }
)
OF_TASKS = PLAIN.replace({"keys": {**PLAIN.keys, "processes": "cluster.tasks_per_node"}})
