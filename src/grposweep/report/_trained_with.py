"""What the trainer of a user's command got (trained_with.json), as the configuration of its trial
and in words.
"""

from pathlib import Path

from grporecipe.files import Config, without
from grporecipe.terminal import count
from grposweep.config.fields import KEYS, NUMBERS
from grposweep.storage.records import as_mapping

# Sections of which a command's trainer takes nothing: the values that enter are among those that it
# got.
OF_THE_BASE = frozenset(["lr", "seed", "model", "task", *NUMBERS])
OWN = {
    "model.path": "model",
    "task.rewards": "rewards",
    "task.train_prompts": "train_rows",
    "task.eval_prompts": "eval_rows",
    "cluster.processes": "world_size",
}


def with_trained(config: Config, record: Config, folder: Path) -> Config:
    """Return a trial's configuration with what its trainer got in place of the values that the
    sweep started from.

    A field has grposweep's key, or that of ``trainer.args`` if there is none. Fields that name the
    trial's folder are left out.
    """
    got = as_mapping(record.get("values"))
    trainer = as_mapping(config.get("trainer"))
    options = without(as_mapping(trainer.get("args")), got)
    # others, such as a time, may differ between any two trials
    of_rewards = {
        f"task.rewards.{name}": value
        for name, value in as_mapping(record.get("reward_values")).items()
        if value in options.values()
    }
    placed = {}
    for name, value in got.items():
        if str(folder) in str(value):
            continue
        if name in KEYS:
            placed[KEYS[name]] = value
        else:
            options[name] = value
    placed |= {key: record.get(name) for key, name in OWN.items()} | of_rewards
    changed = without(config, OF_THE_BASE)
    changed["trainer"] = {**trainer, "args": options}
    for key, value in placed.items():
        section, _, name = key.rpartition(".")
        if section:
            changed[section] = {**as_mapping(changed.get(section)), name: value}
        else:
            changed[name] = value
    return {**changed, "adapter": record.get("adapter"), "versions": record.get("versions")}


def trained_text(record: Config) -> str:
    """Return what trained a trial: trainer and release, processes, model, rows and rewards; empty
    without a record.
    """
    if not record:
        return ""
    trainer = str(record.get("trainer")).rpartition(".")[2]
    version = as_mapping(record.get("versions")).get("trl") or "(unknown version)"
    model = record.get("model") or "(an object)"
    if record.get("peft"):
        model = f"{model} with an adapter"
    rows = "an unknown number of rows"
    if record.get("train_rows") is not None:
        rows = count(record["train_rows"], "row")
    if record.get("eval_rows") is not None:
        rows += f", {record['eval_rows']:,} held out"
    rewards = ", ".join(map(str, record.get("rewards") or ["none"]))
    processes = count(int(record.get("world_size") or 1), "process")
    return f"{trainer} of TRL {version}, {processes}, model {model}, {rows}, rewards {rewards}"
