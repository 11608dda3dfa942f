"""What a search asks of a user's own script in the middle of its training: to wait, or to end. Real
TRL, a tiny model.
"""

import sys
from pathlib import Path

import pytest

from end_to_end.test_own_script import BLOCK, DOCUMENT
from grposweep.search.early_stopping import Action
from grposweep.train._tiny import tiny_folder
from in_process import Waits, sweeps_in
from support import lines, read, trials

pytestmark = pytest.mark.slow
STEPS = 60
ACTIONS = {2e-3: Action.PAUSE, 4e-3: Action.STOP}
# guards off: at these learning rates some processors' rounding ends in a collapse
SCRIPT = (
    "trainer=command",
    f"trainer.command='{sys.executable} -m torch.distributed.run --nproc_per_node 2 train.py "
    "--config recipe.yaml'",
    "cluster.processes=2",
    "name=s",
    "lr=2e-3,4e-3",
    f"schedule.max_steps={STEPS}",
    "batch.num_iterations=2",
    "search.guards=false",
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], int]:
    """The trials of the tutorial's script and recipe, and the last step of the paused one when it
    was promoted. Two ranks (gloo) have to stop at one step: each rollout and each step joins them.
    """
    here = tmp_path_factory.mktemp("pausing")
    seen = list[int]()
    for kind, text in BLOCK.findall(DOCUMENT.read_text()):
        if kind in ("python", "yaml"):
            (here / text.splitlines()[0].removeprefix("# ")).write_text(text)
    (here / "tiny").symlink_to(tiny_folder())
    stopping = Waits(lambda _: seen.append(steps(trials(here / "outputs" / "s")[0])[-1]), ACTIONS)
    with pytest.MonkeyPatch.context() as patch:
        folder = sweeps_in(here, patch)(*SCRIPT, stopping=stopping)
    return trials(folder), seen[0]


def steps(trial: Path) -> list[int]:
    """The optimizer steps that it logged."""
    return [line["step"] for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"]


def test_a_script_waits_at_a_rollout_boundary_and_trains_no_step_twice(
    swept: tuple[list[Path], int],
) -> None:
    """Every rollout is used for two steps; what it had logged when it was promoted stays as it
    was.
    """
    (trial, _), seen = swept
    assert read(trial / "result.json")["status"] == "finished"
    assert seen % 2 == 0
    assert 10 <= seen < STEPS
    assert steps(trial) == list(range(1, STEPS + 1))
    assert {line["attempt"] for line in lines(trial / "metrics.jsonl") if line["step"] <= seen} == {
        0
    }


def test_a_script_ends_at_a_rollout_boundary_when_it_is_pruned(
    swept: tuple[list[Path], int],
) -> None:
    """Its reason is in the record, and it is neither failed nor finished."""
    pruned = read(swept[0][1] / "result.json")
    assert pruned["status"] == "pruned"
    assert pruned["reason"] == "let others try"
    assert 10 <= pruned["step"] < STEPS
    assert pruned["step"] % 2 == 0
