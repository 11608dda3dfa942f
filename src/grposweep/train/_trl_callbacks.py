"""Our side of transformers' training loop: lines of metrics, the heartbeat, and when to evaluate,
save and stop.

Each optimizer step reports where its time went, tokens per second, peak memory, and how far it
moved the weights. EasyR1's guide to stable training recommends that last number in addition to the
gradient norm: AdamW divides the gradient's size away, and in bfloat16 a small learning rate may
move nothing at all.
"""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from grporecipe.files import Json
from grposweep.schema.running import KEEPS_LAST
from grposweep.train._vllm import StaleWeightsGuard
from grposweep.train.attempt import Attempt
from grposweep.train.callback import BoundaryCallback, broadcast_any

GIB = 2**30


class Stopwatch:
    """Seconds of generation and scoring; training is the rest of a step. Evaluations are left out.

    Clocks are the host's: kernels are queued, and counted when the host waits for them. Generation
    waits at its end.
    """

    def __init__(self) -> None:
        self._seconds = {"generation": 0.0, "scoring": 0.0}
        self._lap = self._start = time.perf_counter()
        self._first_tokens: int | None = None

    def begin(self, tokens: int) -> None:
        """The first time: training begins, or resumes from a checkpoint with so many tokens behind
        it.
        """
        if self._first_tokens is None:
            self._first_tokens = tokens
            self._lap = self._start = time.perf_counter()

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count what happens as one part, and as no other: generation lies within scoring."""
        before = time.perf_counter()
        within = sum(self._seconds.values())
        try:
            yield
        finally:
            others = sum(self._seconds.values()) - within
            self._seconds[part] += time.perf_counter() - before - others

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out what happens."""
        before = time.perf_counter()
        seconds = dict(self._seconds)
        try:
            yield
        finally:
            lost = time.perf_counter() - before
            self._lap, self._start, self._seconds = self._lap + lost, self._start + lost, seconds

    def read(self, tokens: int) -> dict[str, float]:
        """The step since the last reading: shares of its time, tokens of all ranks per second so
        far, GiB at the peak.

        ``tokens`` have been generated so far, those of prompts among them.
        """
        now = time.perf_counter()
        step = max(now - self._lap, 1e-9)
        so_far = max(now - self._start, 1e-9)
        shares = {part: min(seconds / step, 1.0) for part, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._lap = now
        return {
            "time/step": step,
            **{f"time_share/{part}": share for part, share in shares.items()},
            "time_share/training": max(1.0 - sum(shares.values()), 0.0),
            "tokens_per_second": (tokens - (self._first_tokens or 0)) / so_far,
            "memory/peak": peak_gib(),
        }


def peak_gib() -> float:
    """Return the peak memory of this process in GiB: reserved GPU memory, or without a GPU its
    resident memory.
    """
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_reserved() / GIB)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


# weights looked at, of all: enough for a norm to a percent or two
SAMPLED = 1 << 16


@dataclass
class Sample:
    """A regular sample of the trainable weights, as they were when last looked at."""

    every: int
    _before: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    # Found once: the walk over a model and a view of each weight cost more than what is done with
    # them.
    _trained: list[torch.nn.Parameter] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)
    _views: list[torch.Tensor] = field(default_factory=list)

    def take(self, model: torch.nn.Module) -> None:
        """Remember the weights; a sharded rank's own part of them."""
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._before = self._look()

    def change(self) -> float | None:
        """|after - before| / |before| over the sample, and remember the new weights; None if
        there are none.
        """
        before = self._before
        self._before = self._look()
        if not len(before):
            return None
        size = torch.linalg.vector_norm(before)
        moved = torch.linalg.vector_norm(before.sub_(self._before))
        return float(moved / size.clamp_min(torch.finfo(torch.float32).tiny))

    def _look(self) -> torch.Tensor:
        """A copy of the weights as they are now."""
        parts = list(map(own_part, self._trained))
        places = [part.data_ptr() for part in parts]
        # the first time, or weights were moved
        if places != self._places:
            self._places, self._views = (
                places,
                [part.detach().reshape(-1)[:: self.every] for part in parts],
            )
        return torch.cat(self._views).float() if self._views else torch.empty(0)


def own_part(weight: torch.nn.Parameter) -> torch.Tensor:
    """Return this rank's part of a weight. Any operation on a weight that FSDP has divided waits
    for the other ranks.
    """
    if isinstance(weight, DTensor):
        return weight.to_local()
    # of ZeRO-3, whose weights are empty between uses
    divided = getattr(weight, "ds_tensor", None)
    return weight if divided is None else divided


class UpdateNormCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """``value`` is the relative size of the last optimizer step's update, on rank 0."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._sample: Sample | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any
    ) -> None:
        # The checkpoint is loaded by now. Later is too late: DeepSpeed takes its steps inside the
        # backward pass.
        if state.is_world_process_zero:
            model = known["model"]
            weights = sum(own_part(p).numel() for p in model.parameters() if p.requires_grad)
            self._sample = Sample(every=max(weights // SAMPLED, 1))
            self._sample.take(model)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._sample is not None:
            self.value = self._sample.change()


class TrialControlCallback(BoundaryCallback):
    """Decides at every optimizer step; all ranks decide alike, rank 0 writes."""

    def __init__(self, attempt: Attempt, updates: UpdateNormCallback) -> None:
        self.attempt = attempt
        self.updates = updates
        # optimizer step of the last checkpoint
        self.saved = 0
        # and when it was written, or when this attempt began to train
        self.saved_at = time.monotonic()
        self.guard = StaleWeightsGuard(attempt.experiment.generation.vllm_mode)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.saved, self.saved_at = state.global_step, time.monotonic()
        if state.is_world_process_zero:
            self.guard.begin(self.attempt.metrics.lines())

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        step = state.global_step
        attempt = self.attempt
        last = step >= attempt.total
        if step in attempt.plan.evaluation_steps:
            control.should_evaluate = True
        if not last and attempt.pace.is_boundary(step):
            is_wanted = self.stop_if_asked(
                attempt.asks_to_stop(step), args, control
            ) or self._is_due(step)
            control.should_save = is_wanted or self._is_late(args)
        elif last:
            control.should_save = attempt.experiment.trainer.keep in KEEPS_LAST
        self.beat(state)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.saved, self.saved_at = state.global_step, time.monotonic()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Json | None = None,
        **_: Any,
    ) -> None:
        # Evaluations are written by the trainer, which knows every prompt's reward; and
        # train_runtime's line, the summary at the end, holds nothing but times.
        if logs and "loss" in logs:
            self.attempt.log(
                "train", state.global_step, {**logs, "update_size": self.updates.value}
            )
            # which alone reads and writes metrics; the launcher ends the other ranks
            if state.is_world_process_zero:
                self.guard.check(logs)

    def _is_due(self, step: int) -> bool:
        """Whether a multiple of save_steps has passed since the last checkpoint (it may not have
        been a boundary).
        """
        every = self.attempt.plan.save_steps
        return every is not None and every > 0 and step // every > self.saved // every

    def _is_late(self, args: TrainingArguments) -> bool:
        """Whether the last checkpoint is ``schedule.checkpoint_minutes`` old on any rank; all save
        together.
        """
        minutes = self.attempt.experiment.schedule.checkpoint_minutes
        # which would keep every one
        if minutes is None or self.attempt.experiment.trainer.keep == "all":
            return False
        return broadcast_any(
            time.monotonic() - self.saved_at >= minutes * 60, args.world_size, args.device
        )

    def beat(self, state: TrainerState) -> None:
        self.attempt.beat(state.global_step)
