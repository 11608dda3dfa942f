"""Trainers that are programs of their own, run as they are: a person's script, Open-R1, ms-swift, EasyR1, verl.

Adding one is a module with ``build(trial) -> Program`` and its line in ``PROGRAMS``; its recipes are read and written by its
framework's file in ``frameworks``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from grposweep.programs import ms_swift, script
from grposweep.programs.program import Program, Trial


@dataclass(frozen=True)
class Kind:
    """One such trainer: whose words its recipe has, and what starts it."""

    framework: str
    build: Callable[[Trial], Program]


PROGRAMS = {
    "script": Kind("trl", script.build),
    "open-r1": Kind("open-r1", script.build),  # its grpo.py takes TRL's configuration
    "ms-swift": Kind("ms-swift", ms_swift.build),
}


def is_program(kind: str) -> bool:
    """Whether a ``trainer.kind`` is a program of its own, which also starts its ranks itself."""
    return kind in PROGRAMS


def build_program(trial: Trial) -> Program:
    """What runs a trial on one node."""
    return PROGRAMS[trial.trainer.kind].build(trial)
