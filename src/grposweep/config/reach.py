"""Keys that are set and change nothing: another key switches them off, or nothing reads them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from grporecipe.model.setting import ROWS, Setting
from grporecipe.registries import load_entry
from grposweep.config.fields import KEYS
from grposweep.registries import LAUNCHERS, is_external
from grposweep.schema import Cluster, Experiment, ThisMachine, default_of, value_at


def _switches() -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield the key of each field that has no effect unless another is on, or has a value: with
    that one's key and value.
    """
    for name in KEYS:
        other, sign, wanted = ROWS[name].needs.split(" moves")[0].partition("=")
        if other not in KEYS or " " in wanted:
            continue
        if sign or "bool" in str(Setting.__dataclass_fields__[other].type):
            yield KEYS[name], (KEYS[other], wanted or True)


# Beginnings of keys, the key that switches them on, and its value then.
SWITCHES: dict[str, tuple[str, Any]] = {
    "model.lora.": ("model.lora.enabled", True),
    "generation.vllm_": ("generation.use_vllm", True),
    **dict(_switches()),
}


def check_switches(
    names: Iterable[str], distinct: Callable[[str], Sequence[Experiment]]
) -> Iterator[str]:
    """Name searched keys that another key switches off at every point.

    ``distinct`` returns the experiments of the space that differ in a section, such as ``model``.
    """
    for name in names:
        switch = next((SWITCHES[start] for start in SWITCHES if name.startswith(start)), None)
        if switch is None or name == switch[0]:
            continue
        key, wanted = switch
        experiments = distinct(key.partition(".")[0])
        if any(
            is_external(item.trainer.kind) or value_at(item, key) == wanted for item in experiments
        ):
            continue
        present = str(value_at(experiments[0], key)).lower()
        yield (
            f"{name}: nothing reads it while {key} is {present}, so its values would all train the "
            f"same. Set {key.removesuffix('.kind')}={str(wanted).lower()}, or leave it out."
        )


def check_place(cluster: Cluster, names: Collection[str]) -> Iterator[str]:
    """Say if a command sets keys that the launcher does not read, and chooses no cluster.

    ``names`` are the keys and groups of the command. Keys in a file are no mistake: a study for
    Slurm may be run with ``cluster=local``, and exported.
    """
    launcher = load_entry(LAUNCHERS[cluster.kind])
    unread = launcher.unread_keys() if {"cluster", "cluster.kind"}.isdisjoint(names) else ()
    set_here = [
        key
        for key in unread
        if key in names and value_at(Experiment(cluster=cluster), key) != default_of(key)
    ]
    if set_here and launcher.section is not ThisMachine:
        yield f"cluster={cluster.kind} does not read {' and '.join(set_here)}. Leave it out."
    elif set_here:
        yield (
            f"only cluster=slurm reads {' and '.join(set_here)}, and these trials would train on "
            "this machine. Set cluster=slurm, or cluster=local to train here."
        )
