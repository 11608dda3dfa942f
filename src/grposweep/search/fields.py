"""A point's setting by table look-up: a field depends on a few dials only, so few combinations are ever composed."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from grposweep.config.points import Points
from grposweep.config.read import SOURCES, base_setting, prepared_key, read_fields, settle
from grposweep.config.schema import GROUPS
from grposweep.plan import RESIZED
from grposweep.search.space import Choice, Interval, Point, Space
from grposweep.setting import IN_PROMPTS, Setting

REALISED = ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size", "unsolved")
REALISED_FROM = (
    "auto", *REALISED[:3], "processes", "num_generations", "num_generations_eval", "prompts_per_step",
    "max_per_device_train_batch_size", "eval_prompts",
)  # fmt: skip

# Where a framework counts prompts, all of its sizes follow from all of ours.
COUNTED = {*REALISED, *RESIZED, "prompts_per_rollout", "prompts_per_step"}
COUNTED_FROM = (*REALISED_FROM, "steps_per_generation")

_PLAIN = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_RANKS = "${ranks:"  # our own resolver: it depends on what it is given and on nothing else


class Fields:
    """Settings of a space's points; equal to composing each point and reading it, which a test shows."""

    def __init__(self, space: Space, points: Points, prepared: Mapping[str, Any]) -> None:
        self._space, self._points, self._prepared = space, points, prepared
        self._base = base_setting(points.base)
        values = {dial.name: dial.domain.values for dial in space.dials if isinstance(dial.domain, Choice)}
        raw = points.raw_values(values)
        self._references = {key: set().union(*map(_referred, found)) for key, found in raw.items()}
        self._whole = {key: found[0][2:-1] for key, found in raw.items() if _is_one_reference(found)}
        self._continuous = {dial.name for dial in space.dials if isinstance(dial.domain, Interval)}
        self._dials = {field: self._depends(field) for field in SOURCES}
        self._direct = {field: dial for field in SOURCES if (dial := self._carried(field)) is not None}
        self._tables: dict[tuple[str, ...], dict[tuple[Any, ...], dict[str, Any]]] = {}
        for field in SOURCES:
            self._tables.setdefault(self._table_of(field), {})

    @property
    def framework(self) -> str:
        """Whose rules judge the points."""
        return self._base.framework

    def dials(self, field: str) -> frozenset[str]:
        """The dials that a realised field of the setting can depend on."""
        if field in COUNTED and self._base.framework in IN_PROMPTS:
            sources: tuple[str, ...] = COUNTED_FROM
        else:
            sources = REALISED_FROM if field in REALISED and self._dials["auto"] | self._base_auto else (field,)
        return frozenset().union(*(self._dials.get(source, frozenset()) for source in sources))

    def setting(self, point: Point) -> Setting:
        """The setting at a point, its ``auto`` sizes solved."""
        fields: dict[str, Any] = {}
        for dials, table in self._tables.items():
            fields |= self._row(dials, table, point)
        for field, dial in self._direct.items():
            if dial in point:
                fields[field] = point[dial]
        return settle(self._base.altered(fields))

    @cached_property
    def _base_auto(self) -> frozenset[str]:
        """Not empty where the base leaves sizes to the planner."""
        return read_fields(self._points.base)["auto"]  # type: ignore[no-any-return]  # a mapping of Any

    def _row(
        self, dials: tuple[str, ...], table: dict[tuple[Any, ...], dict[str, Any]], point: Point
    ) -> dict[str, Any]:
        """The fields that depend on just these dials, composed once for each combination of their labels."""
        key = tuple((point[name], type(point[name])) if name in point else None for name in dials)
        if key not in table:
            values = self._space.values({name: point[name] for name in dials if name in point})
            experiment = self._points.experiment(values)
            fields = read_fields(experiment, self._prepared.get(prepared_key(experiment)))
            table[key] = {field: fields[field] for field in SOURCES if self._table_of(field) == dials}
        return table[key]

    def _table_of(self, field: str) -> tuple[str, ...]:
        """The dials under which a field is tabled; a continuous dial that is the field's value needs no table."""
        return tuple(sorted(self._dials[field] - {self._direct.get(field)}))

    def _depends(self, field: str) -> frozenset[str]:
        """All dials that touch a field's keys, by themselves or through interpolations."""
        return frozenset(
            dial.name for dial in self._space.dials for key in SOURCES[field] if self._touches(dial.name, key, set())
        )

    def _touches(self, dial: str, key: str, seen: set[str]) -> bool:
        if dial == "debug" or key == "*" or dial == key or key.startswith(f"{dial}.") or dial.startswith(f"{key}."):
            return True
        seen.add(key)
        inside = [ref for known, refs in self._references.items() if _within(known, key) for ref in refs]
        return any(self._touches(dial, ref, seen) for ref in inside if ref not in seen)

    def _carried(self, field: str) -> str | None:
        """The continuous dial whose value is the field's, as it is: its own key, or all that its key refers to."""
        keys = SOURCES[field]
        if len(keys) != 1 or keys[0] in GROUPS:
            return None
        return next((name for name in (keys[0], self._whole.get(keys[0])) if name in self._continuous), None)


def _within(known: str, key: str) -> bool:
    return known == key or known.startswith(f"{key}.")


def _referred(value: Any) -> set[str]:
    """The keys that a raw value refers to; ``*`` for a reference that is no plain absolute key: it may be anything."""
    if not isinstance(value, str) or "${" not in value:
        return set()
    plain = set(_PLAIN.findall(value))
    return plain if len(_PLAIN.findall(value)) == value.replace(_RANKS, "").count("${") else plain | {"*"}


def _is_one_reference(found: list[Any]) -> bool:
    """Whether a key's value is taken from one other key, whole, wherever it is set."""
    return len(set(map(str, found))) == 1 and isinstance(found[0], str) and _PLAIN.fullmatch(found[0]) is not None
