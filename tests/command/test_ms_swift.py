"""``trainer=ms-swift``: its command, its log, the recipe of a point, and (slow, where its
environment is) a real sweep.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grposweep.command._contract import NodeContext, Trial
from grposweep.command.follow import without_report
from grposweep.command.ms_swift import NAME, MsSwiftLogTail, build_ms_swift
from grposweep.process import PROJECT
from grposweep.schema import Trainer
from support import Ended

PYTHON = PROJECT / ".venvs" / "ms-swift" / "bin" / "python"
FRAMEWORKS = PROJECT / "benchmarks" / "frameworks"
RECIPE = FRAMEWORKS / "tiny" / "grpo.yaml"


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


def test_the_command_is_ms_swifts_own_with_its_variables(tmp_path: Path) -> None:
    """It starts its ranks itself, continues from a checkpoint, and a user's arguments come last."""
    trainer = Trainer(kind="ms-swift", python="/else/python", arguments=["--logging_steps", "1"])
    place = NodeContext(processes=16, node=1, nodes=2, address="10.0.0.1", port=29500)
    program = build_ms_swift(
        Trial(trainer, tmp_path, {}, place, tmp_path / "model" / "checkpoint-20")
    )
    assert program.command[0] == "/else/python"
    assert program.command[3:5] == ("rlhf", str(tmp_path / "recipe.yaml"))
    assert program.command[-4:] == (
        "--resume_from_checkpoint",
        str(tmp_path / "model/checkpoint-20"),
        "--logging_steps",
        "1",
    )
    assert program.environment == {
        "NPROC_PER_NODE": "8",
        "NNODES": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
    }


def test_one_node_needs_no_address(tmp_path: Path) -> None:
    """Its torchrun finds a port by itself; a single process needs no torchrun."""
    programs = [
        build_ms_swift(Trial(Trainer(kind="ms-swift"), tmp_path, {}, NodeContext(processes=n)))
        for n in (1, 2)
    ]
    assert programs[0].command[0] == sys.executable
    assert [program.environment for program in programs] == [{}, {"NPROC_PER_NODE": "2"}]


def test_our_callback_is_added_to_the_recipes_own_plugins(tmp_path: Path) -> None:
    """Where a user's arguments name plugins, theirs count alone."""
    recipe = {"external_plugins": ["rewards.py"], "callbacks": "early_stop"}
    command = build_ms_swift(Trial(Trainer(kind="ms-swift"), tmp_path, recipe)).command
    at = command.index("--external_plugins")
    assert command[at + 1] == "rewards.py"
    assert Path(command[at + 2]).is_file()
    assert command[at + 3 :] == ("--callbacks", "early_stop", "grposweep")
    own = Trainer(kind="ms-swift", arguments=["--external_plugins", "mine.py"])
    assert "--callbacks" not in build_ms_swift(Trial(own, tmp_path, recipe)).command


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
    log = MsSwiftLogTail(tmp_path / NAME, 0)
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


def test_an_earlier_attempts_lines_count_up_to_the_checkpoint(tmp_path: Path) -> None:
    """What it did after that happens again."""
    write(tmp_path, 1, 2, 3)
    log = MsSwiftLogTail(tmp_path / NAME, resumed_at=2)
    # until there is something new
    assert log() == []
    write(tmp_path, 3, 4)
    assert [entry.step for entry in log()] == [1, 2, 3, 4]


def test_lines_that_are_no_entries_are_skipped(tmp_path: Path) -> None:
    """The program or a library of it may write anything into the log."""
    (tmp_path / NAME).write_text('3\n["a"]\nnull\n{"global_step/max_steps": 7}\nplain text\n')
    write(tmp_path, 1)
    log = MsSwiftLogTail(tmp_path / NAME, resumed_at=1)
    write(tmp_path, 2)
    assert [entry.step for entry in log()] == [1, 2]


# two compositions and a sweep of two trials
@pytest.mark.slow
def test_a_point_is_written_into_the_recipe_in_ms_swifts_words(
    run: Callable[..., Ended], here: Path
) -> None:
    """A dry run shows what a trial would start; what no parameter changes stays."""
    words = [f"trainer.recipe={RECIPE}", "cluster=dry_run", "name=dry"]
    assert run("-m", "trainer=ms-swift", *words, "kl=none,low", "lr=1e-3").code == 0
    recipes = [path.read_text() for path in sorted(here.glob("outputs/dry/trials/*/recipe.yaml"))]
    assert ["learning_rate: 0.001" in text and "external_plugins:" in text for text in recipes] == [
        True,
        True,
    ]
    assert ["beta: 0.0\n" in text for text in recipes] == [True, False]


def test_the_validator_speaks_of_ms_swift_before_anything_starts(run: Callable[..., Ended]) -> None:
    """The same rules as for its recipes, with the names of the parameters."""
    done = run("trainer=ms-swift", f"trainer.recipe={RECIPE}", "batch.num_generations=12")
    assert done.code == 2
    assert "ms-swift needs whole" in done.out + done.err


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="make ms-swift makes its environment")
def test_a_sweep_trains_with_the_real_ms_swift(
    run: Callable[..., Ended], here: Path, tmp_path: Path
) -> None:
    """Two points of the tiny model: metrics, evaluations, result and model are where those of TRL
    are.
    """
    folder = tmp_path / "tiny"
    subprocess.run(
        [sys.executable, str(FRAMEWORKS / "tiny" / "prepare.py"), str(folder)], check=True
    )
    words = [
        f"trainer.recipe={RECIPE}",
        f"trainer.python={PYTHON}",
        f"trainer.workdir={folder}",
        "name=real",
    ]
    done = run(
        "-m",
        "trainer=ms-swift",
        *words,
        "lr=3e-4,1e-3",
        "schedule.max_steps=10",
        "search.trials=2",
        timeout=600,
    )
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
def test_two_processes_train_one_trial(
    run: Callable[..., Ended], here: Path, tmp_path: Path
) -> None:
    """Its own torchrun starts them, without GPUs over gloo; a rollout is twice as large."""
    folder = tmp_path / "tiny"
    subprocess.run(
        [sys.executable, str(FRAMEWORKS / "tiny" / "prepare.py"), str(folder)], check=True
    )
    words = [
        f"trainer.recipe={RECIPE}",
        f"trainer.python={PYTHON}",
        f"trainer.workdir={folder}",
        "name=two",
    ]
    more = [
        "cluster.processes=2",
        "schedule.max_steps=4",
        "trainer.arguments=[--eval_steps,4,--use_cpu,'true',--ddp_backend,gloo]",
    ]
    done = run("trainer=ms-swift", *words, *more, timeout=600)
    assert done.code == 0, done.out + done.err
    result = json.loads(next(here.glob("outputs/two/trials/*/result.json")).read_text())
    assert (result["status"], result["step"], result["completions"]) == ("finished", 4, 4 * 64)


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="make ms-swift makes its environment")
def test_a_trial_that_ms_swift_refuses_fails_with_its_words(
    run: Callable[..., Ended], here: Path, tmp_path: Path
) -> None:
    """Here a reward that it does not know; the exit code is the truth."""
    folder = tmp_path / "tiny"
    subprocess.run(
        [sys.executable, str(FRAMEWORKS / "tiny" / "prepare.py"), str(folder)], check=True
    )
    words = [
        f"trainer.recipe={RECIPE}",
        f"trainer.python={PYTHON}",
        f"trainer.workdir={folder}",
        "name=real",
    ]
    done = run(
        "trainer=ms-swift", *words, "trainer.arguments=[--reward_funcs,nonsense]", timeout=600
    )
    assert done.code == 1
    result = json.loads(next(here.glob("outputs/real/trials/*/result.json")).read_text())
    assert result["status"] == "failed"
    assert "nonsense" in json.dumps(result["failure"])
