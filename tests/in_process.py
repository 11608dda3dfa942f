"""Whole sweeps in this process, so that a test can bring its own way of stopping early."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from command_server import share_warm_server
from grposweep.cli.composed import composer
from grposweep.config.compose import open_session
from grposweep.config.points import Points
from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, State, StoppingPolicy
from grposweep.search.parse import parse_space, split_tokens
from grposweep.sweep import _start as start
from grposweep.sweep import run
from grposweep.sweep.validate import validate_sweep

Sweep = Callable[..., Path]


def sweeps_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """``sweep("lr=1e-3,2e-3", ..., stopping=...)``: from its words to its folder."""
    monkeypatch.chdir(folder)
    share_warm_server(monkeypatch)

    def made(*arguments: str, stopping: Any = None) -> Path:
        if stopping is not None:
            monkeypatch.setattr(start, "build_policy", lambda *_: stopping)
        with open_session() as session:
            space, fixed = parse_space(list(split_tokens(list(arguments))), {}, session.loader)
            points = Points(composer(session.loader, "config"), fixed)
            run.run_sweep(validate_sweep(space, points, fixed), fixed, "s")
        name = next(word for word in arguments if word.startswith("name="))
        return folder / "outputs" / name.removeprefix("name=")

    return made


class Waits(StoppingPolicy):
    """Acts on trials of these learning rates at their first evaluation; promotes a paused one when
    nothing else is left.
    """

    def __init__(
        self, on_promotion: Callable[[int], None], actions: Mapping[float, Action] | None = None
    ) -> None:
        self.on_promotion = on_promotion
        self.actions = actions or {2e-3: Action.PAUSE}
        self.asked: set[int] = set()

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        action = self.actions.get(curve.point["lr"])
        if action is None or curve.number in self.asked:
            return CONTINUE
        self.asked.add(curve.number)
        return Decision(action, "let others try")

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        paused = [curve.number for curve in curves if curve.state is State.PAUSED]
        if more or not paused:
            return None
        self.on_promotion(paused[0])
        return paused[0]
