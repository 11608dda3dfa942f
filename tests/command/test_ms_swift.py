"""ms-swift: its variables, its log, and (slow, where its environment is) real sweeps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grporecipe.model.recipe import Recipe
from grposweep.command._contract import NodeContext, Trial
from grposweep.command._frameworks import FRAMEWORKS
from grposweep.command._logs import LogTail, swift_entries
from grposweep.command.follow import without_report
from grposweep.process import PROJECT
from grposweep.schema import Trainer
from support import Run

PYTHON = PROJECT / ".venvs" / "ms-swift" / "bin" / "python"
TINY = PROJECT / "benchmarks" / "frameworks" / "tiny"
COMMAND = (str(PYTHON.with_name("swift")), "rlhf", str(TINY / "grpo.yaml"))
NAME = "logging.jsonl"


def write(folder: Path, *steps: int, kind: str = "reward", start: int = 0) -> None:
    """Append what ms-swift logs at these steps."""
    with (folder / NAME).open("a") as file:
        for step in steps:
            file.write(
                json.dumps(
                    {kind: step / 10, "global_step/max_steps": f"{step}/9", "elapsed_time": "0s"}
                )
                + "\n"
            )


def test_several_nodes_are_told_where_to_meet(tmp_path: Path) -> None:
    """Its own torchrun starts the ranks of each; a single process needs none."""
    trainer = Trainer(kind="command", command="bash run.sh")
    recipe = Recipe("ms-swift", (4, 6, 0), {})
    places = [NodeContext(processes=n) for n in (1, 2)]
    places.append(NodeContext(processes=16, node=1, nodes=2, address="10.0.0.1", port=29500))
    told = [
        FRAMEWORKS["ms-swift"].environment(Trial(trainer, tmp_path, recipe, at)) for at in places
    ]
    assert told[:2] == [{}, {"NPROC_PER_NODE": "2"}]
    assert told[2] == {
        "NPROC_PER_NODE": "8",
        "NNODES": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
    }


def test_torchruns_report_does_not_hide_what_the_rank_said() -> None:
    """It is longer than the lines that a result keeps."""
    report = [
        "E1120 torch/distributed/elastic/multiprocessing/api.py:988] failed (exitcode: 1) "
        "local_rank: 0",
        *["="] * 40,
    ]
    assert without_report(["ValueError: nonsense", *report]) == ["ValueError: nonsense"]


def test_the_log_is_read_as_it_grows_numbers_only(tmp_path: Path) -> None:
    """A line that is being written waits for its end; summaries are no steps."""
    log = LogTail(tmp_path / NAME, swift_entries, None)
    assert log() == []
    (tmp_path / NAME).write_text('{"model_parameter_info": "0.08M", "global_step": 0}\n')
    write(tmp_path, 1, 2)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"reward": 0.3, "global_step/max_st')
    assert [(entry.kind, entry.step, dict(entry.values)) for entry in log()] == [
        ("train", 1, {"reward": 0.1}),
        ("train", 2, {"reward": 0.2}),
    ]
    with (tmp_path / NAME).open("a") as file:
        file.write('eps": "3/9"}\n{"train_runtime": 2.8, "global_step/max_steps": "3/9"}\n')
    write(tmp_path, 3, kind="eval_reward")
    assert [(entry.kind, entry.step) for entry in log()] == [("train", 3), ("eval", 3)]


def test_steps_up_to_the_checkpoint_are_known_already(tmp_path: Path) -> None:
    """What an earlier attempt did after that happens again; a log may begin again as well."""
    write(tmp_path, 1, 2, 3)
    log = LogTail(tmp_path / NAME, swift_entries, resumed_at=2)
    write(tmp_path, 2, 3)
    assert [entry.step for entry in log()] == [3]
    (tmp_path / NAME).unlink()
    write(tmp_path, 4)
    assert [entry.step for entry in log()] == [4]


def test_lines_that_are_no_entries_are_skipped(tmp_path: Path) -> None:
    """The program or a library of it may write anything into the log."""
    (tmp_path / NAME).write_text('3\n["a"]\nnull\n{"global_step/max_steps": 7}\nplain text\n')
    write(tmp_path, 1)
    log = LogTail(tmp_path / NAME, swift_entries, None)
    write(tmp_path, 2)
    assert [entry.step for entry in log()] == [2]


def test_the_validator_speaks_of_ms_swift_before_anything_starts(run: Run) -> None:
    """The same rules as for its recipes, with the names of the parameters."""
    done = run("batch.num_generations=12", "--", *COMMAND)
    assert done.code == 2
    assert "ms-swift needs whole" in done.out + done.err


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="make ms-swift makes its environment")
def test_a_sweep_trains_with_the_real_ms_swift(run: Run, here: Path, tmp_path: Path) -> None:
    """Two points of the tiny model: metrics, evaluations, result and model are where those of TRL
    are.
    """
    folder = tmp_path / "tiny"
    subprocess.run([sys.executable, str(TINY / "prepare.py"), str(folder)], check=True)
    words = [f"trainer.workdir={folder}", "name=real"]
    points = ("lr=3e-4,1e-3", "schedule.max_steps=10", "search.trials=2")
    done = run("-m", *words, *points, "--", *COMMAND, timeout=600)
    assert done.code == 0, done.out + done.err
    for trial in here.glob("outputs/real/trials/*"):
        result = json.loads((trial / "result.json").read_text())
        lines = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
        assert (result["status"], result["step"], result["completions"]) == ("finished", 10, 320)
        assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 11))
        assert (
            result["objective"]
            == [line["eval_reward"] for line in lines if line["kind"] == "eval"][-1]
        )
    # the winner's
    assert len(list(here.glob("outputs/real/trials/*/model"))) == 1


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="make ms-swift makes its environment")
def test_two_processes_train_one_trial(run: Run, here: Path, tmp_path: Path) -> None:
    """Its own torchrun starts them, without GPUs over gloo; a rollout is twice as large."""
    folder = tmp_path / "tiny"
    subprocess.run([sys.executable, str(TINY / "prepare.py"), str(folder)], check=True)
    words = [f"trainer.workdir={folder}", "name=two"]
    words += ["cluster.processes=2", "schedule.max_steps=4"]
    own = ("--eval_steps", "4", "--use_cpu", "true", "--ddp_backend", "gloo")
    done = run(*words, "--", *COMMAND, *own, timeout=600)
    assert done.code == 0, done.out + done.err
    result = json.loads(next(here.glob("outputs/two/trials/*/result.json")).read_text())
    assert (result["status"], result["step"], result["completions"]) == ("finished", 4, 4 * 64)


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="make ms-swift makes its environment")
def test_a_trial_that_ms_swift_refuses_fails_with_its_words(
    run: Run, here: Path, tmp_path: Path
) -> None:
    """Here a reward that it does not know; the exit code is the truth."""
    folder = tmp_path / "tiny"
    subprocess.run([sys.executable, str(TINY / "prepare.py"), str(folder)], check=True)
    words = [f"trainer.workdir={folder}", "name=real"]
    done = run(*words, "--", *COMMAND, "--reward_funcs", "nonsense", timeout=600)
    assert done.code == 1
    result = json.loads(next(here.glob("outputs/real/trials/*/result.json")).read_text())
    assert result["status"] == "failed"
    assert "nonsense" in json.dumps(result["failure"])
