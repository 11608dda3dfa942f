"""Describe in one sentence where the ranks of a silent trial are: which one the others wait for, where, and since when."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grporecipe.terminal import count
from grposweep.storage.records import RankStack

COLLECTIVES = "torch/distributed/distributed_c10d.py"
# Functions of TRL, transformers and ours, by what they are busy with. The innermost one that is known decides.
PHASES = {
    "generation": ("_generate", "_generate_single_turn", "generate", "chat"),
    "a reward function": ("_calculate_rewards", "__call__reward"),
    "the backward pass": ("backward", "_engine_run_backward"),
    "saving": ("_save_checkpoint", "save_model", "save_pretrained", "_save"),
    "syncing weights to vLLM": ("sync_weights", "_move_model_to_vllm", "update_named_param"),
    "loading": ("from_pretrained", "load_model", "load_data", "build_trainer", "build_config"),
    "the optimizer step": ("optimizer_step",),
    "evaluation": ("evaluate", "_evaluate"),
    "training": ("training_step", "compute_loss", "train"),
}
_PHASE = {function: phase for phase, functions in PHASES.items() for function in functions}
_FRAME = re.compile(r"(.*):(\d+) ([^ ]+)$", re.DOTALL)
OURS = "grposweep/train/rewards.py"


@dataclass(frozen=True)
class Place:
    """Where a rank is: the collective it waits in (empty: none), or what it is busy with and the innermost line."""

    collective: str
    phase: str
    line: str = ""


def place(frames: Sequence[str]) -> Place:
    """Return where a stack is; frames are ``file:line function``, the innermost last."""
    places = [match.groups() for frame in frames if (match := _FRAME.match(frame))]
    inside = [name for file, _, name in places if file.replace("\\", "/").endswith(COLLECTIVES) and name != "wrapper"]
    phases = ["a reward function" if file.endswith(OURS) else _PHASE.get(name, "") for file, _, name in places]
    phase = next((phase for phase in reversed(phases) if phase), "")
    if inside:
        return Place(inside[0], phase)
    if not places:
        return Place("", phase or "an unknown place")
    file, line, name = places[-1]
    return Place("", phase or name, f"{'/'.join(Path(file).parts[-2:])}:{line}")


def hang_sentence(trial: Path, now: float | None = None) -> str:
    """Return where a trial's silent ranks are; empty if none has written its stack. ``now``: clock time in seconds."""
    stacks = RankStack.read_all(trial)
    if not stacks:
        return ""
    groups: dict[Place, list[int]] = {}
    for stack in stacks:
        groups.setdefault(place(stack.frames), []).append(stack.rank)
    total = max(stack.ranks for stack in stacks)
    silent = [rank for rank in range(total) if rank not in {stack.rank for stack in stacks}]
    # The rank that the others wait for is in no collective; or it is in the collective that fewest are in.
    ordered = sorted(groups.items(), key=lambda item: (bool(item[0].collective), len(item[1])))
    step = max(stack.step for stack in stacks)
    parts = [_part(ranks, at, step, is_rest=bool(i) and i == len(ordered) - 1) for i, (at, ranks) in enumerate(ordered)]
    if silent:
        parts.insert(0, f"{_ranks(silent)} {'has' if len(silent) == 1 else 'have'} written no stack")
    since = (time.time() if now is None else now) - min(stack.since for stack in stacks)
    length = f"{since / 60:.0f} min" if since >= 60 else f"{max(since, 0):.0f} s"
    return f"{', '.join(parts)} for {length}"


def _part(ranks: Sequence[int], at: Place, step: int, is_rest: bool) -> str:
    who = "the others" if is_rest and len(ranks) > 1 else _ranks(ranks)
    verb = "waits" if len(ranks) == 1 else "wait"
    if at.collective:
        return f"{who} {verb} in {at.collective} after step {step}" + (f" ({at.phase})" if at.phase else "")
    return f"{who} {'is' if len(ranks) == 1 else 'are'} in {at.phase}" + (f" ({at.line})" if at.line else "")


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 4:
        return count(len(ranks), "rank")
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
