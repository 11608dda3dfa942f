"""Where a step's time goes, how many tokens a second come out, and the memory at its peak: one reading an optimizer step."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

GIB = 2**30


class Stopwatch:
    """Seconds of generation and scoring; training is the rest of a step. Evaluations are left out.

    Clocks are the host's: kernels are queued, and counted where the host waits for them. Generation waits at its end.
    """

    def __init__(self) -> None:
        self._seconds = {"generation": 0.0, "scoring": 0.0}
        self._lap = self._start = time.perf_counter()
        self._first_tokens: int | None = None

    def begin(self, tokens: int) -> None:
        """The first time: training begins, or goes on from a checkpoint with so many tokens behind it."""
        if self._first_tokens is None:
            self._first_tokens = tokens
            self._lap = self._start = time.perf_counter()

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count what happens as one part, and as no other: generation lies within scoring."""
        before, within = time.perf_counter(), sum(self._seconds.values())
        try:
            yield
        finally:
            others = sum(self._seconds.values()) - within
            self._seconds[part] += time.perf_counter() - before - others

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out what happens."""
        before, seconds = time.perf_counter(), dict(self._seconds)
        try:
            yield
        finally:
            lost = time.perf_counter() - before
            self._lap, self._start, self._seconds = self._lap + lost, self._start + lost, seconds

    def read(self, tokens: int) -> dict[str, float]:
        """The step since the last reading: shares of its time, tokens of all ranks a second so far, GiB at the peak.

        ``tokens`` have been generated so far, those of prompts among them.
        """
        now = time.perf_counter()
        step, so_far = max(now - self._lap, 1e-9), max(now - self._start, 1e-9)
        shares = {part: min(seconds / step, 1.0) for part, seconds in self._seconds.items()}
        self._seconds, self._lap = dict.fromkeys(self._seconds, 0.0), now
        return {
            "time/step": step,
            **{f"time/{part}": share for part, share in shares.items()},
            "time/training": max(1.0 - sum(shares.values()), 0.0),
            "tokens_per_second": (tokens - (self._first_tokens or 0)) / so_far,
            "memory/peak": peak_gib(),
        }


def peak_gib() -> float:
    """What this process has reserved at most so far, in GiB: of its GPU, or without one its resident memory."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_reserved() / GIB)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
