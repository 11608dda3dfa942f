"""``grposweep continue``: train a trial longer, from its last checkpoint, as a sweep of its own.

With a constant learning rate this is the training that the longer schedule would have been. Other rates depend on the length.
"""

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from grporecipe.errors import ExitCode, UserError, refuse_mistakes
from grporecipe.model.planning import boundary_steps, total_steps
from grporecipe.terminal import say
from grposweep.config.compose import load_experiment, open_session, override_name
from grposweep.config.identity import prepared_key
from grposweep.config.points import apply_values, recorded_points
from grposweep.config.to_setting import read_setting
from grposweep.schema import Experiment
from grposweep.search.parse import parse_values
from grposweep.search.space import Space
from grposweep.storage import paths
from grposweep.storage.folders import TrialFolder
from grposweep.storage.forks import ForkState, checkpoint_hash
from grposweep.storage.provenance import repeated_by
from grposweep.storage.records import apply_oom_fix
from grposweep.sweep.fork import OPTIONS, kept_states
from grposweep.sweep.rerun import (
    as_own_sweep,
    code_copy,
    go_to,
    keep_inputs,
    name_of,
    not_as_recorded,
    overrides_of,
    own_conf,
    recorded_by,
)
from grposweep.sweep.run import run_sweep
from grposweep.sweep.validate import validate_sweep

LENGTHS = ("max_steps", "budget_completions", "epochs")  # keys of the schedule, of which one is set
CONSTANT = ("constant", "constant_with_warmup")  # learning rates that do not depend on the length


def continue_trial(trial: TrialFolder, overrides: Sequence[str], yes: bool = False) -> int:
    """Train a trial on from its last checkpoint to the end of a longer schedule; return the exit code.

    ``yes`` answers the question whether a training that differs from the longer schedule's is wanted.
    Raises UserError before anything starts.
    """
    recorded = recorded_by(trial)
    go_to(recorded.get("working_directory"))
    before = apply_oom_fix(trial.path, load_experiment(trial.path / paths.CONFIG))
    _check_keys(overrides)
    states = kept_states(trial, before)
    if not states:
        raise UserError(
            f"trial {trial.number} has no checkpoint (trainer.keep={before.trainer.keep}), so it cannot continue. Train it "
            f"again with its last checkpoint: grposweep rerun {shlex.quote(str(trial.path))} trainer.keep=last. "
            "Then continue that trial."
        )
    step = max(states)
    checkpoint, logs = states[step]
    state = ForkState(str(trial.sweep.path), trial.path.name, step, before.seed, checkpoint_hash(checkpoint.path))
    with open_session(own_conf(recorded)) as session:
        base = apply_values(_alone(trial, before, state), parse_values(list(overrides), session.loader), session)
        base = _with_length(trial, before, base, {override_name(word) for word in overrides}, step)
        base = replace(base, name=base.name or name_of("continue", trial, Space(), base))
        points = recorded_points(base, session)
        for line in not_as_recorded(trial, base, recorded, is_changed=True):
            say(line)
        say(f"{trial.sweep.path.name} trial {trial.number} continues from step {step} to {_steps(trial, base)}")
        differs = list(_differences(trial, before, step))
        for line in differs:
            say(f"not exactly the training that the longer schedule would have been: {line}")
        if differs and not yes and not agrees("Continue it?"):
            return ExitCode.INTERRUPTED
        origin = {"fork_of": asdict(state), **repeated_by(recorded, "continue", trial.path, "--yes", *overrides)}
        words = [*overrides_of(trial), *overrides, f"trainer.fork={state.digest}"]

        def keep(folder: Path) -> None:
            state.keep(checkpoint.path, logs, folder)
            keep_inputs(trial, base, folder)

        return run_sweep(validate_sweep(Space(), points, words), words, "continue", origin, keep)


def _check_keys(overrides: Sequence[str]) -> None:
    """Raise UserError for keys that change more than the length, and if no length is given."""
    names = [override_name(word) for word in overrides]
    others = [name for name in names if name.split(".")[0] not in (*OPTIONS, "schedule") and name != "trainer.keep"]
    refuse_mistakes(
        f"{name}: a trial continues with its own values. Leave it out, or change it from a checkpoint with grposweep fork."
        for name in others
    )
    given = [name for name in names if name in {f"schedule.{length}" for length in LENGTHS}]
    if len(given) != 1:
        raise UserError(
            f"{' '.join(given) or 'no length'}: a trial continues to the end of one longer schedule. Set one of "
            "schedule.max_steps, schedule.budget_completions and schedule.epochs, such as schedule.max_steps=2000."
        )


def _alone(trial: TrialFolder, before: Experiment, state: ForkState) -> Experiment:
    """Return the trial's experiment as a sweep of its own that starts from the checkpoint."""
    alone = as_own_sweep(before, trial)
    cluster = replace(alone.cluster, controller="here", code=alone.cluster.code or code_copy(trial))
    return replace(alone, cluster=cluster, trainer=replace(alone.trainer, fork=state.digest))


def _with_length(trial: TrialFolder, before: Experiment, base: Experiment, given: set[str], step: int) -> Experiment:
    """Return the experiment with one length, and with warmup and evaluations as they were.

    Raises UserError if it is not longer than what has been trained.
    """
    schedule = base.schedule
    for name in LENGTHS:
        if f"schedule.{name}" not in given:
            schedule = replace(schedule, **{name: None})  # type: ignore[arg-type]  # mypy takes any field
    base = replace(base, schedule=schedule)
    total, old = _steps(trial, base), trial.result.total_steps or _steps(trial, before)
    if total is None or old is None:
        raise UserError(f"trial {trial.number}: its length in steps is not known. Set schedule.max_steps.")
    if total <= step:
        raise UserError(
            f"{' '.join(sorted(given))}: this schedule ends after {total} steps, and trial {trial.number} has trained {step}. "
            f"Set a longer one, such as schedule.max_steps={2 * step}."
        )
    evaluations = base.schedule.evaluations
    if "schedule.evaluations" not in given and evaluations:
        evaluations = max(round(before.schedule.evaluations * total / old), 1)
    optimizer, warmup = base.optimizer, base.optimizer.warmup_steps
    if 0 < warmup < 1:  # a share of the length, which transformers rounds up
        optimizer = replace(optimizer, warmup_steps=math.ceil(old * warmup))
        say(
            f"optimizer.warmup_steps={optimizer.warmup_steps}: the warmup stays as long as it was, {warmup} of {old} steps"
        )
    return replace(base, optimizer=optimizer, schedule=replace(base.schedule, evaluations=evaluations))


def _steps(trial: TrialFolder, experiment: Experiment) -> int | None:
    return total_steps(read_setting(experiment, trial.sweep.prepared().get(prepared_key(experiment))))


def _differences(trial: TrialFolder, before: Experiment, step: int) -> Iterator[str]:
    """Say what differs from a training that had the longer schedule from its start."""
    kind = before.optimizer.lr_scheduler_type
    if kind not in CONSTANT:
        yield (
            f"optimizer.lr_scheduler_type={kind} follows the length. Until step {step} the rate followed the shorter schedule. "
            "From there on it follows the longer one."
        )
    setting = read_setting(before, trial.sweep.prepared().get(prepared_key(before)))
    if step % (every := boundary_steps(setting)):
        yield f"step {step} is in the middle of a rollout of {every} steps, whose remaining completions are generated again."


def agrees(question: str) -> bool:
    """Ask the user a question, and return whether the answer is yes. Raises UserError without a terminal."""
    if not sys.stdin.isatty():
        raise UserError("the input is no terminal, so the question cannot be asked. Add --yes.")
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
