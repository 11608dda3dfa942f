"""Whether a trial's values are those that its trainer and its optimizer really have while they
train.

What a trainer copies from its arguments is read from the ``__init__`` of its classes, so it follows
each release of TRL. Sources: trl 1.16 trainer/grpo_trainer.py (``self.beta = args.beta``);
transformers 5.23 trainer.py (``on_optimizer_step`` is called before the scheduler's step).
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Set
from contextlib import suppress
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

from grposweep.command.inside.record import is_users, plain

# a rate that follows from the configuration's, such as {"lr": args.learning_rate / 8}
_MAKES_RATES = r"lr['\"]?\s*[=:][^,\n{]*\.learning_rate"


def find_changed_attribute(trainer: Any, args: Any, keys: Set[str]) -> str | None:
    """Name the first attribute that the trainer took from one of these arguments, and that has
    another value now; None if there is none.
    """
    for name, expression in _copies(trainer.__class__).items():
        fields = [node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)]
        # what cannot be compared, such as a tensor, is not judged
        with suppress(Exception):
            code = compile(ast.Expression(expression), "<copy>", "eval")
            wanted = eval(code, {"args": args})
            actual = getattr(trainer, name)
            if actual != wanted and not keys.isdisjoint(fields):
                return (
                    f"{fields[0]}={plain(getattr(args, fields[0]))} is this trial's, but the "
                    f"trainer's own {name} is {plain(actual)}: the script sets it after the "
                    f"trainer is built. Take that line out, or leave {fields[0]} out of the sweep."
                )
    return None


@cache
def _copies(cls: Any) -> dict[str, ast.expr]:
    """Return the attributes that TRL's classes always set from arguments alone."""
    copies: dict[str, ast.expr] = {}
    for kind in reversed(cls.__mro__):
        build = vars(kind).get("__init__")
        if not inspect.isfunction(build) or not kind.__module__.startswith("trl."):
            continue
        # without its source
        with suppress(OSError, SyntaxError):
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(build))).body
            copies.update(_assigned(tree))
    return copies


def _assigned(function: Any) -> Iterator[tuple[str, ast.expr]]:
    """Yield the attributes that statements of a function set, if ``args`` is all that they read."""
    for statement in function.body:
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=value
            ):
                names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
                if names == {"args"} and not isinstance(value, ast.Name):
                    yield name, value


def find_changed_rate(trainer: Any, optimizer: Any, scheduler: Any) -> str | None:
    """Say which rate a group of the optimizer had at the step that was just made, if it is not the
    schedule's; None if all are.
    """
    rates: list[float] = []
    scheduled: list[float] = []
    # some optimizers and schedulers have no such numbers
    with suppress(Exception):
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        scheduled = list(map(float, scheduler.get_last_lr()))
    for rate, wanted in zip(rates, scheduled, strict=False):
        if not isclose(rate, wanted, rel_tol=1e-6):
            owners = [trainer, *trainer.callback_handler.callbacks]
            names = [type(owner).__name__ for owner in owners if _sets_rates(type(owner))]
            return (
                f"the schedule's learning rate is {wanted:g}, but "
                f"{' or '.join(names) or 'the script'} trains with {rate:g}. Take that out, or "
                "leave lr out of the sweep."
            )
    return None


def _sets_rates(cls: type) -> bool:
    """Return whether a method that the user has written uses an optimizer's groups."""
    codes = [getattr(member, "__code__", None) for member in vars(cls).values()]
    return any(
        "param_groups" in code.co_names and is_users(code.co_filename)
        for code in codes
        if code is not None
    )


def find_own_rates(args: Any, optimizer: Any, is_resumed: bool) -> str | None:
    """Say if a trial's learning rate is that of no group of the optimizer, which the script or a
    checkpoint then decides; None if it is, or if the user's code makes rates of it.
    """
    rates = rates_of(optimizer)
    is_made = any(isclose(rate, args.learning_rate, rel_tol=1e-6) for rate in rates)
    if not rates or is_made or (not is_resumed and _makes_rates()):
        return None
    shown = ", ".join(f"{rate:g}" for rate in rates)
    what = (
        f"passes an optimizer with learning rate {shown} to its trainer. Make the optimizer with "
        "args.learning_rate."
    )
    if is_resumed:
        what = (
            f"resumes from a checkpoint whose optimizer has learning rate {shown}. Start from its "
            "model with a new optimizer, or leave lr out of the sweep."
        )
    return f"learning_rate={args.learning_rate} is this trial's, but the script {what}"


def _makes_rates() -> bool:
    """Return whether a module of the user's, and no copy of a library, makes rates of the
    configuration's.
    """
    for name, module in [*sys.modules.items()]:
        file: Any = getattr(module, "__file__", None)
        if not file or not is_users(file) or name.startswith(("trl.", "transformers.")):
            continue
        # in an archive, or gone
        with suppress(OSError):
            if re.search(_MAKES_RATES, Path(file).read_text(errors="replace")):
                return True
    return False


def rates_of(optimizer: Any) -> list[float]:
    """Return the rates with which an optimizer's groups begin, each once.

    torch's schedulers note them; DeepSpeed's own do not, and then there are none.
    """
    groups = getattr(optimizer, "param_groups", ())
    return sorted({float(group["initial_lr"]) for group in groups if "initial_lr" in group})
