"""docs/guides/own_script.md, as a newcomer would follow it: its files written, its commands run,
its promises looked at.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support import PROJECT, environment, lines, read, trials

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
DOCUMENT = PROJECT / "docs" / "guides" / "own_script.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# what pip installs; interpreters of their own, because values enter when Python starts
PROGRAMS = {
    "python": "",
    "grposweep": " -m grposweep",
    "torchrun": " -m torch.distributed.run",
}


@pytest.fixture
def followed(tmp_path: Path) -> Path:
    """The folder of a user who did all that the tutorial says, in order."""
    folder = tmp_path / "a folder"
    programs = folder.parent / "bin"
    folder.mkdir()
    programs.mkdir()
    for name, words in PROGRAMS.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    known = environment(GRPOSWEEP=str(PROJECT), PATH=path, PYTHONPATH=str(PROJECT / "src"))
    for kind, text in BLOCK.findall(DOCUMENT.read_text()):
        if kind == "sh":
            done = subprocess.run(
                ["sh", "-ec", text],
                cwd=folder,
                env=known,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        elif kind != "console":
            (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
    return folder


def sweep(folder: Path, name: str) -> Path:
    """The only sweep whose name begins so."""
    (found,) = (path for path in (folder / "outputs").iterdir() if path.name.startswith(name))
    return found


def the_unchanged_command_is_swept_and_invalid_points_never_start(followed: Path) -> None:
    """Two of four points train; each trainer got its own learning rate, and the rest as the recipe
    has it.
    """
    done = trials(sweep(followed, "launch-lr"))
    assert [read(folder / "result.json")["status"] for folder in done] == ["finished"] * 2
    got = [read(folder / "trained_with.json")["values"] for folder in done]
    assert [values["learning_rate"] for values in got] == [1e-4, 1e-3]
    assert {(values["num_generations"], values["max_steps"]) for values in got} == {(8, 40)}
    assert "bash launch.sh" in (done[0] / "program.sh").read_text()


def a_trials_objective_is_the_scripts_own_last_evaluation(followed: Path) -> None:
    """Every step is logged once, and the better learning rate learned more."""
    first, second = (
        read(folder / "result.json") for folder in trials(sweep(followed, "launch-lr"))
    )
    metrics = lines(trials(sweep(followed, "launch-lr"))[0] / "metrics.jsonl")
    assert (
        first["objective"]
        == [line["eval_reward"] for line in metrics if line["kind"] == "eval"][-1]
    )
    assert [line["step"] for line in metrics if line["kind"] == "train"] == list(range(1, 41))
    assert second["objective"] > first["objective"]


def an_option_of_the_script_is_swept_and_no_paused_trial_repeats_a_step(followed: Path) -> None:
    """Three trials, each on the rows that its option asks for; one may have paused."""
    done = trials(sweep(followed, "search"))
    assert len(done) == 3
    for folder in done:
        last = read(folder / "changed.json")["options"]["last"]
        assert read(folder / "trained_with.json")["train_rows"] == (last - 10) * 20
        steps = [
            line["step"] for line in lines(folder / "metrics.jsonl") if line["kind"] == "train"
        ]
        assert steps == list(range(1, len(steps) + 1))
    ended = {read(f / "result.json")["status"]: read(f / "callback.json")["step"] for f in done}
    assert ended["finished"] == 20
    assert ended.keys() <= {"finished", "stopped"}


def two_processes_really_train(followed: Path) -> None:
    """The trainer reports the size of its world."""
    (trial,) = trials(sweep(followed, "two"))
    assert read(trial / "result.json")["status"] == "finished"
    assert read(trial / "trained_with.json")["world_size"] == 2
    assert "torchrun --nproc_per_node 2" in (trial / "program.sh").read_text()


def a_job_has_one_task_per_node_with_all_of_its_gpus(followed: Path) -> None:
    """Two nodes of four GPUs: eight ranks, which accelerate or torchrun starts."""
    first, second = trials(sweep(followed, "jobs"))
    script = next(first.glob("job-*.sbatch")).read_text()
    assert "#SBATCH --ntasks-per-node=1" in script
    assert "#SBATCH --gres=gpu:4" in script
    assert yaml.safe_load((second / "recipe.yaml").read_text())["learning_rate"] == 1e-3


PROMISES = (
    the_unchanged_command_is_swept_and_invalid_points_never_start,
    a_trials_objective_is_the_scripts_own_last_evaluation,
    an_option_of_the_script_is_swept_and_no_paused_trial_repeats_a_step,
    two_processes_really_train,
    a_job_has_one_task_per_node_with_all_of_its_gpus,
)


def test_the_guide_keeps_its_promises(followed: Path) -> None:
    """They are looked at together: to follow the guide takes minutes."""
    for promise in PROMISES:
        promise(followed)
