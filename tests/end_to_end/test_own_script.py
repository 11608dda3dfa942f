"""docs/guides/own_script.md, as a newcomer would follow it: its files written, its commands run, its promises looked at."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from command_server import shims
from support import PROJECT, environment, lines, read, trials

pytestmark = pytest.mark.slow
DOCUMENT = PROJECT / "docs" / "guides" / "own_script.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user who did all that the tutorial says, in order."""
    folder = tmp_path_factory.mktemp("own") / "a folder"
    folder.mkdir()
    path = f"{shims(folder.parent / 'bin')}:{os.environ['PATH']}"
    known = environment(GRPOSWEEP=str(PROJECT), PATH=path, PYTHONPATH=str(PROJECT / "src"))
    for kind, text in BLOCK.findall(DOCUMENT.read_text()):
        if kind == "sh":
            done = subprocess.run(
                ["sh", "-ec", text], cwd=folder, env=known, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        else:
            (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
    return folder


def sweep(folder: Path, name: str) -> Path:
    """The only sweep whose name begins so."""
    (found,) = (path for path in (folder / "outputs").iterdir() if path.name.startswith(name))
    return found


def test_the_unchanged_script_is_swept_and_invalid_points_never_start(followed: Path) -> None:
    """Two of four points train; each with its own learning rate, the rest of the recipe as it was."""
    done = trials(sweep(followed, "train-recipe"))
    assert [read(folder / "result.json")["status"] for folder in done] == ["finished"] * 2
    recipes = [yaml.safe_load((folder / "recipe.yaml").read_text()) for folder in done]
    assert [recipe["learning_rate"] for recipe in recipes] == [1e-4, 1e-3]
    assert {recipe["num_generations"] for recipe in recipes} == {8}


def test_a_trials_objective_is_the_scripts_own_last_evaluation(followed: Path) -> None:
    """Read from the state that transformers saved, and the better learning rate learned more."""
    first, second = (read(folder / "result.json") for folder in trials(sweep(followed, "train-recipe")))
    metrics = lines(trials(sweep(followed, "train-recipe"))[0] / "metrics.jsonl")
    assert first["objective"] == [line["eval_reward"] for line in metrics if line["kind"] == "eval"][-1]
    assert [line["step"] for line in metrics if line["kind"] == "train"] == list(range(1, 41))
    assert second["objective"] > first["objective"]


def test_the_callback_writes_metrics_and_the_search_keeps_to_valid_groups(followed: Path) -> None:
    """Four trials, no group of 12 among them; one may have paused."""
    done = trials(sweep(followed, "search"))
    assert len(done) == 4
    ended = {read(f / "result.json")["status"]: read(f / "callback.json")["step"] for f in done}
    assert ended["finished"] == 40
    assert ended.keys() <= {"finished", "stopped"}
    recipes = [yaml.safe_load((folder / "recipe.yaml").read_text()) for folder in done]
    assert {recipe["num_generations"] for recipe in recipes} <= {8, 16}


def test_two_processes_really_train(followed: Path) -> None:
    """The callback compares the world's size with the trial's, so a finished trial had two."""
    (trial,) = trials(sweep(followed, "two"))
    assert read(trial / "result.json")["status"] == "finished"
    assert "torch.distributed.run --nproc_per_node 2" in (trial / "program.sh").read_text()


def test_a_job_has_one_task_per_node_with_all_of_its_gpus(followed: Path) -> None:
    """Two nodes of four GPUs: eight ranks, which accelerate or torchrun starts."""
    first, second = trials(sweep(followed, "jobs"))
    script = next(first.glob("job-*.sbatch")).read_text()
    assert "#SBATCH --ntasks-per-node=1" in script
    assert "#SBATCH --gres=gpu:4" in script
    assert yaml.safe_load((second / "recipe.yaml").read_text())["learning_rate"] == 1e-3
