"""Correct the estimate of a phase by the peaks that trials logged: in one sweep and, with a local
file, across sweeps.

A trial logs one peak. It is attributed to the phase that the estimate takes for the largest. The
largest ratio is used, not the mean: a point that fails costs more than a point that is left out.
"""

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grporecipe.files import Config, Json, append_line, read_lines
from grporecipe.memory.estimate import GIB, Memory
from grporecipe.model.setting import Setting

# bounds of the correction: beyond them the peak measures something else
SMALLEST, LARGEST = 0.7, 1.5
# the environment variable with the local file; without it sweeps share nothing
VARIABLE = "GRPOSWEEP_MEMORY_FILE"
PACKAGES = ("torch", "transformers", "trl", "vllm")
SHAPE = {"seen_gib": float, "estimate_gib": float, "phase": str}


def find_factors(lines: Iterable[Config]) -> dict[str, tuple[float, int]]:
    """Return for each measured phase the largest ratio of measured to estimated, within bounds, and
    its trial.
    """
    factors: dict[str, tuple[float, int]] = {}
    for line in lines:
        if line["estimate_gib"] > 0:
            ratio = min(max(line["seen_gib"] / line["estimate_gib"], SMALLEST), LARGEST)
            factors[line["phase"]] = max(
                factors.get(line["phase"], (0.0, 0)), (ratio, int(line.get("trial", 0)))
            )
    return factors


def find_trial_too_large(
    memory: Memory, factors: Mapping[str, tuple[float, int]], limit: float
) -> int | None:
    """Return the trial whose peak shows that a point exceeds the limit in bytes; None if the point
    fits by all peaks.

    A phase that was never measured is judged by the estimate alone.
    """
    for phase, size in memory.phases.items():
        factor = factors.get(phase)
        if factor is not None and size * factor[0] > limit:
            return factor[1]
    return None


def share(s: Setting, line: Config) -> None:
    """Append a measured peak to the local file, with its GPU and package versions. Without a file,
    do nothing.
    """
    if path := _shared_file():
        append_line(path, {**line, "on": _place(s)})


def calibrate(s: Setting) -> Setting:
    """Correct a setting's estimate by the local file's peaks for the same GPU and package
    versions.
    """
    path = _shared_file()
    if path is None:
        return s
    place = _place(s)
    factors = find_factors(
        line for line in read_lines(path, **SHAPE, on=dict) if line["on"] == place
    )
    return s.replace(
        {"memory_factors": tuple((phase, ratio) for phase, (ratio, _) in sorted(factors.items()))}
    )


def peak_line(memory: Memory, seen_gib: float) -> Json:
    """Return the record of a trial's peak in GiB, with the phase that the estimate takes for the
    largest.
    """
    return {"seen_gib": seen_gib, "estimate_gib": memory.peak / GIB, "phase": memory.peak_phase}


def _shared_file() -> Path | None:
    name = os.environ.get(VARIABLE)
    if name:
        return Path(name)
    return None


def _place(s: Setting) -> Json:
    """Return the conditions of a peak: the framework, the GPU's memory and the installed
    packages.
    """
    packages = {name: _version(name) for name in PACKAGES}
    return {"framework": s.framework.name, "gpu_memory_gib": s.gpu_memory_gib, **packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
