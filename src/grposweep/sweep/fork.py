"""``grposweep fork``: continue a trial from a checkpoint with one parameter changed at a time, and compare by intervals.

The children are a sweep of one factor at a time: a control that changes nothing, and one child a value. All of a seed have the
same prompts in the same order and the same random numbers, so their differences are paired by seed (`search.replication`). The
control on the parent's own seed repeats the parent, on a CPU bit for bit.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from grporecipe.errors import ExitCode, UserError
from grporecipe.terminal import say
from grposweep.config.compose import Session, load_experiment, open_session
from grposweep.config.points import Points, apply_values, check_groups_one_by_one, recorded_points
from grposweep.registries import is_external
from grposweep.report.compare import differences
from grposweep.schema import Experiment
from grposweep.search.parse import ONE_FACTOR, parse_space, parse_values, split_tokens
from grposweep.search.space import Choice, Space
from grposweep.storage import paths
from grposweep.storage.checkpoints import Checkpoint, complete_checkpoints
from grposweep.storage.folders import SweepFolder, TrialFolder, find_sweeps
from grposweep.storage.forks import ForkState, checkpoint_hash
from grposweep.storage.provenance import repeated_by
from grposweep.storage.records import apply_oom_fix
from grposweep.sweep.rerun import (
    as_own_sweep,
    code_copy,
    compare_metrics,
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

SEEDS = 3  # of each child: the fewest whose interval says something
# Options of the sweep, which change no training.
OPTIONS = ("search", "cluster", "tracker", "rules", "name", "outputs", "force", "verbose")
MAY = ""
# What may change at a fork, by key or its beginning (the longest counts): MAY, or why not.
AT_A_FORK = {
    "lr": MAY,
    "kl": MAY,
    "kl.sync_ref_model": "the reference model is that of the checkpoint",
    "kl.ref_model": "the reference model is that of the checkpoint",
    "loss": MAY,
    "optimizer": MAY,
    "optimizer.optim": "the checkpoint holds the state of the other optimizer",
    "optimizer.warmup_steps": "warmup belongs to the start of a training",
    "generation": "it decides which random numbers are drawn",
    "generation.max_completion_length": MAY,
    "generation.temperature": MAY,
    "generation.top_": MAY,
    "generation.min_p": MAY,
    "generation.repetition_penalty": MAY,
    "seed": "all children of a seed share data order and random numbers, and search.seeds=N repeats them on N seeds",
    "model": "the checkpoint holds the weights of this model",
    "task": "other prompts or rewards are another task, whose results cannot be compared",
    "batch": "it decides the prompts of each step, so the data order would change",
    "schedule": "the data order and the learning rate follow a plan of the whole training",
    "trainer": "the checkpoint was written by this trainer",
    "trainer.fork": MAY,
    "trainer.keep": MAY,
    "cluster.processes": "the checkpoint holds the state of so many ranks",
    "cluster.threads": "another number of threads rounds differently",
    **dict.fromkeys(OPTIONS, MAY),
}


@dataclass(frozen=True)
class Parent:
    """The trial that is forked."""

    trial: TrialFolder
    experiment: Experiment  # as its last attempt ran it


def fork_trial(trial: TrialFolder, step: int, overrides: Sequence[str]) -> int:
    """Train children of a trial from its checkpoint at an optimizer step; return the exit code.

    Raises UserError before anything starts.
    """
    recorded = recorded_by(trial)
    go_to(recorded.get("working_directory"))
    parent = Parent(trial, apply_oom_fix(trial.path, load_experiment(trial.path / paths.CONFIG)))
    checkpoint, logs = _find_state(parent, step)
    sweep, digest = trial.sweep.path, checkpoint_hash(checkpoint.path)
    state = ForkState(str(sweep), trial.path.name, step, parent.experiment.seed, digest)
    tokens = split_tokens(overrides)
    options = [token for token in tokens if _key(token).split(".")[0] in OPTIONS]
    changes = {_key(token): token.partition("=")[2] for token in tokens if token not in options}
    with open_session(own_conf(recorded)) as session:
        base = apply_values(_alone(parent, state), parse_values(options, session.loader), session)
        if base.search.sampler != ONE_FACTOR:
            raise UserError(
                f"search.sampler={base.search.sampler}: a fork compares each value with a control on the same seeds. "
                "Leave it out; search.seeds=N sets the number of seeds."
            )
        space, points = _children(parent, base, changes, session)
        name = base.name or name_of("fork", trial, space, base)
        base = replace(base, name=name)
        points = recorded_points(base, session)
        for line in not_as_recorded(trial, base, recorded, is_changed=True):
            say(line)
        origin = {"fork_of": asdict(state), **repeated_by(recorded, "fork", trial.path, "--at", step, *overrides)}
        words = [*overrides_of(trial), *options, f"trainer.fork={state.digest}"]

        def keep(folder: Path) -> None:
            of = f"{sweep.name} trial {trial.number} at step {step}"
            say(f"fork of {of}: a control, and children with one change each")
            state.keep(checkpoint.path, logs, folder)
            keep_inputs(trial, base, folder)

        ended = run_sweep(validate_sweep(space, points, words), words, "fork", origin, keep)
    if ended == ExitCode.FINISHED and trial.result.value is not None:
        records = [(child, child.record) for child in SweepFolder(Path(base.outputs) / name).trials()]
        controls = (c for c, record in records if record and not (record.point or record.attributes.get("role")))
        if own := next(controls, None):  # on the parent's own seed
            say(f"the control against its parent: {compare_metrics(trial, own)}")
    return ended


def _find_state(parent: Parent, step: int) -> tuple[Checkpoint, Path]:
    """Return the parent's checkpoint at a step and the folder of its logs, or the copy of both in an earlier fork.

    Raises UserError if there is none; it names the nearest step that has one.
    """
    trial, experiment = parent.trial, parent.experiment
    states = kept_states(trial, experiment)
    total = trial.result.total_steps or max(states, default=0) + 1
    steps = sorted(at for at in states if at < total)
    if step in steps:
        return states[step]
    if not steps:
        again = f"grposweep rerun {shlex.quote(str(trial.path))} trainer.keep=all"
        raise UserError(
            f"trial {trial.number} has no checkpoint with steps left to train (trainer.keep={experiment.trainer.keep}). "
            f"Train it again with every checkpoint: {again}. Then fork that trial."
        )
    nearest = min(steps, key=lambda at: (abs(at - step), at))
    raise UserError(
        f"--at {step}: trial {trial.number} has no checkpoint there, but at {', '.join(map(str, steps))}. "
        f"Set --at {nearest}, the nearest."
    )


def kept_states(trial: TrialFolder, experiment: Experiment) -> dict[int, tuple[Checkpoint, Path]]:
    """Return a trial's checkpoints and those that its forks have copied, by step, each with the folder of its logs.

    Raises UserError for a trial of another program.
    """
    if is_external(experiment.trainer.kind):
        raise UserError(
            f"trial {trial.number} was trained by trainer={experiment.trainer.kind}, whose checkpoints another program reads. "
            "Forks and longer trainings need trainer=trl."
        )
    kept = complete_checkpoints(trial.path / paths.CHECKPOINTS, experiment.cluster.processes)
    states = {checkpoint.step: (checkpoint, trial.path) for checkpoint in kept}
    for folder in find_sweeps(trial.sweep.path.parent):
        state = ForkState.read(folder.path)
        if state is not None and state.is_of(trial.sweep.path, trial.path.name):
            states.setdefault(state.step, (state.checkpoint(folder.path), folder.path / paths.FORK))
    return states


def _alone(parent: Parent, state: ForkState) -> Experiment:
    """Return the parent's experiment as the control of a sweep of its own."""
    alone = as_own_sweep(parent.experiment, parent.trial)
    alone.search.sampler, alone.search.seeds = ONE_FACTOR, SEEDS
    code = alone.cluster.code or code_copy(parent.trial)
    cluster, trainer = replace(alone.cluster, controller="here", code=code), replace(alone.trainer, fork=state.digest)
    return replace(alone, cluster=cluster, trainer=trainer)


def _children(parent: Parent, base: Experiment, changes: dict[str, str], session: Session) -> tuple[Space, Points]:
    """Return the space of what changes, without the parent's own values: these are the control.

    Raises UserError for a change that a fork cannot make.
    """
    check_groups_one_by_one(changes)
    points = recorded_points(base, session)
    _refuse(parent, asdict(base))
    space, _ = parse_space([], changes, session.loader, keeps_single=True)
    parameters = []
    for parameter in space.parameters:
        if not isinstance(parameter.domain, Choice):
            raise UserError(
                f"{parameter.name}={changes[parameter.name]}: a fork compares values. List them: lr=1e-5,1e-4."
            )
        apart = []
        for label, value in zip(parameter.domain.labels, parameter.domain.values, strict=True):
            child = points.experiment({parameter.name: value})
            _refuse(parent, asdict(child), f"{parameter.name}={label}")
            if child != base:
                apart.append((label, value))
        if apart:
            parameters.append(replace(parameter, domain=Choice(*zip(*apart, strict=True))))
    if not parameters:
        raise UserError(
            "the fork changes nothing. Give a key with other values than the trial's: lr=1e-5,1e-4 kl=low,high."
        )
    return Space(tuple(parameters)), points


def _refuse(parent: Parent, child: dict[str, Any], change: str = "") -> None:
    """Raise UserError for a key that may not change at a fork."""
    sharding = parent.experiment.trainer.sharding
    for key, before, after in differences(asdict(parent.experiment), child):
        # a rule covers the key itself, its section, or a common prefix in one section
        rules = (k for k in AT_A_FORK if key == k or key.startswith(f"{k}.") or ("." in k and key.startswith(k)))
        why = AT_A_FORK[max(rules, key=len)]
        if not why and sharding != "none" and key.startswith(("lr", "optimizer.")):
            why = f"with trainer.sharding={sharding} it comes back from the checkpoint"
        if why:
            change = change or f"{key}={after}"
            raise UserError(
                f"{change}: a fork cannot change {key} ({before} in trial {parent.trial.number}): {why}. A fork can change lr, "
                "optimizer.*, kl.*, loss.* and the sampling. Train from the start instead: "
                f"grposweep rerun {shlex.quote(str(parent.trial.path))} {shlex.quote(change)}."
            )


def _key(token: str) -> str:
    return token.partition("=")[0].lstrip("+")
