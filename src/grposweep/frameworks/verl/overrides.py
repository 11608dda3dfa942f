"""Which overrides Hydra refuses over a configuration whose keys are known.

Hydra composes in struct mode: a key that the configuration lacks cannot be set without ``+``, below an empty mapping (``{}``)
or a null too. Source: hydra 1.3 _internal/config_loader_impl.py (_apply_overrides_to_config).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from grposweep.frameworks.base import KeyTable
from grposweep.frameworks.parsing.yaml_text import flatten, resolve
from grposweep.recipe import Recipe

GROUPS = ("defaults", "actor", "ref", "rollout", "model", "critic", "data", "reward", "model_engine", "hydra",
          "transfer_queue")  # fmt: skip


class Refusal(NamedTuple):
    """An override as it is written, and what Hydra finds at its key.

    Nothing (``absent``), a value where one is added (``there``), or a mapping where a list is set or the reverse (``shape``).
    """

    written: str
    finds: Literal["absent", "there", "shape"]


def refusals(recipe: Recipe, known: KeyTable) -> Iterator[Refusal]:
    """Yield the overrides that Hydra refuses, in order; what an earlier one or another file adds may be set."""
    added: dict[str, Any] = {}
    for written, value in recipe.config.items():
        key = written.lstrip("+~")
        if _is_of_a_group(key):
            continue
        is_mapping = key in known.sections or known.defaults.get(key) == {}
        is_list = isinstance(known.defaults.get(key), list)
        if not written.startswith("~") and (
            (is_mapping and isinstance(value, list)) or (is_list and isinstance(value, dict))
        ):
            yield Refusal(written, "shape")
        elif (recipe.base and written not in recipe.lines) or written.startswith("++"):
            _add(added, key, value)
        elif written.startswith("+"):
            if _has_value(key, known, added) and not isinstance(value, (dict, list)):
                yield Refusal(written, "there")
            _add(added, key, value)
        elif written.startswith("~"):
            if not (_has_value(key, known, added) or "${" in str(known.defaults.get(key))):
                yield Refusal(written, "absent")
        elif not _takes(key, value, known, added):
            yield Refusal(written, "absent")


def _is_of_a_group(key: str) -> bool:
    """Return whether a word chooses an option of a group, or is one of Hydra's own keys."""
    plain = key.split("@")[0]
    return key.startswith("hydra.") or ("." not in plain and plain.split("/")[0] in GROUPS)


def _add(added: dict[str, Any], key: str, value: Any) -> None:
    added[key] = value
    added |= {key[:at]: {} for at, letter in enumerate(key) if letter == "."}
    if isinstance(value, Mapping) and value:
        added |= flatten({key: value})


def _has_value(key: str, known: KeyTable, added: Mapping[str, Any]) -> bool:
    """Return whether there is a value at a key that is neither null nor missing; a reference counts as what it leads to."""
    if key in known.sections:
        return True
    value = added[key] if key in added else resolve(known.defaults, key)
    return value is not None and value != "???"


def _takes(key: str, value: Any, known: KeyTable, added: Mapping[str, Any]) -> bool:
    """Return whether a key may be set without ``+``: it is there, and so are the keys of a mapping that it is set to."""
    is_mapping = key in known.sections or known.defaults.get(key) == {}
    if is_mapping and isinstance(value, Mapping) and value:
        return all(_takes(name, leaf, known, added) for name, leaf in flatten({key: value}).items())
    if key in known or key in known.sections or key in added:
        return True
    above, _, index = key.rpartition(".")
    return index.isdigit() and isinstance(known.defaults.get(above), list)
