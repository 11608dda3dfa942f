"""Whether the journal can be read, and agrees with the trial folders."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from grposweep.errors import BadInput
from grposweep.search.journal import Direction, cut, damaged_path, read_study, sound_bytes
from grposweep.search.space import Space, read_space
from grposweep.sweep.doctor.finding import Finding
from grposweep.sweep.folder import SweepFolder, TrialFolder
from grposweep.sweep.rebuild import Folders, contradictions, folders_by_number, open_study


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder with what sweep.yaml says of its search."""

    folder: SweepFolder
    space: Space
    direction: Direction
    metric: str

    def trials(self) -> list[FrozenTrial]:
        """What can be read of the study's trials."""
        study = read_study(self.folder.journal, self.direction)
        return [] if study is None else study.get_trials(deepcopy=False)

    def rebuild(self) -> None:
        """Cut a damaged journal, and take what the study lacks from the trial folders."""
        open_study(self.folder, self.space, self.direction, self.metric)

    def remake(self) -> None:
        """Set the whole journal aside first."""
        if self.folder.journal.exists():
            cut(self.folder.journal, 0)
        self.rebuild()


def read_sweep(folder: SweepFolder) -> Sweep:
    """A sweep by its sweep.yaml.

    Raises BadInput where that does not say what was searched: nothing can be judged without it.
    """
    settings: dict[str, Any] = folder.settings() or {}
    try:
        search = settings["search"]
        direction, metric = search["direction"], str(search["metric"])
        if direction not in ("maximize", "minimize"):
            raise ValueError(direction)
        return Sweep(folder, read_space(settings["space"]), direction, metric)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"{folder.path / 'sweep.yaml'} does not say what was searched ({type(error).__name__}: {error}). "
            "Restore it, or move it away and run the sweep's command: it writes a new one."
        ) from error


def check_journal(sweep: Sweep) -> Iterator[Finding]:
    """The journal by itself."""
    path = sweep.folder.journal
    if not path.exists():
        if any(sweep.folder.trials()):
            yield Finding("study.journal is missing", "make the study again from the trial folders", sweep.rebuild)
        return
    size, sound = path.stat().st_size, sound_bytes(path, sweep.direction)
    if sound < size:
        cure = f"move them to {damaged_path(path).name}, and take what is lacking then from the trial folders"
        yield Finding(f"study.journal is damaged, its last {size - sound} bytes", cure, sweep.rebuild)


def check_study(sweep: Sweep, trials: list[FrozenTrial]) -> Iterator[Finding]:
    """The study against the trial folders."""
    folders = folders_by_number(sweep.folder)
    if wrong := contradictions(trials, folders):
        yield Finding("; ".join(wrong), "make the study again from the trial folders", sweep.remake)
        return
    if lacking := [number for number in folders if number >= len(trials)]:
        yield Finding(f"the study lacks {_named(lacking)}", "take them from the trial folders", sweep.rebuild)
    for trial in trials:
        if not trial.user_attrs.get("invalid"):
            yield from _check_trial(sweep, trial, folders)


def _check_trial(sweep: Sweep, trial: FrozenTrial, folders: Folders) -> Iterator[Finding]:
    name, found = f"trial {trial.number}", folders.get(trial.number, ())
    ours = [folder for folder in found if folder.head == trial.user_attrs["experiment"][:6]]
    if not ours:
        cure = "the sweep's command writes it" if not trial.state.is_finished() else "restore it, if it can be"
        yield Finding(f"{name} has no folder", cure)
    for other in found:
        if other not in ours:
            yield Finding(f"{other.path.name} is a second folder of {name}", *_put_away(other))
    for folder in ours:
        yield from _check_end(sweep, trial, folder)


def _check_end(sweep: Sweep, trial: FrozenTrial, folder: TrialFolder) -> Iterator[Finding]:
    """A trial's end in the study is that of its result."""
    name, cure = f"trial {trial.number}", "tell the study what the folder says"
    if not folder.is_done:
        if trial.state.is_finished():
            yield Finding(f"{name} has ended by the study, and has no result", "restore result.json; the study is kept")
    elif not trial.state.is_finished():
        yield Finding(f"{name} has ended by its folder, and not by the study", cure, sweep.rebuild)
    else:
        value = trial.value if trial.state == TrialState.COMPLETE else None
        if (trial.state == TrialState.PRUNED) != folder.is_pruned:
            yield Finding(f"{name} was stopped early by only one of the study and its result", cure, sweep.remake)
        elif value != folder.objective:
            what = f"{name} is worth {value} by the study, and {folder.objective} by its result"
            yield Finding(what, cure, sweep.remake)


def _put_away(folder: TrialFolder) -> tuple[str, Callable[[], object] | None]:
    if (folder.path / "attempts.jsonl").exists():
        return "look at both and move one away: it has been attempted", None
    name = f"unused-{folder.path.name}"
    return f"rename it to {name}", lambda: folder.path.rename(folder.path.with_name(name))


def _named(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (" ..." if len(numbers) > 5 else "")
    return f"{len(numbers)} trial{'s' * (len(numbers) > 1)} ({shown})"
