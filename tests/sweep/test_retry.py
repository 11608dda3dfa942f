"""Failed trials are tried again in place, once what made them fail has changed or if the user asks
for it.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import append_line
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.inputs import TrialInputs, digest_of
from grposweep.storage.records import read_attempts
from grposweep.sweep._resume import leaving_nothing
from grposweep.sweep.rerun import rerun_trial
from grposweep.sweep.retry import retry_trials
from in_process import Sweep, sweeps_in
from support import RUN, Printed, lines, read, trials, unwrap

REWARDS = "task.rewards=[rewards.py:right]"
FAKE = (
    "trainer=fake",
    "name=s",
    "schedule.budget_completions=null",
    "schedule.max_steps=2",
    REWARDS,
)
CRASH = "trainer.args.crash_above_lr=5e-3"
GRID = (*FAKE, CRASH, "lr=1e-2,2e-2")


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A sweep from its command to its folder, with a file of rewards that imports another one."""
    (tmp_path / "rewards.py").write_text(
        "import helpers\n\ndef right(completions, **_): return [helpers.ONE for _ in completions]\n"
    )
    (tmp_path / "helpers.py").write_text("ONE = 1.0\n")
    return sweeps_in(tmp_path, monkeypatch)


def attempts(folder: Path) -> list[int]:
    """How many attempts each trial had."""
    return [
        sum(event.event == "started" for event in read_attempts(trial)) for trial in trials(folder)
    ]


@pytest.mark.slow
def test_failed_trials_are_tried_again_once_what_may_have_failed_them_has_changed(
    sweep: Sweep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: Printed,
) -> None:
    """By the same command, and once: after a change of a file that their reward imports, of a key
    that leaves the experiment the same, and after a login. Keys that decide what is tried or shown
    are no reason.
    """
    folder = sweep(*GRID)
    assert attempts(sweep(*GRID, "search.trials=9", "verbose=true")) == [1, 1]
    assert "give the same command again" in unwrap(printed())
    (tmp_path / "helpers.py").write_text("ONE = 2.0\n")
    assert attempts(sweep(*GRID)) == [2, 2]
    assert "trial 0 is tried again: helpers.py has changed" in printed()
    digests = read(trials(folder)[0] / "provenance.json")["files"]
    assert digests.keys() == {"rewards.py", "helpers.py"}
    changed = (*GRID, "+cluster.environment.NCCL_P2P_DISABLE=1")
    assert attempts(sweep(*changed)) == [3, 3]
    assert "trial 0 is tried again: its configuration has changed" in printed()
    assert "NCCL_P2P_DISABLE" in (trials(folder)[0] / "config.yaml").read_text()
    assert attempts(sweep(*changed)) == [3, 3]
    monkeypatch.setenv("HF_TOKEN", "a-token-of-this-test")
    assert attempts(sweep(*changed)) == [4, 4]


def test_retry_repeats_the_last_command(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """Not the first one, whose search.trials may be smaller. ``run`` is recorded, which Hydra does
    not see. A script's path counts from where the command was given; one that is gone is refused,
    and so is a command without words.
    """
    words = (*FAKE, CRASH, "lr=1e-2")
    for program, *more in (["bin/grposweep"], [str(RUN), "-m", "search.trials=7"]):
        monkeypatch.setattr(sys, "argv", [program, *words, *more])
        folder = sweep(*words, *more[1:])
    commands = folder / "commands.jsonl"
    assert f"-m grposweep run {FAKE[0]}" in lines(commands)[0]["command"]
    asked: list[list[str]] = []
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda words, **_: asked.append(words) or subprocess.CompletedProcess((), 5),
    )
    printed()
    assert retry_trials("s", (), folder.parent) == 5
    assert printed().endswith(" search.trials=7\n")
    (tmp_path / "there.py").write_text("")
    place = {"working_directory": str(tmp_path)}
    append_line(commands, {"command": "python there.py -m lr=1e-2", **place})
    assert retry_trials("s", (), folder.parent) == 5
    assert asked[1:] == [[sys.executable, "there.py", "-m", "lr=1e-2"]]
    for command in ("python gone.py there.py", "python"):
        append_line(commands, {"command": command, **place})
        with pytest.raises(UserError, match="does not record a command that can be run again"):
            retry_trials("s", (), folder.parent)
    assert len(asked) == 2


@pytest.mark.slow
def test_retry_of_a_copied_sweep_leaves_the_original_alone(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded command runs the original's folder; the message has the command for the copy."""
    monkeypatch.setattr(sys, "argv", [str(RUN), "-m", *GRID])
    folder = sweep(*GRID)
    shutil.copytree(folder, tmp_path / "copy" / "s")
    with pytest.raises(
        UserError, match=f"was moved or copied: its command runs {folder}.*outputs=.*/copy name=s"
    ):
        retry_trials("s", (), tmp_path / "copy")
    assert attempts(folder) == [1, 1]


@pytest.mark.slow
def test_retry_leaves_trials_as_they_are_if_the_command_is_refused(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command without the mistake then tries the named trials again, and no others."""
    folder = sweep(*GRID)
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(sys, "argv", [str(RUN), "-m", *GRID])
    sweep(*GRID)
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda *_, env, **__: asked.append(env) or subprocess.CompletedProcess((), 2),
    )
    retry_trials("s", ("1",), folder.parent)
    assert [read(trial / "result.json")["status"] for trial in trials(folder)] == [
        "failed",
        "failed",
    ]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPOSWEEP_RETRY", asked[0]["GRPOSWEEP_RETRY"])
    assert attempts(sweep(*GRID)) == [1, 2]
    assert attempts(sweep(*GRID)) == [1, 2]


@pytest.mark.slow
def test_files_that_changed_under_trained_trials_are_refused_until_the_user_chooses(
    sweep: Sweep, tmp_path: Path
) -> None:
    """Three choices in one message; the sweep's own copy, the present file, or another sweep."""
    words = (*FAKE, CRASH, "lr=1e-3,1e-2")
    folder = sweep(*words)
    old = read(trials(folder)[0] / "provenance.json")["files"]
    (tmp_path / "rewards.py").write_text(
        "def right(completions, **_): return [0.5 for _ in completions]\n"
    )
    with pytest.raises(
        UserError, match=r"(?s)rewards.py has changed since 1 trial.*name=.*recorded.*accept"
    ):
        sweep(*words)
    more = (*FAKE, CRASH, "lr=1e-3,1e-2")
    with pytest.MonkeyPatch.context() as asked:
        asked.setenv("GRPOSWEEP_RETRY", trials(folder)[1].name)
        assert attempts(sweep(*more, "search.changed_files=recorded")) == [1, 2]
    assert read(trials(folder)[1] / "provenance.json")["files"] == old
    assert attempts(sweep(*more, "search.changed_files=accept")) == [1, 3]
    first, second = (read(trial / "provenance.json")["files"] for trial in trials(folder))
    assert first == old
    assert second["rewards.py"] != old["rewards.py"]
    # the choice has been made
    assert attempts(sweep(*more)) == [1, 3]


def test_what_was_written_and_not_trained_uses_the_files_of_the_run_that_trains_it(
    sweep: Sweep, tmp_path: Path
) -> None:
    """A dry run writes trials; files may be corrected before the real run, which may add others."""
    folder = sweep(*FAKE, "lr=1e-3", "cluster=dry_run", "cluster.gpus_per_node=0")
    (tmp_path / "helpers.py").write_text("ONE = 2.0\n")
    sweep(*FAKE, "lr=1e-3")
    (trial,) = trials(folder)
    assert read(trial / "result.json")["status"] == "finished"
    assert (
        read(trial / "provenance.json")["files"]["helpers.py"]
        == digest_of(tmp_path / "helpers.py")[:16]
    )
    assert Path(TrialInputs.read(trial).path("helpers.py")).read_text() == "ONE = 2.0\n"


@pytest.mark.slow
def test_every_point_of_a_grid_is_run_once_more_with_force(sweep: Sweep) -> None:
    """As a single run is; the earlier results stay next to the new ones."""
    words = (*FAKE, "lr=1e-3,2e-3")
    folder = sweep(*words)
    assert attempts(sweep(*words, "force=true")) == [1, 1, 1, 1]
    points = [read(trial / "trial.json")["point"]["lr"] for trial in trials(folder)]
    assert sorted(points) == [1e-3, 1e-3, 2e-3, 2e-3]
    assert attempts(sweep(*words)) == [1, 1, 1, 1]


def test_a_script_runs_as_it_was_when_its_trial_was_written(sweep: Sweep, tmp_path: Path) -> None:
    """The copy is found by the trial; one that looks for files next to itself runs where it is, and
    must not have changed.
    """
    folder = sweep(*GRID)
    trial = trials(folder)[0]
    original = (tmp_path / "helpers.py").read_text()
    (tmp_path / "helpers.py").write_text("ONE = 3.0\n")
    found = TrialInputs.read(trial)
    assert Path(found.path("helpers.py")).read_text() == original
    found.check()
    shutil.rmtree(folder / "inputs")
    with pytest.raises(UserError, match=r"helpers.py has changed since the sweep recorded it"):
        found.check()


@pytest.mark.slow
def test_the_recorded_command_of_a_rerun_names_its_trial(sweep: Sweep) -> None:
    """By its path: the newest sweep may be another one when ``grposweep retry`` repeats it."""
    (trial,) = trials(sweep(*FAKE, "lr=1e-3"))
    rerun_trial(TrialFolder(trial), [])
    (made,) = trial.parents[2].glob("*rerun*")
    (noted,) = lines(made / "commands.jsonl")
    assert noted["command"].endswith(f"-m grposweep rerun {trial}")


def test_a_refused_command_deletes_only_what_a_sweep_writes(tmp_path: Path) -> None:
    """And looks at no path that cannot exist."""
    with pytest.raises(UserError), leaving_nothing(SweepFolder(tmp_path / "s")):  # noqa: PT012 - the folder is made inside
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "notes.txt").write_text("mine")
        raise UserError("refused")
    assert (tmp_path / "s" / "notes.txt").exists()
    with pytest.raises(UserError), leaving_nothing(SweepFolder(tmp_path / ("s" * 300))):
        raise UserError("refused")
