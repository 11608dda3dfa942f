"""Parse Hydra's sweep syntax into parameters: ``a,b``, choice(), range(), interval(), tag(log,
...), glob().
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    IntervalSweep,
    Override,
    QuotedString,
    RangeSweep,
    Transformer,
)
from hydra.errors import HydraException

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.files import Config, Json
from grposweep.config.compose import NO_TEXT, known_keys, malformed, takes_text
from grposweep.search.space import Choice, Interval, Label, Parameter, Space, build_space

# the sampler that compares one parameter at a time with the base configuration
ONE_FACTOR = "one_factor"
# the key that lists points instead of parameters
POINTS = "search.points"
EXAMPLE = f"'{POINTS}={{lr:1e-3,batch:small}},{{lr:1e-4,batch:medium}}'"
_NEXT_PARAMETER = re.compile(r",(?=([A-Za-z_][\w./@]*)=)")


def split_tokens(arguments: Iterable[str]) -> list[str]:
    """Split ``lr=a,b,batch=x,y`` into two tokens; commas inside quotes and brackets stay.

    Hydra reports a syntax error for it, but users type it.
    """
    return list(chain.from_iterable(map(_split, arguments)))


def _split(argument: str) -> list[str]:
    parts, start, depth, quote = [], 0, 0, ""
    for index, letter in enumerate(argument):
        if quote:
            quote = "" if letter == quote and argument[index - 1] != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif depth == 0 and "=" in argument[start:index]:
            match = _NEXT_PARAMETER.match(argument, index)
            is_text = match and takes_text(argument[start:].partition("=")[0])
            # what follows is the next parameter, not a part of a sentence
            if match and (not is_text or match[1] in known_keys()):
                parts.append(argument[start:index])
                start = index + 1
    return [*parts, argument[start:]]


def bracket_points(argument: str) -> str:
    """Return ``search.points={...},{...}`` as one list, which is no sweep for Hydra; any other
    argument unchanged.
    """
    name, _, value = argument.partition("=")
    return f"{name}=[{value}]" if name == POINTS and value.startswith("{") else argument


def parse_space(
    arguments: list[str],
    params: Config,
    loader: ConfigLoader | None = None,
    keeps_single: bool = False,
) -> tuple[Space, list[str]]:
    """Return the space of command line and sweep file, and the overrides with a single value.

    The command line wins over the file's ``params``: a parameter given there is replaced, or fixed.
    A single value in the file is no sweep, unless ``keeps_single``: then it is a parameter with one
    choice. Raises UserError for what Hydra cannot parse, for numbers that are not finite, and for
    empty parameters.
    """
    parser = OverridesParser.create(config_loader=loader)
    typed = [_parse(parser, argument) for argument in arguments]
    first: dict[str, Override] = {}
    for override in typed:
        other = first.setdefault(_key(override), override)
        is_swept = other.is_sweep_override() or override.is_sweep_override()
        if other is not override and is_swept:
            raise UserError(
                f"{other.input_line} and {override.input_line}: only the last value of a key "
                "counts. Leave one of them out."
            )
    entries = [
        _entry(parser, name, content) for name, content in params.items() if name not in first
    ]
    _refuse_infinite([*typed, *(override for override, _ in entries)])
    parameters: list[Parameter] = []
    fixed: list[str] = []
    single = None if keeps_single else fixed
    for override, when in entries:
        _sort(override, when, parameters, single)
    for override in typed:
        _sort(override, {}, parameters, fixed)
    try:
        return build_space(parameters), fixed
    except ValueError as error:
        raise UserError(
            f"{error}, so its condition can never be judged. Add that parameter, or drop the "
            "condition."
        ) from error


def parse_values(arguments: list[str], loader: ConfigLoader | None = None) -> Json:
    """Return the keys and values of overrides that are no sweep.

    Raises UserError for several values of one key.
    """
    space, fixed = parse_space(split_tokens(arguments), {}, loader)
    if space.parameters:
        raise UserError(
            f"{space.parameters[0].name} has several values, and a rerun is one run. Give one, "
            "or sweep with run.py -m."
        )
    parser = OverridesParser.create()
    overrides = [_parse(parser, text) for text in fixed]
    return {_key(override): _plain(override.value()) for override in overrides}


def parse_cell(name: str, text: str) -> Any:
    """Return the value of a cell of a table: a number, Boolean, null, list or mapping in Hydra's
    grammar, otherwise its text.

    Raises UserError for a number that is not finite, and for a list or mapping that Hydra cannot
    parse.
    """
    if not (NO_TEXT.fullmatch(text.strip()) or text.startswith(("[", "{"))):
        return text
    override = _parse(OverridesParser.create(), f"{name}={text}")
    _refuse_infinite([override])
    return _plain(override.value())


def check_numbers(overrides: Iterable[str]) -> None:
    """Raise UserError for overrides with a number that is not finite; it names all of them."""
    parser = OverridesParser.create()
    _refuse_infinite(_parse(parser, text) for text in overrides)


def _refuse_infinite(overrides: Iterable[Override]) -> None:
    problems = []
    for override in overrides:
        odd = [value for value in _numbers(override.value()) if not math.isfinite(value)]
        if odd:
            problems.append(
                f"{override.input_line}: {odd[0]} is no finite number, so nothing could be "
                "computed with it. Set a finite number, or quote it if it is text."
            )
    refuse_mistakes(problems)


def _key(override: Override) -> str:
    """Return the key without ``+`` and ``++``."""
    return str(override.get_key_element()).lstrip("+")


When = dict[str, tuple[Label, ...]]


def _entry(parser: OverridesParser, name: str, content: Any) -> tuple[Override, When]:
    """Parse one entry of a sweep file: a string in Hydra's syntax, or ``{when: {parameter:
    [labels]}, space: string}``.
    """
    when: When = {}
    if isinstance(content, Mapping):
        unknown = set(content) - {"when", "space"}
        if unknown or "space" not in content:
            raise UserError(
                f"{name}: a parameter with a condition has the keys 'when' and 'space', not "
                f"{', '.join(map(str, content))}. "
                f"Write {name}: {{when: {{kl: [low, high]}}, space: 'interval(0.001, 0.1)'}}."
            )
        for other, labels in (content.get("when") or {}).items():
            when[other] = tuple(labels) if isinstance(labels, list | tuple) else (labels,)
        content = content["space"]
    return _parse(parser, f"{name}={content}"), when


def _sort(
    override: Override, when: When, parameters: list[Parameter], fixed: list[str] | None
) -> None:
    """Sort one override; ``fixed`` takes single values, and without it they are parameters."""
    name = _key(override)
    if override.is_sweep_override():
        parameters.append(Parameter(name, _domain(override), when))
    elif fixed is None:
        value = _plain(override.value())
        parameters.append(Parameter(name, Choice((label_of(value),), (value,)), when))
    else:
        fixed.append(str(override.input_line))


def _parse(parser: OverridesParser, argument: str) -> Override:
    argument = bracket_points(argument)
    try:
        override = parser.parse_override(argument)
    except HydraException as error:
        raise UserError(malformed(argument, error)) from error
    if _key(override) == POINTS and override.is_sweep_override():
        raise UserError(
            f"{argument}: points are mappings, and a shell takes their braces away. Write "
            f"{EXAMPLE}, in quotes."
        )
    # glob() asks it for a group's options
    override.config_loader = parser.config_loader
    return override


def _numbers(value: Any) -> Iterator[float]:
    """Yield the floating-point numbers in a parsed value or sweep."""
    items: Iterable[Any] = ()
    if isinstance(value, float):
        yield value
    elif isinstance(value, ChoiceSweep):
        items = value.list
    elif isinstance(value, IntervalSweep):
        items = (value.start, value.end)
    elif isinstance(value, RangeSweep):
        items = (value.start, value.stop, value.step)
    elif isinstance(value, dict):
        items = value.values()
    elif isinstance(value, list):
        items = value
    yield from chain.from_iterable(map(_numbers, items))


def _domain(override: Override) -> Choice | Interval:
    """Return the domain of one sweep override."""
    name = override.get_key_element()
    value = override.value()
    if isinstance(value, IntervalSweep):
        return _interval(name, value)
    if isinstance(value, RangeSweep | ChoiceSweep | Glob):
        values = tuple(override.sweep_iterator(transformer=Transformer.identity))
        if not values:
            raise UserError(
                f"{override.input_line}: no value is left to search. Give at least one."
            )
        plain = tuple(map(_plain, values))
        if len({(type(value), str(value)) for value in plain}) < len(plain):
            raise UserError(
                f"{override.input_line}: a value is there twice, and a point is trained once. Give "
                "each value once. To train each point on fresh seeds as well, set search.seeds=3."
            )
        if isinstance(value, RangeSweep) and len(plain) == 1 and isinstance(plain[0], float):
            raise UserError(
                f"{override.input_line}: its only value is {plain[0]:g}, because a range goes in "
                f"steps of {value.step:g}. Set {name}=interval({value.start:g},{value.stop:g}) to "
                "search between both, or add a step."
            )
        return Choice(tuple(map(label_of, plain)), plain)
    raise UserError(
        f"{override.input_line}: this kind of sweep is not known. Use a,b, choice(), range() or "
        "interval()."
    )


def _interval(name: str, sweep: IntervalSweep) -> Interval:
    low = sweep.start
    high = sweep.end
    if low is None or high is None or not low < high:
        raise UserError(
            f"{name}=interval({low},{high}): the interval is empty. Give the smaller end first."
        )
    log = "log" in sweep.tags
    if log and low <= 0:
        raise UserError(
            f"{name}=interval({low},{high}): a logarithm needs a lower end above 0. Set one, or "
            "drop log."
        )
    return Interval(
        low, high, log, (isinstance(low, int) and isinstance(high, int)) or "int" in sweep.tags
    )


def _plain(value: Any) -> Any:
    """Return a parsed element as a configuration value."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value


def label_of(value: Any) -> Label:
    """Return the label of a value in tables and the study: the value itself if Optuna can store
    it.
    """
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
