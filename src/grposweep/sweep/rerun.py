"""``grposweep rerun``: run one trial again, optionally with overrides, as a new single-trial
sweep.
"""

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import Config, Json, parse_yaml, read_lines, read_text, text_sha256
from grporecipe.redaction import redact
from grporecipe.terminal import say
from grposweep.command.asked import find_inputs
from grposweep.config.compose import (
    escape,
    is_conf,
    load_experiment,
    open_session,
    override_name,
    register_schema,
)
from grposweep.config.identity import OBJECTIVE, ResolvedConfig, sweep_identity
from grposweep.config.points import Points, apply_values
from grposweep.launchers import schedulers
from grposweep.schema import Experiment, Search
from grposweep.schema.registries import is_external
from grposweep.search.parse import parse_values
from grposweep.search.space import Space
from grposweep.storage import paths
from grposweep.storage.folders import RERUN, SweepFolder, TrialFolder
from grposweep.storage.forks import ForkState
from grposweep.storage.inputs import TrialInputs
from grposweep.storage.provenance import (
    collect_provenance,
    configuration_of,
    difference,
    first_difference,
    is_present_code,
    repeated_by,
)
from grposweep.storage.records import TrialRecord, read_provenance
from grposweep.sweep.run import run_sweep
from grposweep.sweep.validate import validate_sweep

# of search.changed_files
ACCEPT, RECORDED = "accept", "recorded"
# they change no training
CHOICE_OF_VALUE = ("search.at", "search.last", "search.metric")


def rerun_trial(trial: TrialFolder, overrides: list[str]) -> int:
    """Run a trial again; returns the exit code. Raises UserError before anything starts."""
    sweep = trial.sweep.path
    recorded = recorded_by(trial)
    go_to(recorded.get("working_directory"))
    experiment = _experiment(trial, overrides, own_conf(recorded))
    for line in not_as_recorded(trial, experiment, recorded, is_changed=bool(overrides)):
        say(line)
    redacted = list(map(redact, overrides))
    parent = {"sweep": str(sweep), "trial": trial.path.name, "overrides": redacted}
    origin = {"rerun_of": parent, **repeated_by(recorded, "rerun", trial.path, *overrides)}
    points = Points(lambda _: OmegaConf.create(escape(asdict(experiment))), [])
    repeat = SweepFolder(Path(experiment.outputs) / str(experiment.name))
    if not experiment.force and any(
        trial_folder.result.value is not None for trial_folder in repeat.trials()
    ):
        say(
            f"{experiment.name} has repeated it already, and nothing is trained. Add force=true "
            "to train it again."
        )
    state = ForkState.find(sweep)

    def keep(folder: Path) -> None:
        # a continuation's trial: from the same checkpoint
        if state is not None and experiment.trainer.fork == state.digest:
            state.keep(state.checkpoint(sweep).path, sweep / paths.FORK, folder)
        keep_inputs(trial, experiment, folder)

    changes = [*overrides_of(trial), *overrides]
    ended = run_sweep(validate_sweep(Space(), points, changes), changes, "rerun", origin, keep)
    if ended == ExitCode.FINISHED and trial.result.value is not None:
        before = load_experiment(trial.path / paths.CONFIG)
        unlike = overrides if _identity(trial, before) != _identity(trial, experiment) else []
        chosen = [override for override in overrides if override_name(override) in CHOICE_OF_VALUE]
        say(_compared(trial, repeat, unlike, chosen))
    return ended


def keep_inputs(trial: TrialFolder, experiment: Experiment, folder: Path) -> None:
    """Put the files that the trial read into a new sweep's folder, unless the user accepts their
    changes.
    """
    if experiment.search.changed_files == ACCEPT:
        return
    recorded = TrialInputs.read(trial.path)
    merged = recorded.over(find_inputs([experiment]))
    merged.keep(folder, recorded.path).write(folder)


def recorded_by(trial: TrialFolder) -> Json:
    """Return a trial's provenance. Raises UserError for a trial without a configuration."""
    if not (trial.path / paths.CONFIG).is_file():
        raise UserError(
            f"{trial.path} has no {paths.CONFIG}, so its configuration is unknown. Restore the "
            "file, or name another trial."
        )
    record = TrialRecord.find(trial.path)
    config = trial.path / paths.CONFIG
    digest = "" if record is None else record.config_sha256
    # cut off, it may still be YAML
    if digest not in ("", text_sha256(config.read_text(encoding="utf-8", errors="replace"))):
        raise UserError(
            f"{config} is not what the trial began with: it was cut off or edited. Restore it. "
            "Changes are made "
            f"by overrides: grposweep rerun {shlex.quote(str(trial.path))} key=value."
        )
    return read_provenance(trial.path)


def go_to(directory: Any) -> None:
    """Relative paths of data and rewards are as they were for the sweep."""
    if (
        isinstance(directory, str)
        and Path(directory).is_dir()
        and Path(directory).resolve() != Path.cwd()
    ):
        say(f"in {directory}, where its sweep was started")
        os.chdir(directory)


def own_conf(recorded: Config) -> Path | None:
    """Return the user's copy of conf/ that the sweep's command named, if it is still there: its
    options may be named again.
    """
    # a copy that lacks groups by now
    with suppress(UserError):
        return next(
            (Path(word) for word in configuration_of(recorded) if is_conf(Path(word))), None
        )
    return None


def _experiment(trial: TrialFolder, overrides: list[str], conf: Path | None) -> Experiment:
    """The trial's experiment as a sweep of one point, changed by the overrides, under a name that
    says what it is.
    """
    alone = as_own_sweep(load_experiment(trial.path / paths.CONFIG), trial)
    if overrides:
        with open_session(conf) as session:
            alone = apply_values(alone, parse_values(overrides, session.loader), session)
    else:
        register_schema()
    code = alone.cluster.code or code_copy(trial)
    name = name_of("rerun", trial, Space(), alone)
    return replace(
        alone, name=alone.name or name, cluster=replace(alone.cluster, controller="here", code=code)
    )


def as_own_sweep(before: Experiment, trial: TrialFolder) -> Experiment:
    """Return the experiment of a trial as a sweep of its own next to the trial's, with the files as
    they were recorded.
    """
    same = {name: getattr(before.search, name) for name in (*OBJECTIVE, "seed")}
    search = Search(**same, changed_files=RECORDED)
    return replace(
        before,
        name=None,
        force=False,
        verbose=False,
        outputs=str(trial.sweep.path.parent),
        search=search,
    )


def name_of(kind: str, trial: TrialFolder, space: Space, base: Experiment) -> str:
    """Return the name of a trial's rerun or continuation; with accepted changes of files it is
    another sweep.

    It names the sweep and the trial that were there first: ``lr_batch-3-continue-b692c6`` also for
    a rerun's continuation.
    """
    identity = sweep_identity(space.identity(), base)
    if base.search.changed_files == ACCEPT and (changed := changed_files(trial, base)):
        identity = text_sha256(f"{identity}{changed}")
    sweep = trial.sweep.path
    end = f"{kind}-{identity[:6]}"
    # of a repeat of what already has the name
    longer = f"{sweep.name}-{trial.number:04d}-{end}"
    rerun = RERUN.search(sweep.name)
    while (outer := RERUN.search(sweep.name[: rerun.start()] if rerun else "")) is not None:
        rerun = outer
    name = f"{sweep.name}-{trial.number}-{end}"
    if rerun:
        name = f"{sweep.name[: rerun.start()]}-{int(rerun[1])}-{end}"
    return longer if name == sweep.name else name


def changed_files(trial: TrialFolder, experiment: Experiment) -> dict[str, str]:
    """Return the files that the trial read and that have changed since, with their present
    hashes.
    """
    now = find_inputs([experiment])
    return {name: now.digests[name] for name in TrialInputs.read(trial.path).over(now).changed(now)}


def overrides_of(trial: TrialFolder) -> list[str]:
    """Return the overrides of the trial's own command line."""
    try:
        overrides = parse_yaml(read_text(trial.path / paths.OVERRIDES))
    except (OSError, ValueError):
        return []
    return list(map(str, overrides)) if isinstance(overrides, list) else []


def code_copy(trial: TrialFolder) -> str | None:
    """Return the copy of the code that the trial ran, if there is one and it differs from what is
    running now.
    """
    copies = filter(None, (scheduler.code_of(trial.path) for scheduler in schedulers()))
    copy = next(copies, None)
    return None if copy is None or is_present_code(copy) else str(copy)


def not_as_recorded(
    trial: TrialFolder, experiment: Experiment, recorded: Config, is_changed: bool
) -> list[str]:
    """List what differs from when the trial ran: code, packages, files that its program reads."""
    inputs = find_inputs([experiment])
    code = experiment.cluster.code
    now = collect_provenance(inputs)
    kept = TrialInputs.read(trial.path).over(inputs)
    lines = [f"training runs the sweep's own copy of the code, {code}"] if code else []
    copied = ", ".join(name for name in kept.changed(inputs) if kept.files[name].copied)
    if copied and experiment.search.changed_files != ACCEPT:
        now["files"] = recorded.get("files")
        lines.append(
            f"{copied} changed since: training uses the sweep's own copy of {copied} "
            "(search.changed_files=accept uses the present content)"
        )
    theirs = {name: recorded.get(name) for name in ("packages", "files")}
    expected = {**now, **theirs} if code else dict(recorded)
    if recorded and (changes := difference(expected, now)):
        lines.append(f"not as recorded: {changes}")
    if (
        is_external(experiment.trainer)
        and not is_changed
        and _identity(trial, experiment)[:6] != trial.head
    ):
        lines.append(
            "not as recorded: what identifies the experiment (its script or its recipe has changed)"
        )
    return lines


def _identity(trial: TrialFolder, experiment: Experiment) -> str:
    return ResolvedConfig.of(experiment, trial.sweep.prepared()).identity


def _compared(
    trial: TrialFolder, rerun: SweepFolder, unlike: Sequence[str], chosen: Sequence[str]
) -> str:
    """Return the recorded and the new result; for the same experiment also whether every number is
    the same.
    """
    *_, again = [folder for folder in rerun.trials() if folder.result.value is not None]
    before = trial.result.value or 0.0
    after = again.result.value or 0.0
    text = f"recorded {before:.4f}, now {after:.4f} ({after - before:+.4f})"
    one, other = (read_provenance(folder.path) for folder in (trial, again))
    files = difference(*({"files": record.get("files")} for record in (one, other)))
    if unlike or files:
        return f"{text} with {' '.join(filter(None, [*unlike, files]))}"
    how = ""
    if chosen:
        how = f" with {' '.join(chosen)}, by which another evaluation of the training counts"
    return f"{text}{how}: {compare_metrics(trial, again)}"


def compare_metrics(one: TrialFolder, other: TrialFolder) -> str:
    """Describe whether two trials logged the same numbers, or where they first differ."""
    where = first_difference(
        *(read_lines(folder.path / paths.METRICS, step=int) for folder in (one, other))
    )
    if where is None:
        return "every number of metrics.jsonl is the same"
    return f"first difference: {where}"
