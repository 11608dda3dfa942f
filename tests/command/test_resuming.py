"""Which checkpoint another program continues from: of any kind that is known, and the same on every
node.
"""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from grporecipe.files import write_json
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import TRL
from grposweep.command import follow
from grposweep.command._contract import Trial
from grposweep.command._environment import RESUME
from grposweep.command._script import build_script
from grposweep.schema import Trainer
from grposweep.storage import paths
from grposweep.train.attempt import Attempt
from train.test_checkpoints import LAYOUTS, Layout, names, write_checkpoint


def node(folder: Path, number: int, nodes: int = 1, attempt: int = 1) -> Attempt:
    """Our process on one node of a job with two ranks."""
    cluster = SimpleNamespace(processes=2)
    return SimpleNamespace(  # type: ignore[return-value]  # all that is looked at
        folder=folder,
        number=attempt,
        is_main=number == 0,
        ranks=nodes,
        experiment=SimpleNamespace(cluster=cluster),
    )


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """A trial of a script under torchrun, which keeps its checkpoints in the trial's model folder."""
    return Trial(
        Trainer(kind="command", command="torchrun grpo.py"), tmp_path, Recipe("trl", TRL, {})
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_is_told_the_newest_whole_checkpoint_of_any_kind(
    trial: Trial, layout: Layout
) -> None:
    """Open-R1 trains with ZeRO-2 unless told otherwise."""
    for step in (5, 10):
        write_checkpoint(trial.output, step, 2, layout)
    chosen = follow.choose_checkpoint(node(trial.folder, 0), trial)
    assert chosen == trial.output / "checkpoint-10"
    assert build_script(replace(trial, checkpoint=chosen)).environment[RESUME] == str(chosen)


def test_a_torn_checkpoint_is_renamed_so_that_the_program_does_not_find_it_by_itself(
    trial: Trial,
) -> None:
    """Open-R1 takes the highest number where it is told nothing."""
    write_checkpoint(trial.output, 5, 2)
    (write_checkpoint(trial.output, 10, 2) / "scheduler.pt").unlink()
    assert follow.choose_checkpoint(node(trial.folder, 0), trial) == trial.output / "checkpoint-5"
    assert names(trial.output) == {"checkpoint-5", "broken-checkpoint-10"}


def test_all_nodes_resume_from_the_first_ones_choice(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second node still sees the choice of an earlier attempt, and waits for this one's."""
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)
    write_json(trial.folder / paths.RESUME_CHOICE, {"attempt": 0, "checkpoint": "checkpoint-1"})
    found: list[Path | None] = []
    second = threading.Thread(
        target=lambda: found.append(follow.choose_checkpoint(node(trial.folder, 1, nodes=2), trial))
    )
    second.start()
    second.join(0.1)
    assert not found
    write_checkpoint(trial.output, 5, 2)
    assert (
        follow.choose_checkpoint(node(trial.folder, 0, nodes=2), trial)
        == trial.output / "checkpoint-5"
    )
    second.join(10)
    assert found == [trial.output / "checkpoint-5"]


def test_a_node_whose_first_node_says_nothing_gives_up(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of training from the beginning while the others continue."""
    monkeypatch.setattr(follow, "CHOICE_SECONDS", 0.0)
    with pytest.raises(TimeoutError, match=r"resume\.json"):
        follow.choose_checkpoint(node(trial.folder, 1, nodes=2), trial)
