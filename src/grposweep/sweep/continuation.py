"""``grposweep continue``: train a trial on from one of its checkpoints, longer or with one
parameter changed at a time.

With another ``schedule.*`` alone, the trial trains to the end of a longer schedule, as a sweep of
one trial. With a constant learning rate this is the training that the longer schedule would have
been. Other rates depend on the length.

With other keys it branches: a sweep of one factor at a time, with a control that changes nothing,
and one child a value. All of a seed have the same prompts in the same order and the same random
numbers, so their differences are paired by seed (`search.replication`). The control on the parent's
own seed repeats the parent, on a CPU bit for bit.
"""

import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import Config, Json, read_own_yaml
from grporecipe.model.planning import boundary_steps, total_steps
from grporecipe.terminal import say
from grposweep.config.compose import Session, load_experiment, open_session, override_name
from grposweep.config.identity import ResolvedConfig
from grposweep.config.points import Points, apply_values, check_groups_one_by_one, recorded_points
from grposweep.report.compare import differences
from grposweep.schema import Experiment
from grposweep.schema.registries import is_external
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

# keys of the schedule, of which one is set
LENGTHS = ("max_steps", "budget_completions", "epochs")
# learning rates that do not depend on the length
CONSTANT = ("constant", "constant_with_warmup")
# of each child of a branch: the fewest whose interval says something
SEEDS = 3
# Options of the sweep, which change no training.
OPTIONS = (
    "search",
    "cluster",
    "tracker",
    "rules",
    "name",
    "outputs",
    "force",
    "verbose",
    "trainer.keep",
)
MAY = ""
# What may change in a branch, by key or its beginning (the longest counts): MAY, or why not.
IN_A_BRANCH: Mapping[str, str] = {
    **read_own_yaml(__file__, "in_a_branch.yaml"),
    **dict.fromkeys(OPTIONS, MAY),
}


@dataclass(frozen=True)
class Parent:
    """The trial that is continued, and one of its checkpoints."""

    trial: TrialFolder
    # as its last attempt ran it
    experiment: Experiment
    # its provenance
    recorded: Config
    checkpoint: Checkpoint
    # the folder of what it had logged until then
    logs: Path

    @property
    def step(self) -> int:
        """The optimizer step of the checkpoint."""
        return self.checkpoint.step

    @property
    def steps(self) -> int | None:
        """The optimizer steps of its schedule."""
        return self.trial.result.total_steps or self.steps_of(self.experiment)

    def steps_of(self, experiment: Experiment) -> int | None:
        """Return the optimizer steps of an experiment of the same sweep."""
        return total_steps(ResolvedConfig.of(experiment, self.trial.sweep.prepared()).setting)


def continue_trial(
    trial: TrialFolder, overrides: Sequence[str], step: int | None = None, yes: bool = False
) -> int:
    """Train a trial on from its checkpoint at an optimizer step, the last one by default; return
    the exit code.

    ``yes`` answers the question whether a training that differs from the longer schedule's is
    wanted. Raises UserError before anything starts.
    """
    recorded = recorded_by(trial)
    go_to(recorded.get("working_directory"))
    experiment = apply_oom_fix(trial.path, load_experiment(trial.path / paths.CONFIG))
    tokens = split_tokens(overrides)
    names = list(map(override_name, tokens))
    changed = [name for name in names if not _is_option(name)]
    branches = any(name.split(".")[0] != "schedule" for name in changed)
    states = kept_states(trial, experiment)
    if branches and step is None:
        raise UserError(
            f"{changed[0]}: with another value than its own, trial {trial.number} branches from "
            "a checkpoint, and none is named. "
            f"Set --from {max(states, default='STEP')}{_listed(states)}."
        )
    if not branches:
        given = [name for name in changed if name.removeprefix("schedule.") in LENGTHS]
        if len(given) != 1:
            raise UserError(
                f"{' '.join(given) or 'no length'}: a trial continues to the end of one longer "
                "schedule. Set one of schedule.max_steps, schedule.budget_completions and "
                "schedule.epochs, such as schedule.max_steps=2000. With other keys, such as "
                "lr=1e-6,1e-5, it branches."
            )
    checkpoint, logs = _choose(trial, experiment, states, step, branches)
    parent = Parent(trial, experiment, recorded, checkpoint, logs)
    state = ForkState(
        str(trial.sweep.path),
        trial.path.name,
        parent.step,
        experiment.seed,
        checkpoint_hash(checkpoint.path),
    )
    with open_session(own_conf(recorded)) as session:
        if branches:
            return _branch(parent, state, tokens, session)
        return _train_longer(parent, state, tokens, session, yes)


def _is_option(name: str) -> bool:
    return name in OPTIONS or name.split(".")[0] in OPTIONS


def kept_states(trial: TrialFolder, experiment: Experiment) -> dict[int, tuple[Checkpoint, Path]]:
    """Return a trial's checkpoints and those that its continuations have copied, by step, each with
    the folder of its logs.

    Raises UserError for a trial of another program, and if there is none.
    """
    if is_external(experiment.trainer):
        raise UserError(
            f"trial {trial.number} was trained by trainer={experiment.trainer.kind}, whose "
            "checkpoints another program reads. "
            "Only trials of trainer=trl can continue as another sweep."
        )
    kept = complete_checkpoints(trial.path / paths.CHECKPOINTS, experiment.cluster.processes)
    states = {checkpoint.step: (checkpoint, trial.path) for checkpoint in kept}
    for folder in find_sweeps(trial.sweep.path.parent):
        state = ForkState.find(folder.path)
        if state is not None and state.is_of(trial.sweep.path, trial.path.name):
            states.setdefault(state.step, (state.checkpoint(folder.path), folder.path / paths.FORK))
    return states


def _choose(
    trial: TrialFolder,
    experiment: Experiment,
    states: Mapping[int, tuple[Checkpoint, Path]],
    step: int | None,
    branches: bool,
) -> tuple[Checkpoint, Path]:
    """Return the checkpoint at a step, or the last one, and the folder of its logs. Raises
    UserError if there is none.
    """
    total = trial.result.total_steps or max(states, default=0) + 1
    steps = sorted(at for at in states if not branches or at < total)
    if not steps:
        kept, left = ("all", " with steps left to train") if branches else ("last", "")
        raise UserError(
            f"trial {trial.number} has no checkpoint{left} "
            f"(trainer.keep={experiment.trainer.keep}), so it cannot continue. Train it again with "
            f"its checkpoints: grposweep rerun {shlex.quote(str(trial.path))} trainer.keep={kept}. "
            "Then continue that trial."
        )
    if step is None:
        return states[steps[-1]]
    if step not in steps:
        nearest = min(steps, key=lambda at: (abs(at - step), at))
        raise UserError(
            f"--from {step}: trial {trial.number} has no checkpoint there{_listed(steps)}. Set "
            f"--from {nearest}, the nearest."
        )
    return states[step]


def _listed(steps: Mapping[int, object] | Sequence[int]) -> str:
    return f" (it has checkpoints at {', '.join(map(str, sorted(steps)))})" if steps else ""


def _alone(parent: Parent, state: ForkState) -> Experiment:
    """Return the parent's experiment as a sweep of its own that starts from the checkpoint."""
    alone = as_own_sweep(parent.experiment, parent.trial)
    cluster = replace(
        alone.cluster, controller="here", code=alone.cluster.code or code_copy(parent.trial)
    )
    return replace(alone, cluster=cluster, trainer=replace(alone.trainer, fork=state.digest))


def _start(
    parent: Parent,
    state: ForkState,
    base: Experiment,
    overrides: Sequence[str],
    space: Space,
    points: Points,
    *flags: object,
) -> int:
    """Run the sweep that continues the parent. ``overrides`` are shared by its trials; ``flags``
    repeat the command.
    """
    changes = [*overrides_of(parent.trial), *overrides, f"trainer.fork={state.digest}"]
    origin = {
        "fork_of": asdict(state),
        **repeated_by(parent.recorded, "continue", parent.trial.path, *flags),
    }

    def keep(folder: Path) -> None:
        state.keep(parent.checkpoint.path, parent.logs, folder)
        keep_inputs(parent.trial, base, folder)

    return run_sweep(validate_sweep(space, points, changes), changes, "continue", origin, keep)


def _say_differences(parent: Parent, base: Experiment) -> None:
    for line in not_as_recorded(parent.trial, base, parent.recorded, is_changed=True):
        say(line)


def _train_longer(
    parent: Parent, state: ForkState, tokens: Sequence[str], session: Session, yes: bool
) -> int:
    """Train the parent to the end of a longer schedule."""
    trial = parent.trial
    base = apply_values(_alone(parent, state), parse_values(list(tokens), session.loader), session)
    base = _with_length(parent, base, set(map(override_name, tokens)))
    base = replace(base, name=base.name or name_of("continue", trial, Space(), base))
    points = recorded_points(base, session)
    _say_differences(parent, base)
    say(
        f"{trial.sweep.path.name} trial {trial.number} continues from step {parent.step} to "
        f"{parent.steps_of(base)}"
    )
    differs = list(_unlike_longer(parent))
    for line in differs:
        say(f"not exactly the training that the longer schedule would have been: {line}")
    if differs and not yes and not agrees("Continue it?"):
        return ExitCode.INTERRUPTED
    return _start(
        parent, state, base, tokens, Space(), points, "--from", parent.step, "--yes", *tokens
    )


def _with_length(parent: Parent, base: Experiment, given: set[str]) -> Experiment:
    """Return the experiment with one length, and with warmup and evaluations as they were.

    Raises UserError if it is not longer than what has been trained.
    """
    schedule = base.schedule
    for name in LENGTHS:
        if f"schedule.{name}" not in given:
            schedule = replace(schedule, **{name: None})  # type: ignore[arg-type]  # mypy takes any field
    base = replace(base, schedule=schedule)
    number, total, old = parent.trial.number, parent.steps_of(base), parent.steps
    if total is None or old is None:
        raise UserError(
            f"trial {number}: its length in steps is not known. Set schedule.max_steps."
        )
    if total <= parent.step:
        raise UserError(
            f"{' '.join(sorted(given))}: this schedule ends after {total} steps, and trial "
            f"{number} has trained {parent.step}. "
            f"Set a longer one, such as schedule.max_steps={2 * parent.step}."
        )
    evaluations = base.schedule.evaluations
    if "schedule.evaluations" not in given and evaluations:
        evaluations = max(round(parent.experiment.schedule.evaluations * total / old), 1)
    optimizer = base.optimizer
    warmup = base.optimizer.warmup_steps
    # a share of the length, which transformers rounds up
    if 0 < warmup < 1:
        optimizer = replace(optimizer, warmup_steps=math.ceil(old * warmup))
        say(
            f"optimizer.warmup_steps={optimizer.warmup_steps}: the warmup stays as long as it "
            f"was, {warmup} of {old} steps"
        )
    return replace(
        base, optimizer=optimizer, schedule=replace(base.schedule, evaluations=evaluations)
    )


def _unlike_longer(parent: Parent) -> Iterator[str]:
    """Say what differs from a training that had the longer schedule from its start."""
    kind = parent.experiment.optimizer.lr_scheduler_type
    step = parent.step
    if kind not in CONSTANT:
        yield (
            f"optimizer.lr_scheduler_type={kind} follows the length. Until step {step} the rate "
            "followed the shorter schedule. From there on it follows the longer one."
        )
    setting = ResolvedConfig.of(parent.experiment, parent.trial.sweep.prepared()).setting
    if step % (every := boundary_steps(setting)):
        yield (
            f"step {step} is in the middle of a rollout of {every} steps, whose remaining "
            "completions are generated again."
        )


def _branch(parent: Parent, state: ForkState, tokens: Sequence[str], session: Session) -> int:
    """Train a control and children with one change each from the parent's checkpoint."""
    trial = parent.trial
    options = [token for token in tokens if _is_option(override_name(token))]
    changes = {
        override_name(token): token.partition("=")[2] for token in tokens if token not in options
    }
    alone = _alone(parent, state)
    alone.search.sampler = ONE_FACTOR
    alone.search.seeds = SEEDS
    base = apply_values(alone, parse_values(options, session.loader), session)
    if base.search.sampler != ONE_FACTOR:
        raise UserError(
            f"search.sampler={base.search.sampler}: a branch compares each value with a control on "
            "the same seeds. Leave it out; search.seeds=N sets the number of seeds."
        )
    space = _children(parent, base, changes, session)
    base = replace(base, name=base.name or name_of("continue", trial, space, base))
    points = recorded_points(base, session)
    _say_differences(parent, base)
    say(
        f"{trial.sweep.path.name} trial {trial.number} from step {parent.step}: a control, and "
        "children with one change each"
    )
    ended = _start(parent, state, base, options, space, points, "--from", parent.step, *tokens)
    if ended == ExitCode.FINISHED and trial.result.value is not None:
        records = [
            (child, child.record)
            for child in SweepFolder(Path(base.outputs) / str(base.name)).trials()
        ]
        controls = (
            c
            for c, record in records
            if record and not (record.point or record.attributes.get("role"))
        )
        # on the parent's own seed
        own = next(controls, None)
        if own:
            say(f"the control against its parent: {compare_metrics(trial, own)}")
    return ended


def _children(parent: Parent, base: Experiment, changes: dict[str, str], session: Session) -> Space:
    """Return the space of what changes, without the parent's own values: these are the control.

    Raises UserError for a change that a branch cannot make.
    """
    check_groups_one_by_one(changes)
    points = recorded_points(base, session)
    _refuse(parent, asdict(base))
    space, _ = parse_space([], changes, session.loader, keeps_single=True)
    parameters = []
    for parameter in space.parameters:
        if not isinstance(parameter.domain, Choice):
            raise UserError(
                f"{parameter.name}={changes[parameter.name]}: a branch compares values. List "
                "them: lr=1e-5,1e-4."
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
            "the branch changes nothing. Give a key with other values than the trial's: "
            "lr=1e-5,1e-4 kl=low,high."
        )
    return Space(tuple(parameters))


def _refuse(parent: Parent, child: Json, change: str = "") -> None:
    """Raise UserError for a key that may not change in a branch."""
    sharding = parent.experiment.trainer.sharding
    for key, before, after in differences(asdict(parent.experiment), child):
        # a rule covers the key itself, its section, or a common prefix in one section
        rules = (
            k
            for k in IN_A_BRANCH
            if key == k or key.startswith(f"{k}.") or ("." in k and key.startswith(k))
        )
        reason = IN_A_BRANCH[max(rules, key=len)]
        if not reason and sharding != "none" and key.startswith(("lr", "optimizer.")):
            reason = f"with trainer.sharding={sharding} it comes back from the checkpoint"
        if reason:
            change = change or f"{key}={after}"
            raise UserError(
                f"{change}: a branch cannot change {key} ({before} in trial "
                f"{parent.trial.number}): {reason}. It can change lr, "
                "optimizer.*, kl.*, loss.* and the sampling. Train from the start instead: "
                f"grposweep rerun {shlex.quote(str(parent.trial.path))} {shlex.quote(change)}."
            )


def agrees(question: str) -> bool:
    """Ask the user a question, and return whether the answer is yes. Raises UserError without a
    terminal.
    """
    if not sys.stdin.isatty():
        raise UserError("the input is no terminal, so the question cannot be asked. Add --yes.")
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
