"""A user's file that is edited while a trial's job waits: what trains is what the sweep recorded,
or nothing.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from command.conftest import SCRIPT as TRAINER
from command.conftest import TRAINS
from support import Ended, Run, read, trials, wait_for

SCRIPT = "import helper\n" + TRAINER.replace(
    "trainer.train()", "trainer.evaluated = helper.VALUE\ntrainer.train()"
)
RECIPE = """
learning_rate: 1.0e-05
num_generations: 4
per_device_train_batch_size: 4
max_steps: 1
eval_strategy: steps
dataset: data.jsonl
"""
pytestmark = pytest.mark.slow
WORDS = (
    "trainer=command",
    TRAINS,
    "name=s",
    "cluster=slurm",
    "+trainer.environment.GRPOSWEEP_ASK_MODE=real",
    "cluster.gpus_per_node=0",
    "cluster.poll_seconds=0.3",
)


@pytest.fixture
def words(here: Path, state: Path) -> tuple[str, ...]:
    """A sweep whose jobs wait until the file ``go`` exists."""
    for name, text in (
        ("train.py", SCRIPT),
        ("recipe.yaml", RECIPE),
        ("helper.py", "VALUE = 1.0\n"),
        ("data.jsonl", "{}\n"),
    ):
        (here / name).write_text(text)
    return (*WORDS, f"cluster.setup=['until [ -e {state}/go ]; do sleep 0.05; done']")


def values(here: Path) -> list[float]:
    """The objective of each trial: what its script imported."""
    return [read(trial / "result.json")["objective"] for trial in trials(here / "outputs" / "s")]


@pytest.fixture
def edit_while_jobs_wait(
    start: Callable, words: tuple[str, ...], here: Path, state: Path
) -> Callable[[str, str], Ended]:
    """Begin a sweep of two trials, give a file another content before its jobs start, and wait for
    the sweep's end.
    """

    def edit(name: str, text: str) -> Ended:
        process = start(*words, "-m", "lr=1e-3,2e-3")
        wait_for(lambda: len(list(state.glob("*.job"))) == 2)
        (here / name).write_text(text)
        (state / "go").touch()
        out, err = process.communicate(timeout=300)
        return Ended(process.returncode, out, err)

    return edit


def test_a_waiting_job_refuses_a_file_that_changed_and_has_no_copy(
    edit_while_jobs_wait: Callable[[str, str], Ended],
    run: Run,
    words: tuple[str, ...],
    here: Path,
) -> None:
    """What the command imports; the same command then trains with the present file."""
    ended = edit_while_jobs_wait("helper.py", "VALUE = 2.0\n")
    assert ended.code == 1, ended.out + ended.err
    for trial in trials(here / "outputs" / "s"):
        failure = read(trial / "result.json")["failure"]
        assert "helper.py has changed since the sweep recorded it" in failure["message"]
    again = run(*words, "-m", "lr=1e-3,2e-3")
    assert (again.code, values(here)) == (0, [2.0, 2.0]), again.out + again.err
    assert again.out.count("is tried again: helper.py has changed") == 2


def test_what_a_dry_run_wrote_trains_with_the_files_of_the_real_run(
    run: Run, words: tuple[str, ...], here: Path, state: Path
) -> None:
    """Users look at the scripts first, and then correct their code."""
    (state / "go").touch()
    assert run(*words, "cluster=dry_run", "-m", "lr=1e-3,2e-3").code == 0
    (here / "helper.py").write_text("VALUE = 2.0\n")
    ended = run(*words, "-m", "lr=1e-3,2e-3")
    assert (ended.code, values(here)) == (0, [2.0, 2.0]), ended.out + ended.err
