"""``grposweep continue`` with changed keys: children of a checkpoint, one change each, on the same
data and random numbers.
"""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from grporecipe.errors import ExitCode, UserError
from grposweep.config.compose import load_experiment, render_experiment
from grposweep.config.identity import ResolvedConfig
from grposweep.report.status import status_screen
from grposweep.report.view import read_sweep
from grposweep.schema import Experiment
from grposweep.storage.folders import TrialFolder
from grposweep.storage.forks import ForkState, checkpoint_hash, start_of_continuation
from grposweep.sweep.continuation import continue_trial
from in_process import Sweep
from refused import says
from support import Printed, Run, grposweep, lines, on_terminal, read, sampled, trials

FAKE = (
    "trainer=fake",
    "trainer.keep=all",
    "schedule=steps",
    "schedule.max_steps=8",
    "name=s",
    "lr=1e-3",
)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrialFolder:
    """A recorded trial of 8 steps with fake checkpoints at 2 and 4, none of which is ever trained
    here.
    """
    monkeypatch.chdir(tmp_path)
    trial = tmp_path / "outputs" / "s" / "trials" / "0000-abcdef"
    for step in (2, 4):
        (trial / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
        (trial / "checkpoints" / f"checkpoint-{step}" / "fake.json").write_text(
            f'{{"step": {step}}}'
        )
    (trial.parents[1] / "sweep.yaml").write_text("name: s\n")
    experiment = Experiment()
    experiment.trainer.kind = "fake"
    experiment.schedule.max_steps = 8
    experiment.batch.per_device_train_batch_size = experiment.batch.gradient_accumulation_steps = 8
    (trial / "config.yaml").write_text(render_experiment(experiment))
    return TrialFolder(trial)


@pytest.mark.parametrize(
    ("step", "change", "why"),
    sampled(
        [
            (4, "seed=1,2", "search.seeds=N"),
            (4, "batch.num_generations=4", "the data order would change"),
            (4, "model=qwen3_0_6b", "the weights of this model"),
            (4, "optimizer.optim=sgd", "the state of the other optimizer"),
            (4, "kl.ref_model_sync_steps=3", "the reference model is that of the checkpoint"),
            (4, "cluster.processes=2 lr=1e-4", "so many ranks"),
            (4, "lr=interval(1e-5,1e-3)", "List them"),
            (4, "lr=0.0003", "changes nothing"),
            (4, "sweeps=kl_grid", "would replace several groups"),
            (4, "search=grid lr=1e-4", "a branch compares each value with a control"),
            (7, "lr=1e-4", "has no checkpoint there (it has checkpoints at 2, 4). Set --from 4"),
            (
                None,
                "lr=1e-4",
                "lr: with another value than its own ... Set --from 4 (it has checkpoints at 2, 4)",
            ),
            (4, "schedule.max_steps=16 lr=1e-4", "follow a plan of the whole training"),
        ],
        4,
    ),
)
def test_what_a_branch_cannot_do_is_refused_before_anything_starts(
    parent: TrialFolder, step: int | None, change: str, why: str
) -> None:
    """The message says why; no folder is made. Only complete checkpoints count."""
    with pytest.raises(UserError, match=says(why)):
        continue_trial(parent, change.split(), step)
    assert [path.name for path in Path("outputs").iterdir()] == ["s"]


def test_a_branch_whose_changes_are_all_invalid_is_refused(
    parent: TrialFolder, printed: Printed
) -> None:
    """Only the control would be trained."""
    with pytest.raises(UserError, match="None of the changes is valid"):
        continue_trial(parent, ["generation.temperature=0"], 4)
    assert "GL104" in printed()
    assert [path.name for path in Path("outputs").iterdir()] == ["s"]


def test_a_trial_that_kept_no_checkpoint_is_answered_with_the_command_that_keeps_them(
    parent: TrialFolder,
) -> None:
    """trainer.keep=best deletes them at the end of a training."""
    parent.delete_checkpoints()
    with pytest.raises(UserError, match=r"grposweep rerun .* trainer\.keep=all"):
        continue_trial(parent, ["lr=1e-4"], 4)


def test_a_child_is_another_experiment_than_a_training_from_the_start() -> None:
    """Whose identity, and that of all trials before, does not know of forks."""
    whole = Experiment()
    forked = Experiment()
    forked.trainer = replace(forked.trainer, fork="0123456789ab")
    whole_id, fork_id = (ResolvedConfig.of(each).identity for each in (whole, forked))
    assert whole_id != fork_id


def test_a_child_starts_with_what_its_parent_had_logged(
    parent: TrialFolder, tmp_path: Path
) -> None:
    """The state lies in the fork's own sweep: the parent may lose its checkpoints."""
    (parent.path / "metrics.jsonl").write_text('{"step": 1}\n')
    source = parent.path / "checkpoints" / "checkpoint-4"
    child = tmp_path / "fork" / "trials" / "0000-a"
    child.mkdir(parents=True)
    state = ForkState("s", parent.path.name, 4, 0, checkpoint_hash(source))
    state.keep(source, parent.path, tmp_path / "fork")
    parent.delete_checkpoints()
    assert start_of_continuation(child, state.digest).step == 4
    assert lines(child / "metrics.jsonl") == [{"step": 1}]
    with pytest.raises(UserError, match="nothing to start from"):
        start_of_continuation(child, "another")


def test_a_checkpoint_that_is_deleted_while_it_is_copied_leaves_no_half_copy(
    parent: TrialFolder, tmp_path: Path
) -> None:
    """The parent may still train, and keeps only its newest checkpoints."""
    source = parent.path / "checkpoints" / "checkpoint-4"
    state = ForkState("s", parent.path.name, 4, 0, checkpoint_hash(source))
    (source / "fake.json").unlink()
    with pytest.raises(UserError, match="could not be copied whole"):
        state.keep(source, parent.path, tmp_path / "fork")
    assert not list(tmp_path.glob("fork/*"))


def test_a_continuations_page_and_status_say_what_it_started_from(tmp_path: Path) -> None:
    """Parent, step and hash come from sweep.yaml, so a copy of the folder says it as well."""
    sweep = tmp_path / "x"
    (sweep / "trials").mkdir(parents=True)
    state = ForkState("/a/lr_batch", "0003-abcdef", 40, 0, "0123456789abcdef")
    (sweep / "sweep.yaml").write_text(
        yaml.safe_dump({"identity": "x", "provenance": {"fork_of": asdict(state)}})
    )
    shown = on_terminal(status_screen(read_sweep(sweep)), columns=100)
    assert "from     lr_batch trial 0003-abcdef at step 40" in shown


@pytest.mark.slow
def test_a_branch_with_accepted_changes_is_another_sweep(sweep_here: Sweep, tmp_path: Path) -> None:
    """Otherwise it would show the results of the fork that read the recorded files."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "1+0=", "answer": "1"}\n' * 9)
    task = ("task=jsonl", "task.path=p.jsonl", "task.eval_prompts=1")
    parent = TrialFolder(trials(sweep_here(*FAKE, *task))[0])
    prompts.write_text('{"prompt": "1+0=", "answer": "2"}\n' * 9)
    for choice in ("recorded", "accept"):
        words = ["lr=1e-2", "search.seeds=2", f"search.changed_files={choice}"]
        assert continue_trial(parent, words, 4) == 0
    read_by = [
        read(path)["files"] for path in Path("outputs").glob("s-*/trials/0000-*/provenance.json")
    ]
    assert len({str(files) for files in read_by}) == 2


@pytest.mark.slow
def test_a_branch_can_be_resumed_from_its_own_copy_after_a_move(
    sweep_here: Sweep, tmp_path: Path, printed: Printed
) -> None:
    """The parent's checkpoints are gone, and paths in the records name the old folder."""
    parent = TrialFolder(trials(sweep_here(*FAKE))[0])
    change = ["lr=1e-2", "search.seeds=2"]
    assert continue_trial(parent, change, 4) == 0
    parent.delete_checkpoints()
    shutil.move("outputs", "moved")
    assert (
        continue_trial(
            TrialFolder(tmp_path / "moved" / "s" / "trials" / parent.path.name), change, 4
        )
        == 0
    )
    assert "4 of them recorded already" in printed()


@pytest.mark.slow
def test_a_branch_is_a_sweep_that_compares_with_its_parent_and_can_be_resumed(
    run: Run, here: Path
) -> None:
    """The control repeats the parent; the record names parent, step and hash; the same command
    continues without the parent.
    """
    fake = (
        "trainer=fake",
        "trainer.keep=all",
        "name=s",
        "schedule=steps",
        "schedule.max_steps=6",
        "lr=1e-3",
        "search.at=best",
    )
    original = trials(run(*fake).sweep)[0]
    step = min(int(path.name.split("-")[1]) for path in (original / "checkpoints").iterdir())
    words = ("continue", "s", "0", "--from", str(step), "lr=1e-3,1e-2", "search.seeds=2")
    first = grposweep(here, *words)
    assert first.code == ExitCode.FINISHED, first.err
    assert "the control against its parent: every number of metrics.jsonl is the same" in first.out
    said = yaml.safe_load((first.sweep / "sweep.yaml").read_text())["provenance"]["fork_of"]
    assert (said["sweep"], said["trial"], said["step"]) == (
        str(original.parents[1]),
        original.name,
        step,
    )
    assert said["sha256"].startswith(
        load_experiment(trials(first.sweep)[1] / "config.yaml").trainer.fork or "none"
    )
    (effect,) = read(first.sweep / "effects.json")["effects"]
    assert load_experiment(trials(first.sweep)[0] / "config.yaml").search.at == "best"
    assert (effect["parameter"], effect["verdict"], effect["effect"]["seeds"]) == ("lr", "worse", 2)
    TrialFolder(original).delete_checkpoints()
    again = grposweep(here, *words)
    assert again.code == ExitCode.FINISHED, again.err
    assert again.sweep == first.sweep
    assert len(trials(again.sweep)) == 4
