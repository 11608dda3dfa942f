"""What a script's configuration was given, and what its trainer got: the content of
``trained_with.json``.

A record is a JSON object:

- ``trainer``, ``config``: the classes, qualified by their modules; ``base``: TRL's or Unsloth's
  trainer among them, null for a
  trainer of another kind; ``versions``: of trl, transformers, torch, peft, vllm.
- ``line``, ``trainer_line``: the user's lines that built the configuration and the trainer, as
  ``file:line``.
- ``command``: the words of the process that builds the trainer; ``world_size``: training processes.
- ``values``: every field of the configuration as the trainer got it.
- ``given``: the fields that the script, its options or the point set, as they were set: without
  what the configuration's own
  checks derive. These are a recipe.
- ``assigned``: fields that were assigned after the configuration was built, with the line.
- ``unknown``: fields whose value depends on data, so only a real run knows them. They are not in
  ``given``.
- ``model``: its name or folder, null if the script passes an object without one; ``rewards``: their
  names; ``reward_values``: the numbers and texts that they read from outside, without fields of the
  configuration.
- ``train_rows``, ``eval_rows``: rows of the data sets, null if they are unknown; ``evaluates``:
  whether it has held-out data.
- ``peft``: whether it trains an adapter; ``adapter``: that adapter's rank and the like, as far as
  they are known.
- ``steps``: optimizer steps of the whole training. Only a trial's own record has it, because the
  trainer computes it.
- ``rates``: the rates with which the optimizer's groups begin, each once; only in a trial's record.
"""

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grporecipe.redaction import secrets_in

PACKAGES = ("trl", "transformers", "torch", "peft", "vllm")
_LIBRARIES = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<frozen", "<string>")
# of these packages
_HERE = str(Path(__file__).parents[3])
# of what a reward function reads: config.reward.scale
DEEPEST_VALUE = 3
# Fields of peft's LoraConfig.
ADAPTER = (
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "modules_to_save",
    "use_rslora",
    "use_dora",
)
TRAINERS = ("GRPOTrainer", "AsyncGRPOTrainer", "UnslothGRPOTrainer")
_START = os.getcwd()  # noqa: PTH109 - the user's program may change it later
# of a library, but run as the user's script: trl/scripts/grpo.py
own_files: set[str] = set()
# The attribute of a configuration that holds what it was given, what its own checks made of that,
# the line that built it, and of each field that was assigned later the line.
_OWN = "_grposweep"


def watch_config(cls: Any, change: Callable[[Any], None]) -> None:
    """Have every object of a GRPO configuration changed by ``change`` before its own checks, and
    note what it was given.

    ``cls`` is TRL's class, or the base of all configurations: some programs derive a GRPOConfig of
    their own from it.
    """
    check = cls.__post_init__
    assign = cls.__setattr__

    def changed(self: Any) -> None:
        if is_watched(self) or not is_grpo(self):
            check(self)
            return
        change(self)
        # Plain values: the object is pickled into checkpoints and into spawned processes.
        noted = {"given": not_default(self, cls), "built": {}, "line": users_line(), "assigned": {}}
        vars(self)[_OWN] = noted
        check(self)
        noted["built"] = dict(fields_of(self))

    def assigned(self: Any, name: str, value: Any) -> None:
        if (noted := vars(self).get(_OWN)) is not None and name in noted["built"]:
            noted["assigned"][name] = users_line()
        assign(self, name, value)

    cls.__post_init__ = changed
    cls.__setattr__ = assigned


def is_grpo(config: Any) -> bool:
    """Return whether a configuration is one of GRPO, TRL's or a program's own."""
    return any("GRPO" in kind.__name__ for kind in type(config).__mro__)


def is_watched(config: Any) -> bool:
    """Return whether an object is a configuration of GRPO."""
    return hasattr(config, "__dict__") and _OWN in vars(config)


def line_of(config: Any, name: str) -> str:
    """Return the line that set a field last: a later assignment, or the one that built the
    configuration.
    """
    noted = vars(config)[_OWN]
    return str(noted["assigned"].get(name, noted["line"]))


def built_value(config: Any, name: str) -> Any:
    """Return a field as it was right after the configuration's own checks."""
    return vars(config)[_OWN]["built"].get(name)


def arguments_of(trainer: Any) -> dict[str, Any]:
    """Return the arguments of a trainer's constructor that a record names, from the trainer that
    was built.
    """
    names = ("model", "reward_funcs", "train_dataset", "eval_dataset")
    arguments = {name: getattr(trainer, name, None) for name in names}
    return {**arguments, "peft_config": getattr(arguments["model"], "peft_config", None)}


def describe(config: Any, trainer: Any, passed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a trainer that gets this configuration and these arguments of its
    constructor.
    """
    noted = vars(config)[_OWN]
    values = dict(fields_of(config))
    built = noted["built"]
    assigned = noted["assigned"]
    later = {name: values[name] for name in assigned if values[name] != built[name]}
    rewards = passed.get("reward_funcs") or []
    rewards = rewards if isinstance(rewards, (list, tuple)) else [rewards]
    named = list(map(_reward, rewards))
    read: dict[str, Any] = {}
    for name, given in named:
        shown = _public(given).items()
        read |= {f"{name}.{key}": value for key, value in shown if value != plain(values.get(key))}
    train, evaluation = (_rows(passed.get(name)) for name in ("train_dataset", "eval_dataset"))
    return {
        "trainer": _qualified(type(trainer)),
        "base": _base(type(trainer)),
        "config": _qualified(type(config)),
        "versions": dict(versions()),
        "line": noted["line"],
        "trainer_line": users_line(),
        "command": list(sys.orig_argv),
        "world_size": int(getattr(config, "world_size", 1)),
        "values": _public(values),
        "given": _public({**noted["given"], **later}),
        "assigned": {name: assigned[name] for name in later},
        "unknown": [],
        "model": _model(passed.get("model")),
        "rewards": [name for name, _ in named],
        "reward_values": read,
        "train_rows": train,
        "eval_rows": evaluation,
        "evaluates": passed.get("eval_dataset") is not None,
        "peft": passed.get("peft_config") is not None,
        "adapter": _adapter(passed.get("peft_config")),
    }


def _public(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields for JSON, without those that hold a secret, such as ``hub_token``."""
    shown = {name: plain(value) for name, value in values.items()}
    return {name: value for name, value in shown.items() if not [*secrets_in(name, value)]}


def fields_of(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields that a configuration's constructor takes, with their values."""
    for field in dataclasses.fields(config):
        if field.init:
            yield field.name, getattr(config, field.name, None)


def not_default(config: Any, cls: Any) -> dict[str, Any]:
    """Return the fields of a configuration whose values differ from the defaults of ``cls``, TRL's
    own class.

    A user's subclass has other defaults, and they count as set. Only for a field of its own its
    default counts.
    """
    defaults = {}
    for field in (*dataclasses.fields(config), *dataclasses.fields(cls)):
        made = field.default_factory
        defaults[field.name] = field.default if made is dataclasses.MISSING else made()
    return {name: value for name, value in fields_of(config) if value != defaults[name]}


def plain(value: Any) -> Any:
    """Return a value for JSON: of an enumeration its word, of an object that JSON does not have the
    name of its class.
    """
    if value is None or isinstance(value, (str, int, float, bool)):
        return getattr(value, "value", value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(map(plain, value))
    return getattr(value, "value", f"<{type(value).__name__}>")


def is_users(file: str) -> bool:
    """Return whether a file of Python code is the user's, and no library's."""
    return file in own_files or not (
        file.startswith(_HERE) or any(part in file for part in _LIBRARIES)
    )


def shown_path(file: str) -> str:
    """Return a file's path relative to the folder in which the program was started."""
    return os.path.relpath(os.path.join(_START, file), _START)  # noqa: PTH118 - pathlib has no such path in Python 3.11


def users_line() -> str:
    """Return the line of the user's files that is running; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _base(cls: type) -> str | None:
    """Return the trainer of TRL or Unsloth that a class is, or inherits from."""
    for one in cls.__mro__:
        if one.__name__ in TRAINERS and one.__module__.startswith(("trl.", "Unsloth")):
            return one.__name__
    return None


def versions() -> Iterator[tuple[str, str]]:
    """Yield the releases of the packages that are there."""
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            # a copy of its source
            if stated := getattr(sys.modules.get(name), "__version__", ""):
                yield name, str(stated)


def _rows(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, AttributeError):
        # None, or a stream
        return None


def _model(model: Any) -> str | None:
    name = model if isinstance(model, (str, Path)) else getattr(model, "name_or_path", None)
    return str(name) if name and isinstance(name, (str, Path)) else None


def _adapter(config: Any) -> dict[str, Any]:
    """Return the values of an adapter's configuration. A model holds its adapters' configurations
    by name.
    """
    config = next(iter(config.values()), None) if isinstance(config, Mapping) else config
    values = {name: plain(getattr(config, name, None)) for name in ADAPTER}
    return {
        name: value for name, value in values.items() if isinstance(value, (str, int, float, list))
    }


def _reward(reward: Any) -> tuple[str, dict[str, Any]]:
    """Return a reward's name, and the values that it reads from outside."""
    if isinstance(reward, str):
        return reward, {}
    if isinstance(reward, partial):
        name, read = _reward(reward.func)
        return name, read | reward.keywords
    named = getattr(getattr(reward, "config", None), "_name_or_path", None)
    if isinstance(named, str):
        return named, {}
    return str(getattr(reward, "__name__", type(reward).__name__)), _read_by(reward)


def _read_by(reward: Any) -> dict[str, Any]:
    """Return the numbers and texts that a reward function reads from outside: those of its own, of
    its closure and module, and of objects and mappings there, such as parsed arguments.
    """
    found = dict(getattr(reward, "__dict__", {}))
    names = _names_in(getattr(reward, "__code__", None))
    scopes: list[Any] = [getattr(reward, "__globals__", {})]
    # the user's objects may raise anything
    with suppress(Exception):
        scopes.append(inspect.getclosurevars(reward).nonlocals)
        for _ in range(DEEPEST_VALUE):
            inner: dict[str, Any] = {}
            for scope in scopes:
                attributes = scope if isinstance(scope, Mapping) else getattr(scope, "__dict__", {})
                inner |= {name: attributes[name] for name in names if name in attributes}
            found |= inner
            scopes = [*inner.values()]
    return {name: value for name, value in found.items() if isinstance(value, (int, float, str))}


def _names_in(code: Any) -> list[str]:
    """Return the names that code and its comprehensions read outside, and their texts, which may
    be keys.
    """
    names = [*getattr(code, "co_names", ()), *getattr(code, "co_freevars", ())]
    for part in getattr(code, "co_consts", ()):
        if isinstance(part, str):
            names.append(part)
        else:
            names += _names_in(part)
    return names
