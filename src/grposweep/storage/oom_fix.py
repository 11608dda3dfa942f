"""What a trial's further attempts run instead of its configuration, after one ran out of GPU memory; the trial stays the same."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from grposweep.files import read_json, write_json
from grposweep.schema import Experiment

NAME = "healed.json"  # in a trial folder


def write_healed(folder: Path, batch: Mapping[str, int], why: str, attempt: int) -> None:
    """Keep the sizes of ``batch`` that attempts after this one are to use."""
    write_json(folder / NAME, {"batch": dict(batch), "why": why, "attempt": attempt})


def is_healed(folder: Path, attempt: int) -> bool:
    """Whether that has happened before this attempt; after it, by a controller that died at it, does not count."""
    found = read_json(folder / NAME)
    return found is not None and found.get("attempt") != attempt


def load_healed(folder: Path, experiment: Experiment) -> Experiment:
    """The experiment as the trial's next attempt runs it."""
    found = read_json(folder / NAME)
    return experiment if found is None else replace(experiment, batch=replace(experiment.batch, **found["batch"]))
