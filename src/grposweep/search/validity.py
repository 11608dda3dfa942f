"""Validate points: which are valid, which rules the others break, and which fixes there are.

A point's setting comes from tables: a field depends on a few parameters only, so few combinations
are ever composed.
"""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import Any

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.files import Config, Json, without
from grporecipe.model.effect import find_lack
from grporecipe.model.setting import Setting
from grporecipe.rules.check import RECIPE_RULES, REGISTRY, Problem, check, errors
from grporecipe.rules.fixes import find_fixes
from grposweep.command.asked import OPTIONS, ask_ahead, find_rewarding, find_unseen
from grposweep.command.base import Base, is_asked
from grposweep.config.evaluation import is_of_reward
from grposweep.config.fields import SOURCES
from grposweep.config.identity import ResolvedConfig, prepared_key
from grposweep.config.points import Points
from grposweep.config.to_setting import base_setting, read_fields, resolve_auto
from grposweep.config.validate import find_base_mistakes, find_mistakes
from grposweep.schema import Experiment
from grposweep.schema.registries import is_external
from grposweep.search.sampler import continuous
from grposweep.search.space import Choice, Interval, Parameter, Point, Space, freeze

_PLAIN = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
# our own resolvers: they depend on what they are given and on nothing else
_OURS = r"\$\{(ranks|budget):"

_VALUES = sorted(Setting.__dataclass_fields__.keys() - {"given", "keys", "lines", "unknown"})
UNKNOWN_TRL = (
    "The program does not say which release of TRL it imports, so rules that depend on the release "
    "judge no point. Install TRL as a package to have them."
)
# in rules.ignore: start although the disk is too small
DISK = "disk"


class RuleInputs:
    """The settings of a space's points, equal to composing each point and reading it (shown by a
    test).
    """

    def __init__(self, space: Space, points: Points, prepared: Config) -> None:
        self._space, self._points, self._prepared = space, points, prepared
        self._base = base_setting(points.base)
        own = {key: name for name, key in self._base.keys.items()}
        # what each key sets; options of a framework's command too
        self.set_by = own | {f"{OPTIONS[0]}{key}": name for key, name in own.items()}
        # sentences on what is not known of the user's command
        self.notes: list[str] = []
        # options of the command that say what is rewarded, each with what it changes
        self.rewarding = {p.name: "rewards" for p in space.parameters if is_of_reward(p.name)}
        if is_asked(points.base):
            self._base = self._base.replace({"unknown": self._base.unknown | self._find_varying()})
        is_own = is_external(points.base.trainer)
        self._is_launch = is_own and Base.of(points.base).launch is not None
        # of a framework's launch, by the values of its own keys
        self._native: dict[str, Setting] = {}
        raw = points.raw_values(space.choices)
        self._references = {key: set().union(*map(_referred, raws)) for key, raws in raw.items()}
        # keys whose value is always exactly the value of one other key
        self._whole = {
            key: str(raws[0])[2:-1]
            for key, raws in raw.items()
            if len({*map(str, raws)}) == 1 and _PLAIN.fullmatch(str(raws[0]))
        }
        self._parameters = {field: self._depends(field) for field in SOURCES}
        # the continuous parameter whose value is a field's: its own key, or the one that its key
        # refers to
        self._direct: dict[str, str] = {}
        ranges = continuous(space)
        for field, (key, *others) in SOURCES.items():
            for name in (self._whole.get(key), key):
                if name in ranges and not others:
                    self._direct[field] = name
        # the fields that depend on just these parameters; one whose value is a continuous
        # parameter needs none
        self._fields: dict[tuple[str, ...], list[str]] = {}
        for field, names in self._parameters.items():
            own_parameters = tuple(sorted(names - {self._direct.get(field)}))
            self._fields.setdefault(own_parameters, []).append(field)
        # their values, by labels
        self._rows: dict[tuple[Any, ...], Json] = {}

    def _find_varying(self) -> set[str]:
        """Return the fields that follow from options of the user's command: no point's value is
        known without asking for it.

        Note the options that change nothing of what the trainer gets.
        """
        fields = set[str]()
        if "version" in self._base.unknown:
            self.notes.append(UNKNOWN_TRL)
        for option in (item for item in self._space.parameters if item.name.startswith(OPTIONS)):
            answers = {}
            for value in checked_values(option):
                experiment = self._points.experiment({option.name: value})
                other = base_setting(experiment)
                answers[str(value)] = Base.of(experiment).asked
                fields |= self._changed(other).keys() | other.unknown
            self.notes += filter(None, [find_unseen(option.name, answers)])
            changed = find_rewarding(answers)
            if changed:
                self.rewarding[option.name] = f"rewards ({changed})"
        return fields

    def setting(self, point: Point) -> Setting:
        """Return the setting at a point, its ``auto`` sizes resolved."""
        fields: Json = {}
        for parameters in self._fields:
            fields |= self._row(parameters, point)
        for field, parameter in self._direct.items():
            if parameter in point:
                fields[field] = point[parameter]
        fields |= self._of_native_keys(point)
        # what the point sets is known
        if self._base.unknown:
            fields["unknown"] = self._base.unknown - {
                name for name, of in self._parameters.items() if of & point.keys()
            }
        return resolve_auto(self._base.replace(fields))

    def _of_native_keys(self, point: Point) -> Json:
        """Return the fields that keys of the launched framework change, without those that other
        parameters set.
        """
        own = {name: value for name, value in point.items() if name.startswith(OPTIONS[0])}
        if not own or not self._is_launch:
            return {}
        if str(own) not in self._native:
            experiment = self._points.experiment(self._space.values(own))
            self._native[str(own)] = base_setting(experiment)
        return {
            name: value
            for name, value in self._changed(self._native[str(own)]).items()
            if self._parameters.get(name, frozenset()).isdisjoint(point)
        }

    def _changed(self, other: Setting) -> Json:
        """Return the fields that differ from those of the base configuration."""
        return {
            name: getattr(other, name)
            for name in _VALUES
            if getattr(other, name) != getattr(self._base, name)
        }

    def _row(self, parameters: tuple[str, ...], point: Point) -> Json:
        """Return the fields that depend on just these parameters, composed once for each
        combination of their labels.
        """
        own = {name: point[name] for name in parameters if name in point}
        labels = tuple((name, value, type(value)) for name, value in own.items())
        key = parameters, labels
        if key not in self._rows:
            experiment = self._points.experiment(self._space.values(own))
            fields = read_fields(experiment, self._prepared.get(prepared_key(experiment)))
            self._rows[key] = {field: fields[field] for field in self._fields[parameters]}
        return self._rows[key]

    def _depends(self, field: str) -> frozenset[str]:
        """Return all parameters that touch a field's keys, by themselves or through
        interpolations.
        """
        names = set(self._space.names)
        keys = set(SOURCES[field])
        waiting = list(keys)
        while waiting:
            key = waiting.pop()
            for path, references in self._references.items():
                if _is_inside(path, key):
                    waiting += references - keys
                    keys |= references
        if "*" in keys:
            return frozenset(names)
        pairs = product(names, keys)
        touching = {name for name, key in pairs if _is_inside(name, key) or _is_inside(key, name)}
        return frozenset(touching | names & {"debug"})


def _is_inside(path: str, key: str) -> bool:
    """Return whether a path is a key or in its group."""
    return f"{path}.".startswith(f"{key}.")


def _referred(value: Any) -> set[str]:
    """Return the keys that a raw value refers to; ``*`` stands for a reference that is no plain
    absolute key.
    """
    if not isinstance(value, str) or "${" not in value:
        return set()
    plain = _PLAIN.findall(value)
    is_plain = len(plain) == re.sub(_OURS, "", value).count("${")
    return {*plain} if is_plain else {*plain, "*"}


# groups and keys that the controller reads, or that change no training
SHARED = (
    "search",
    "tracker",
    "name",
    "outputs",
)


# Results that are kept: every step of a trial needs its experiment.
MOST_KEPT = 500


class Validator:
    """Validates a space's points; ``learn`` adds what preparation counted for each model and
    task.
    """

    def __init__(self, space: Space, points: Points) -> None:
        self.space = space
        self.points = points
        self.ignore = tuple(points.base.rules.ignore)
        self.learn({})

    def learn(self, prepared: Config) -> None:
        """Use these counts from now on."""
        self._results: dict[object, ValidationResult] = {}
        self.fields = RuleInputs(self.space, self.points, prepared)

    def validate(self, point: Point, seed: int | None = None) -> "ValidationResult":
        """Return the result of one point, with another seed if one is given.

        Raises UserError if the configuration does not exist at all (unknown key or option).
        """
        key = (freeze(point), seed)
        result = self._results.get(key)
        if result is None:
            setting = self.fields.setting(point)
            if seed is not None:
                setting = setting.replace({"seed": seed})
            problems = check(setting, self.ignore)
            result = ValidationResult(point, setting, tuple(problems), self, seed)
            if len(self._results) >= MOST_KEPT:
                self._results.clear()
            self._results[key] = result
        return result

    def is_valid(self, point: Point) -> bool:
        """Return whether a point breaks no rule."""
        return self.validate(point).is_valid


# keys whose default may be refused where a value is searched: no file, no adapters
NEEDED = ("task.path", "model.lora.r")


def check_space(
    space: Space, points: Points, names: Collection[str] = (), trains: bool = False
) -> None:
    """Raise UserError with all mistakes of the base configuration, of every parameter's values and
    of ignored rules.

    ``names`` are the keys and groups of the command, ``trains`` whether trials start from this
    machine.
    """
    # The base is whole only with one of the values that are searched.
    needed = {name: values[-1] for name, values in space.choices.items() if name in NEEDED}
    base = points.experiment(needed) if needed else points.base
    problems = find_base_mistakes(base, {*names, *space.names}, trains)
    asked = OPTIONS if is_asked(base) else ()
    options = [item for item in space.parameters if item.name.startswith(asked)]
    if options and not problems:
        # of a value, which is named below
        with suppress(UserError):
            at = []
            for item in options:
                for value in checked_values(item):
                    at.append(points.experiment({item.name: value}).trainer)
            between = [item.name for item in options if isinstance(item.domain, Interval)]
            ask_ahead(base.trainer, at, base.cluster, between, base.outputs)
    families = {code[:2] for code in REGISTRY}
    points.compose_options(space.choices)
    problems += [
        f"rules.ignore: there is no rule {code}. 'grposweep rules' lists them."
        for code in points.base.rules.ignore
        if code not in (*REGISTRY, *RECIPE_RULES, *families, DISK)
    ]
    for parameter in space.parameters:
        if parameter.name.partition(".")[0] in SHARED:
            problems.append(
                f"{parameter.name}: all trials of a sweep share it, so it cannot be searched. "
                "Give one value; for each further value run a sweep with a name of its own."
            )
        else:
            problems += _mistakes_at(points, parameter, parameter in options, needed)
    refuse_mistakes(problems)


def checked_values(parameter: Parameter) -> Sequence[Any]:
    """Return a list's values, or an interval's ends and one inside: a whole number's key takes no
    fractions.

    Options have no type.
    """
    domain = parameter.domain
    if isinstance(domain, Choice):
        return domain.values
    inside = () if parameter.name.startswith(OPTIONS) else (1 / math.pi,)
    return list(map(domain.at, (0.0, 1.0, *inside)))


def _mistakes_at(
    points: Points, parameter: Parameter, is_asked: bool, needed: Config
) -> Iterator[str]:
    """Yield what is wrong at the values of a parameter; ``is_asked``: the user's command is asked
    about each.
    """
    domain = parameter.domain
    for value in checked_values(parameter):
        try:
            problems = find_mistakes(points.experiment({**needed, parameter.name: value}))
        except UserError as error:
            problems = [str(error)]
        if isinstance(domain, Interval) and "Integer" in str(problems):
            text = f"interval({domain.low:g},{domain.high:g})"
            yield (
                f"{parameter.name}={text} has fractions, and this key takes whole numbers. "
                f"Set '{parameter.name}=int({text})'."
            )
            return
        yield from problems
        if problems and is_asked and isinstance(domain, Choice):
            # an answer may take 20 s
            return


@dataclass(frozen=True)
class ValidationResult:
    """One point with its setting and its problems."""

    point: Point
    setting: Setting
    problems: tuple[Problem, ...]
    validator: Validator
    # a replicate's
    seed: int | None = None

    @property
    def is_valid(self) -> bool:
        """Return whether no error prunes it."""
        return not errors(self.problems)

    @cached_property
    def lacks(self) -> dict[str, str]:
        """The keys that are set and change nothing here, each with the need that it lacks.

        Those of the shared ones that a rule names are left out.
        """
        set_by = self.validator.fields.set_by
        lacks = {}
        blamed = set(chain.from_iterable(problem.broken.fields for problem in self.problems))
        for name in (*self.point, *self.validator.points.shared):
            field = set_by.get(name)
            if field and (name in self.point or field not in blamed):
                lack = find_lack(self.setting, field)
                if lack:
                    lacks[name] = lack
        return lacks

    @cached_property
    def training(self) -> object:
        """The point without the keys that change nothing here. Points with the same are one
        training.
        """
        return freeze(without(self.point, self.lacks))

    @cached_property
    def config(self) -> ResolvedConfig:
        """The point's whole experiment, composed on demand (20 ms), with its setting."""
        return ResolvedConfig(self.validator.points.experiment(self.values), self.setting)

    @property
    def experiment(self) -> Experiment:
        """The point's whole experiment."""
        return self.config.experiment

    @property
    def values(self) -> Json:
        """Return the configuration values that differ from the base configuration."""
        values = self.validator.space.values(self.point)
        return values if self.seed is None else {**values, "seed": self.seed}

    def reasons(self) -> list[Json]:
        """Return the problems as ``invalid.jsonl`` and the study keep them."""
        reasons: list[Json] = []
        for problem, fixes in self.fixes():
            keys = [dict(fix.keys) for fix in fixes]
            reasons.append({"code": problem.code, "message": problem.message, "fixes": keys})
        return reasons

    def fixes(self) -> list[tuple[Problem, list[Any]]]:
        """Return each error with its verified fixes."""
        return [
            (p, find_fixes(self.setting, p, self.validator.ignore)) for p in errors(self.problems)
        ]
