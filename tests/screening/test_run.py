"""Running a screen through a launcher: resumed, refused, interrupted, found again."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

from grporecipe.errors import ExitCode, UserError
from grposweep.config.compose import load_experiment, open_session
from grposweep.config.points import Points
from grposweep.launchers.base import End, Job, Launcher, LauncherBusy
from grposweep.registries import LAUNCHERS
from grposweep.schema import Experiment
from grposweep.screening.run import SAMPLED_PROMPTS, run_screen, screen_sweep
from grposweep.storage.records import Action, AttemptEvent, ControlRequest
from grposweep.storage.results import FailureReport, TrialResult, TrialStatus
from grposweep.storage.screens import ScreenedData, ScreenRequest, read_samples, screening_order

from .made import make_prompt

TRAIN_PROMPTS = 300


class Instant(Launcher):
    """Screens at once, without a model; ``codes`` are how its attempts end."""

    kind, slots = "instant", 1
    submitted: list[int]
    codes: list[int]
    busy: int
    running: str | None  # an attempt of an earlier process

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:  # noqa: ARG003 - the contract's arguments
        return cls()

    def submit(self, job: Job) -> str:
        if Instant.busy:
            Instant.busy -= 1
            raise LauncherBusy
        request = ScreenRequest.read(job.folder)
        assert request is not None
        assert load_experiment(job.folder / "config.yaml").task.keep_between is None
        self.submitted.append(job.attempt)
        ScreenedData(TRAIN_PROMPTS, {"train": "t"}, ("exact",), (1.0,)).write(job.folder)
        known = {prompt.prompt for prompt in read_samples(job.folder)}
        for number in screening_order(TRAIN_PROMPTS)[: request.prompts]:
            if number not in known and self.codes[0] == 0:
                make_prompt(number, [0.0, 1.0]).append(job.folder)
        if self.codes[0] == ExitCode.BAD_INPUT:
            report = FailureReport("bad_input", "task.path is wrong. Set another.", ())
            TrialResult(TrialStatus.FAILED, job.attempt, failure=report).write(job.folder)
        return f"instant-{job.attempt}"

    def find(self, job: Job, job_id: str | None) -> str | None:  # noqa: ARG002 - the contract's arguments
        return self.running

    def poll(self, job_id: str) -> End | None:  # noqa: ARG002 - the contract's arguments
        return End(self.codes.pop(0) if len(self.codes) > 1 else self.codes[0])

    def cancel(self, job_id: str) -> None:
        """Nothing runs."""


@dataclass
class Asked:
    """A count of requests to stop."""

    count: int = 0
    console: Any = field(default_factory=lambda: Console(quiet=True))


@pytest.fixture(scope="module")
def composed() -> Experiment:
    """The default experiment."""
    with open_session() as session:
        return Points(session.compose, []).base


@pytest.fixture
def base(composed: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """The same on the instant launcher, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(LAUNCHERS, "instant", Instant)
    Instant.submitted, Instant.codes, Instant.busy, Instant.running = [], [0], 0, None
    return replace(composed, cluster=replace(composed.cluster, kind="instant", poll_seconds=0.0))


def screened(base: Experiment, prompts: int | None = None, asked: int = 0) -> Any:
    """Run a screen."""
    given = Asked(asked)
    return run_screen(base, 16, prompts, given.console, given)


def test_a_finished_screen_is_not_run_again_and_a_larger_one_continues_from_it(base: Experiment) -> None:
    """64 prompts, the same 64, then all."""
    assert len(screened(base, 64).prompts) == 64
    screened(base, 64)
    screened(base, 32)
    assert Instant.submitted == [0]
    assert screened(base).is_whole
    assert Instant.submitted == [0, 1]


def test_a_busy_launcher_gets_the_job_again(base: Experiment) -> None:
    """A full queue is not a failure."""
    Instant.busy = 2
    assert screened(base, 8) is not None


@pytest.mark.parametrize(
    ("code", "message"),
    [(ExitCode.BAD_INPUT, "^task.path is wrong"), (ExitCode.FAILED, "screening failed .exit code 1")],
)
def test_a_failed_attempt_has_its_reason_in_the_message(base: Experiment, code: int, message: str) -> None:
    """Bad input in its own words, anything else with the place of its output."""
    Instant.codes = [code]
    with pytest.raises(UserError, match=message):
        screened(base, 8)


def test_an_interrupted_screen_returns_nothing_and_can_continue(base: Experiment) -> None:
    """The attempt is asked to stop; the next one clears the request."""
    Instant.codes = [ExitCode.STOPPED]
    assert screened(base, 8) is None
    assert screened(base, 8, asked=1) is None
    Instant.codes = [0]
    assert len(screened(base, 8).prompts) == 8
    folder = next(Path("outputs/screens").iterdir())
    assert ControlRequest.read(folder).action == Action.RUN


def test_a_running_job_of_an_earlier_process_is_not_started_twice(base: Experiment) -> None:
    """Two would write to one file."""
    Instant.codes = [ExitCode.FAILED]
    with pytest.raises(UserError):
        screened(base, 8)
    folder = next(Path("outputs/screens").iterdir())
    AttemptEvent(7, "started", job_id="instant-7").append(folder)
    Instant.codes, Instant.running, Instant.submitted = [ExitCode.STOPPED], "instant-7", []
    assert screened(base, 8) is None
    assert Instant.submitted == []


def test_a_sweep_samples_some_prompts_and_all_of_them_to_filter(base: Experiment) -> None:
    """A share of groups needs few prompts; a filter needs each."""
    given = Asked()
    assert screen_sweep([base], given.console, given)
    assert len(read_samples(next(Path("outputs/screens").iterdir()))) == SAMPLED_PROMPTS
    assert screen_sweep([replace(base, task=replace(base.task, keep_between=[0.2, 0.8]))], given.console, given)
    assert len(read_samples(next(Path("outputs/screens").iterdir()))) == TRAIN_PROMPTS
    many = [replace(base, generation=replace(base.generation, temperature=t / 10)) for t in range(1, 11)]
    with pytest.raises(UserError, match="10 combinations"):
        screen_sweep(many, given.console, given)
