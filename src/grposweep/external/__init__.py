"""Trainers that are programs of their own, run as they are: a person's script, Open-R1, ms-swift, EasyR1, verl.

Adding one is a module with ``build(trial) -> Program`` and its line in ``PROGRAMS``; its recipes are read and written by its
framework's file in ``frameworks``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from grposweep.external import ms_swift, script
from grposweep.external import ray as on_ray
from grposweep.external.base import ExternalProgram, Trial


@dataclass(frozen=True)
class Kind:
    """One such trainer: whose words its recipe has, what starts it, and which key says where it writes."""

    framework: str
    build: Callable[[Trial], ExternalProgram]
    output: str = "output_dir"


PROGRAMS = {
    "script": Kind("trl", script.build),
    "open-r1": Kind("open-r1", script.build),  # its grpo.py takes TRL's configuration
    "ms-swift": Kind("ms-swift", ms_swift.build),
    "easyr1": Kind("easyr1", on_ray.build_easyr1, "trainer.save_checkpoint_path"),
    "verl": Kind("verl", on_ray.build_verl, "trainer.default_local_dir"),
}


def build_program(trial: Trial) -> ExternalProgram:
    """What runs a trial on one node."""
    return PROGRAMS[trial.trainer.kind].build(trial)
