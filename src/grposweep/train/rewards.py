"""The rewards of a completion: built-in ones, and the user's by name, all behind one checked call.

A reward has TRL's signature: ``f(prompts, completions, **columns) -> list[float]``, one number a
completion.
"""

import ast
import asyncio
import importlib
import importlib.util
import inspect
import json
import linecache
import re
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from itertools import chain, product
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.files import Config, Json, read_json, write_text
from grposweep.process import SpawnedProcesses
from grposweep.schema import Task
from grposweep.storage.inputs import hidden_files, original_path, user_folders

Function = Callable[..., Sequence[float | None]]


class RewardError(Exception):
    """A reward function raised, or returned something that is not one number a completion."""


Turns = list[Json]


def text_of(completion: str | Turns) -> str:
    """Return the text that is judged: of several turns the last one's."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"] or "")


def exact(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Return 1 if the stripped completion is the answer, else 0."""
    return [
        float(text_of(completion).strip() == gold.strip())
        for completion, gold in zip(completions, answer, strict=True)
    ]


def math(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Return 1 if math-verify finds the completion's last expression equal to the answer, else
    0.
    """
    return [
        _verify(text_of(completion), gold)
        for completion, gold in zip(completions, answer, strict=True)
    ]


def format(completions: list[Any], **_: Any) -> list[float]:
    """Return 1 if the completion is <think> and <answer>, each on lines of its own, as Open-R1
    requires.
    """
    pattern = re.compile(
        r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$", re.DOTALL | re.MULTILINE
    )
    return [float(bool(pattern.match(text_of(completion)))) for completion in completions]


BUILT_IN: dict[str, Function] = {"exact": exact, "math": math, "format": format}


def _verify(text: str, gold: str) -> float:
    # at its only use: it loads sympy, half a second
    from math_verify import parse, verify

    # math-verify bounds its work with SIGALRM, which only a main thread may set.
    seconds = 5 if threading.current_thread() is threading.main_thread() else None
    try:
        wanted = parse(gold, parsing_timeout=seconds) or parse(f"${gold}$", parsing_timeout=seconds)
        return float(verify(wanted, parse(text, parsing_timeout=seconds), timeout_seconds=seconds))
    except Exception:  # noqa: BLE001 - a model's text goes through two parsers and sympy: a text that breaks them is not the answer
        return 0.0


# rows whose answers `math` is tried on
EXTRACTED = 100
# ways to write an answer
FORMS = ("%s", "$%s$", r"\boxed{%s}")


def find_unearnable(rewards: Sequence[str], answers: Sequence[str]) -> Iterator[str]:
    """Say if ``math`` finds none of the first answers, in none of the ways to write one."""
    pairs = product(answers[:EXTRACTED], FORMS)
    if "math" in rewards and not any(_verify(form % answer, answer) for answer, form in pairs):
        yield (
            f"task.rewards has math, which finds none of the first answers (such as "
            f"{answers[0][:40]!r}) in a completion, so it would always be 0. Set "
            "task.rewards=[exact], or another task.answer_column."
        )


@dataclass
class Reward:
    """One reward as TRL calls it, with a checked result. Errors name the function and its file."""

    spec: str
    function: Function
    # the task has no other
    is_only: bool = False

    def __post_init__(self) -> None:
        self.__name__ = self.spec.rpartition(":")[2]
        parameters = inspect.signature(self.function).parameters.values()
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        # A reward may name just the columns that it reads; TRL itself would pass it all of them.
        self._names = None if takes_all else {parameter.name for parameter in parameters}

    def __call__(
        self, prompts: list[Any], completions: list[Any], **columns: Any
    ) -> list[float | None]:
        given = {"prompts": prompts, "completions": completions, **columns}
        # Editing in place must change nothing for the next reward. TRL's callables and its state
        # stay what they are.
        arguments = {}
        for name, value in given.items():
            if self._names is None or name in self._names:
                arguments[name] = deepcopy(value) if isinstance(value, list) else value
        self._check_columns(columns)
        try:
            values = self.function(**arguments)
            if inspect.iscoroutine(values):
                values = asyncio.run_coroutine_threadsafe(values, _loop()).result()
        except Exception as error:
            raise RewardError(
                f"{self._where()} raised {type(error).__name__}: {error}{user_frame(error)}. "
                f"Correct it there. {self._given(columns)}.{_turns_note(error, completions)}"
            ) from error
        return self._check(values, completions)

    def _check_columns(self, columns: Config) -> None:
        """Raise RewardError for a parameter without default that the data have no column for."""
        given = {"prompts", "completions", *columns}
        needed = (
            p for p in inspect.signature(self.function).parameters.values() if p.default is p.empty
        )
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        if missing := [p.name for p in needed if p.kind in kinds and p.name not in given]:
            raise RewardError(
                f"{self._where()} takes {', '.join(missing)}. {self._given(columns)}. Rename the "
                "parameter, give it a default, or add the column to the data."
            )

    def _check(self, values: Any, completions: list[Any]) -> list[float | None]:
        try:
            numbers = [None if value is None else _number(value) for value in values]
        except (TypeError, ValueError) as error:
            raise RewardError(
                f"{self._where()} returned {_short(values)}, no list of numbers. "
                f"{self._asked(completions)}"
            ) from error
        if self.is_only and numbers and all(number is None for number in numbers):
            raise RewardError(
                f"{self._where()} returned only None, for {len(numbers)} completions, and there "
                "is no other reward: "
                "nothing would be learnt. Return a number for those that can be judged."
            )
        if len(numbers) != len(completions):
            raise RewardError(
                f"{self._where()} returned {len(numbers)} values for {len(completions)} "
                f"completions: {_short(values)}. {self._asked(completions)}"
            )
        for row, number in enumerate(numbers):
            if number is not None and not isfinite(number):
                raise RewardError(
                    f"{self._where()} returned {number} for row {row}, completion "
                    f"{_short(text_of(completions[row]))}. "
                    "Return a finite number, or None for one that cannot be judged."
                )
        return numbers

    def _where(self) -> str:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        path, colon, name = self.spec.rpartition(":")
        spec = f"{original_path(path)}{colon}{name}" if path.endswith(".py") else self.spec
        source = original_path(code.co_filename) if code else "no source file"
        return f"task.rewards: {spec} ({source})"

    def _given(self, columns: Config) -> str:
        return f"It gets prompts, completions, and the data's columns {', '.join(sorted(columns))}"

    def _asked(self, completions: list[Any]) -> str:
        return (
            f"Return one number a completion, here {len(completions)} (None for one that "
            "cannot be judged)."
        )


def _turns_note(error: Exception, completions: list[Any]) -> str:
    """Return how to read the text of a conversation if a reward may have taken it for text; empty
    otherwise.
    """
    if not isinstance(error, TypeError | AttributeError) or all(
        isinstance(text, str) for text in completions
    ):
        return ""
    return (
        " Here a completion is a list of messages: read its text as "
        'completions[i][0]["content"]. If the prompts are text in the '
        "data, task.chat=false gives text instead."
    )


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all async rewards, in a thread of its own, as in TRL: clients of a
    server keep theirs.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


# rows that a reward is called with before anything trains
TRIED = 2


def try_rewards(rewards: Iterable[Reward], rows: Sequence[Config]) -> list[str]:
    """Call rewards as TRL does, on a few rows with their answers as completions. Return a note for
    each that keeps a state.

    Raises UserError for one that fails.
    """
    notes = []
    chat = not isinstance(rows[0]["prompt"], str)
    completions = [row["answer"] for row in rows]
    if chat:
        completions = [[{"role": "assistant", "content": answer}] for answer in completions]
    columns = {name: [row.get(name) for row in rows] for name in rows[0] if name != "prompt"}
    extras = {
        "completion_ids": [[0]] * len(rows),
        "trainer_state": None,
        "log_extra": _ignore,
        "log_metric": _ignore,
    }
    for reward in rewards:
        before = _state_of(reward.function)
        try:
            reward(
                prompts=[row["prompt"] for row in rows],
                completions=completions,
                **columns,
                **extras,
            )
        except RewardError as error:
            raise UserError(f"{error}{hidden_note(reward.spec)}") from error
        changed = dict(sorted(_state_of(reward.function).items() - before.items()))
        if changed:
            notes.append(
                f"task.rewards: {reward.spec} changes {', '.join(changed)} when it is called, "
                "which no checkpoint holds. After "
                "a pause or an interruption it begins with its first value again."
            )
    return notes


# types of variables in which a reward keeps a state
STATES = (bool, int, float, str, list, dict, set, deque)
# of a variable that is compared: data that a module has read are larger
MOST_ITEMS = 10_000


def _state_of(function: Function) -> dict[str, str]:
    """Return the plain variables of a reward: the attributes of an object, and what the module of
    its code holds.
    """
    called = function if inspect.isroutine(function) else type(function).__call__
    named: Json = {}
    if called not in BUILT_IN.values():
        named |= getattr(called, "__globals__", {})
    if called is not function:
        own = getattr(function, "__dict__", {})
        named |= {f"self.{name}": value for name, value in own.items()}
    return {
        n: repr(v)
        for n, v in named.items()
        if isinstance(v, STATES)
        and not n.startswith("__")
        and (not hasattr(v, "__len__") or len(v) <= MOST_ITEMS)
    }


def _ignore(*_: Any) -> None:
    """Stand in for TRL's log_extra and log_metric while there is no log."""


def try_early(request: Path) -> None:
    """Try the rewards of a file that `early_problems` wrote, and write what is wrong next to it."""
    asked = read_json(request) or {}
    task = Task(rewards=asked["rewards"])
    problem = ""
    sys.path += map(str, user_folders(task.rewards))
    for rows in asked["forms"]:
        try:
            try_rewards(load_rewards(task), rows)
            return
        except UserError as error:
            problem = str(error)
    write_text(request.with_suffix(".problem"), problem)


def early_problems(rewards: Sequence[str], forms: Sequence[Sequence[Config]]) -> Iterator[str]:
    """Say why the user's own rewards fail on these rows: in a process of their own that imports no
    torch by itself.

    Each of ``forms`` holds the same rows as they may reach a reward. A reward has to fail on all of
    them. What takes long, and columns that are no plain values, are left to preparation.
    """
    if BUILT_IN.keys() >= set(rewards):
        return
    for name, value in chain.from_iterable(row.items() for row in chain(*forms)):
        if name != "prompt" and not isinstance(value, str | int | float | None):
            return
    processes = SpawnedProcesses()
    with TemporaryDirectory(prefix="grposweep-rewards-") as folder, closing(processes):
        request = Path(folder) / "request.json"
        write_text(request, json.dumps({"rewards": list(rewards), "forms": forms}))
        pid = processes.start(["rewards", str(request)], {}, Path(folder) / "log")
        if (
            processes.poll(pid, timeout=EARLY_SECONDS) is not None
            and (said := request.with_suffix(".problem")).exists()
        ):
            yield said.read_text(encoding="utf-8")


EARLY_SECONDS = 10.0
# local variables of the frame that raised
SHOWN_VALUES = 6
_LIBRARY = r"/(?:site-packages|dist-packages|lib/python3[\d.]*)/|^<|/grposweep/train/"


def user_frame(error: BaseException) -> str:
    """Return where the user's own code raised an exception, with the values that it worked on;
    empty if it did not.
    """
    own = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not re.search(_LIBRARY, frame.f_code.co_filename)
    ]
    if not own:
        return ""
    frame, line = own[-1]
    file = frame.f_code.co_filename
    values = [
        pair
        for pair in frame.f_locals.items()
        if isinstance(pair[1], str | int | float | None | list | dict)
    ]
    values.sort(key=lambda pair: isinstance(pair[1], list | dict))
    shown = ", ".join(f"{name}={_short(value)}" for name, value in values[:SHOWN_VALUES])
    where = f"{original_path(file)}, line {line} ({linecache.getline(file, line).strip()[:80]})"
    return f", in {where} with {shown}" if shown else f", in {where}"


def _number(value: Any) -> float:
    """Return a reward as a number. Raises TypeError for text, also if it could be read as a
    number.
    """
    if isinstance(value, str | bytes):
        raise TypeError(f"{value!r} is text")
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def load_rewards(task: Task) -> list[Reward]:
    """Return the rewards of a task, in its order."""
    if not task.rewards:
        raise UserError(
            "task.rewards is empty: nothing would be learnt. Set "
            f"task.rewards=[{'|'.join(BUILT_IN)}]."
        )
    return [replace(load_reward(spec), is_only=len(task.rewards) == 1) for spec in task.rewards]


def load_reward(spec: str) -> Reward:
    """Load a built-in by name, ``package.module:function``, or ``path/to/file.py:function`` (from
    the working directory).
    """
    return Reward(spec, BUILT_IN.get(spec) or _load(spec))


def _load(spec: str) -> Callable[..., Any]:
    refuse_mistakes(code_problems(spec))
    path, _, name = spec.rpartition(":")
    function: Callable[..., Any] | None = getattr(_load_module(spec, path), name, None)
    if not callable(function):
        advice = hidden_note(spec) or " Set the name of one it has."
        raise UserError(f"task.rewards holds {spec}, but {path} has no function {name}.{advice}")
    return function


def hidden_note(spec: str) -> str:
    """Return what is to be said of files that a package hides from the user's code; they may be why
    it fails.
    """
    path, _, name = spec.rpartition(":")
    if path:
        spec = f"{original_path(path)}:{name}"
    return "".join(f" {sentence}" for sentence in hidden_files(spec))


def code_problems(spec: str) -> Iterator[str]:
    """Say why a reward cannot be loaded, as far as its source tells without running it."""
    source, colon, name = spec.rpartition(":")
    if spec in BUILT_IN:
        return
    if not colon or not source or not name:
        yield (
            f"task.rewards holds {spec}, which is no built-in reward ({', '.join(BUILT_IN)}) and "
            f"names no function.{_suggestion(spec, BUILT_IN)} Set package.module:function or "
            "path/to/file.py:function."
        )
        return
    if not source.endswith(".py"):
        # installed, or found from the working directory when it is imported
        return
    path = Path(source).resolve()
    if not path.is_file():
        yield (
            f"task.rewards holds {spec}: there is no file {path}. Set the path of one that exists."
        )
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        yield (
            f"task.rewards holds {spec}, but importing {source} raised {type(error).__name__}: "
            f"{error}. Set a module that can be imported from the working directory."
        )
        return
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    defined = {node.name: node for node in tree.body if isinstance(node, kinds)}
    if isinstance(defined.get(name), ast.ClassDef):
        yield (
            f"task.rewards holds {spec}, a class, and a reward is a function or an object that "
            "can be called. Write "
            f"{name.lower()} = {name}() in {source}, and set {source}:{name.lower()}."
        )
    names = _names_in(tree)
    if names is not None and name not in names:
        suggestion = (
            _suggestion(name, defined) or f" Set one of {', '.join(defined) or 'another file'}."
        )
        yield f"task.rewards holds {spec}, but {source} has no function {name}.{suggestion}"


def _names_in(tree: ast.Module) -> set[str] | None:
    """Return all names in a module; None if it may have others, because it imports all of another
    or makes its own.
    """
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return None if names & {"*", "globals", "setattr", "exec", "__getattr__"} else names


def _suggestion(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _load_module(spec: str, source: str) -> ModuleType:
    try:
        if not source.endswith(".py"):
            return importlib.import_module(source)
        path = Path(source).resolve()
        module_spec = importlib.util.spec_from_file_location(f"grposweep_reward_{path.stem}", path)
        # a .py file always has a loader
        assert module_spec is not None
        assert module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(module)
        return module
    except Exception as error:
        # the user's module may raise anything while it is imported
        raise UserError(
            (
                f"task.rewards holds {spec}, but importing {source} raised {type(error).__name__}: "
                f"{error}."
            )
            + (
                hidden_note(spec)
                or " Set a module that can be imported from the working directory."
            )
        ) from error
