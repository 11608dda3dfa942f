"""Write a trial's folder before its first attempt: everything needed to run the trial, and to repeat it."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grposweep.config.base_recipe import write_program
from grposweep.config.compose import render_experiment
from grposweep.config.identity import experiment_id
from grposweep.cost import find_work
from grposweep.files import PROJECT, text_sha256, write_json, write_text
from grposweep.memory.estimate import memory_gib
from grposweep.plan import build_plan
from grposweep.redaction import redact
from grposweep.schema import is_external
from grposweep.search.validity import ValidationResult
from grposweep.setting import Setting
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.records import TrialRecord


def write_trial(
    sweep: SweepFolder,
    number: int,
    verdict: ValidationResult,
    overrides: list[str],
    values: Mapping[str, Any],
    provenance: dict[str, Any],
    attributes: Mapping[str, Any] | None = None,
) -> TrialFolder:
    """Write a trial's folder; ``config.yaml`` last, so that a folder which has one is complete. Idempotent.

    ``attributes`` are the trial's in the study, which can be rebuilt from trial.json (sweep/recovery.py).
    """
    identity = experiment_id(verdict.experiment, verdict.setting)
    folder = sweep.trial(number, identity)
    if (folder.path / paths.CONFIG).exists():
        return folder
    folder.path.mkdir(parents=True, exist_ok=True)
    point_overrides = [f"{name}={override_text(value)}" for name, value in values.items()]
    config = render_experiment(verdict.experiment)
    attributes = {"experiment": identity, **(attributes or {})}
    TrialRecord(verdict.point, attributes, text_sha256(config), number).write(folder.path)
    write_json(folder.path / paths.PLAN, _plan(verdict.setting))
    write_text(
        folder.path / paths.OVERRIDES, "".join(f"- {json.dumps(redact(o))}\n" for o in [*overrides, *point_overrides])
    )
    seeds = {"seed": verdict.experiment.seed, "search.seed": verdict.experiment.search.seed}
    write_json(folder.path / paths.PROVENANCE, {**provenance, "seeds": seeds})
    command = [sys.executable, str(PROJECT / "src" / "run.py"), *_repeatable(overrides), *point_overrides]
    text = f"#!/bin/sh\n# Repeats this trial as a run of its own.\ncd {shlex.quote(str(Path.cwd()))}\n{shlex.join(command)}\n"
    write_text(folder.path / paths.COMMAND, redact(text))
    if is_external(verdict.experiment.trainer.kind):
        write_program(folder.path, verdict.experiment, verdict.setting)
    write_text(folder.path / paths.CONFIG, config)
    return folder


def _plan(setting: Setting) -> dict[str, Any]:
    """Return what follows from a setting: the plan, memory by part, and tokens, from which costs are foretold."""
    work = find_work(setting)
    more = {"memory_gib": memory_gib(setting), "work": None if work is None else work.as_dict()}
    return {**build_plan(setting).as_dict(), **more}


def _repeatable(overrides: list[str]) -> list[str]:
    """The shared overrides without those that name or steer the sweep; a study's own values stay, as those of one run."""
    steering = ("search", "name=", "hydra", "force=", "verbose=")
    kept = [text for text in overrides if not text.lstrip("+").startswith(steering)]
    return [*kept, "hydra.mode=RUN", "name=null"] if any(text.startswith("sweeps=") for text in kept) else kept


def override_text(value: Any) -> str:
    """A configuration value as Hydra's grammar takes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        plain = value and all(letter.isalnum() or letter in "_-./+" for letter in value)
        return value if plain else json.dumps(value)
    if isinstance(value, list):
        return "[" + ",".join(override_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{override_text(item)}" for key, item in value.items()) + "}"
    return repr(value)
