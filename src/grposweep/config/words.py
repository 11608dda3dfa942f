"""What a person may type, and what they probably meant: key names, near misses, group options."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

from grposweep.config.schema import GROUPS, Experiment

# Where a person types the number into the group itself, this is the key that takes it.
DIALS = {
    "batch": "batch.prompts_per_step (with batch=auto) or batch.num_generations",
    "kl": "kl.beta (with kl=low)",
    "optimizer": "lr",
    "schedule": "schedule.budget_completions",
    "cluster": "cluster.processes",
    "search": "search.trials",
    "model": "model.path",
    "task": "task.path",
}


def known_keys(schema: Any = Experiment, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema, sections included."""
    hints = get_type_hints(schema)
    for field in fields(schema):
        yield prefix + field.name
        if is_dataclass(hints[field.name]):
            yield from known_keys(hints[field.name], f"{prefix}{field.name}.")


def unknown_key(key: str) -> str:
    """The message for a key that the schema does not have, with its nearest relatives."""
    keys = list(known_keys())
    last = key.rsplit(".", 1)[-1]
    same = [known for known in keys if known.rsplit(".", 1)[-1] == last]
    near = same or get_close_matches(key, keys, n=2, cutoff=0.6) or _near_last(last, keys)
    hint = f"Did you mean {' or '.join(near[:3])}?" if near else "'--cfg job' shows all keys."
    return f"{key} is not a key of grposweep, so nothing would read it. {hint}"


def _near_last(last: str, keys: list[str]) -> list[str]:
    """Keys whose last word is close to a misspelt one."""
    matches = get_close_matches(last, {key.rsplit(".", 1)[-1] for key in keys}, n=2, cutoff=0.7)
    return [key for key in keys if key.rsplit(".", 1)[-1] in matches]


def options(conf: Path, group: str) -> list[str]:
    """The options of a group, from its folder."""
    return sorted(path.stem for path in (conf / group).glob("*.yaml"))


def unknown_option(group: str, value: str, available: list[str]) -> str:
    """The message for ``group=value`` where there is no such option."""
    if group not in (*GROUPS, "sweeps"):
        return f"{group}={value}: there is no group {group}. The groups are {', '.join(GROUPS)} and sweeps."
    near = get_close_matches(value, available, n=1, cutoff=0.6)
    meant = f" Did you mean {group}={near[0]}?" if near else ""
    dial = f" To set a number use {DIALS[group]}." if group in DIALS and not near else ""
    return f"{group}={value}: {group} has no option {value!r}; its options are {', '.join(available)}.{meant}{dial}"


def malformed(argument: str, error: Exception) -> str:
    """The message for an override that Hydra's grammar does not take."""
    reason = str(error).strip().splitlines()[0]
    return (
        f"{argument!r} is not an override that Hydra understands ({reason}). Write key=value, key=a,b,c for a sweep, "
        f"'key=tag(log,interval(1e-5,1e-3))' for a range (in quotes, because of the brackets)."
    )
