"""Real TRL training from the command line: the demo's promise, repeating bit for bit, interruption,
ranks, W&B.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from command_server import shims
from grposweep.storage.provenance import TIMES
from support import Run, environment, grposweep, lines, read, trials, wait_for

pytestmark = pytest.mark.slow
SHORT = (
    "schedule=steps",
    "schedule.max_steps=12",
    "schedule.evaluations=2",
    "schedule.checkpoints=3",
    "task.eval_prompts=32",
)


def metrics(trial: Path) -> list[dict[str, Any]]:
    """A trial's metrics without what may differ between two runs of it."""
    return [
        {name: value for name, value in line.items() if name not in TIMES}
        for line in lines(trial / "metrics.jsonl")
    ]


def only_trial(sweep: Path) -> Path:
    """The folder of a single run."""
    (folder,) = trials(sweep)
    return folder


@pytest.mark.thorough
def test_the_demos_winner_beats_the_untrained_model(run: Run) -> None:
    """On 256 held-out prompts by 0.05 and by two standard errors; some points were invalid and cost
    nothing.
    """
    ended = run("sweeps=lr_batch", timeout=1500)
    assert ended.code == 0, ended.err
    results = [read(folder / "result.json") for folder in trials(ended.sweep)]
    best = max(results, key=lambda result: result["objective"])
    gain = best["objective"] - best["start"]
    assert gain > 0.05
    assert gain > 2 * math.hypot(best["objective_se"], best["start_se"])
    prepared = read(ended.sweep / "prepared.json")["entries"].values()
    assert all(entry["eval_prompts"] >= 256 for entry in prepared)
    assert len(results) == 12
    assert "points invalid: they are not started" in ended.out


def test_a_trial_repeats_bit_for_bit_warm_or_fresh_and_by_its_own_command(
    run: Run, here: Path
) -> None:
    """The same numbers forked from the warm server, and by command.sh in a fresh process. Its log
    has one line, how to look at it if it is silent.
    """
    sweep = run(*SHORT, "name=s", "cluster.warm=true").sweep
    script = (only_trial(sweep) / "command.sh").read_text().rstrip()
    script += " name=s force=true cluster.warm=false\n"
    path = f"{shims(here / 'bin')}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-c", script], env=environment(PATH=path), check=True, capture_output=True
    )
    warm, again = trials(sweep)
    assert metrics(warm) == metrics(again)
    assert len(metrics(warm)) == 12 + 3
    assert re.fullmatch(
        r"rank 0 on \S+ is process (\d+)\. If it is silent: py-spy dump --pid \1\n",
        (again / "logs" / "rank-0.log").read_text(),
    )


def test_a_killed_sweep_resumes_from_a_checkpoint_with_the_same_metrics(
    run: Run, start: Callable, here: Path
) -> None:
    """Kill -9 of the controller in the middle of training, then the same command: as if nothing had
    happened.
    """
    longer = (*SHORT, "schedule.max_steps=48", "schedule.checkpoints=12")
    undisturbed = only_trial(run(*longer, "name=undisturbed").sweep)
    process = start(*longer, "name=killed")
    wait_for(
        lambda: list(
            here.glob("outputs/killed/trials/*/checkpoints/checkpoint-*/trainer_state.json")
        ),
        seconds=120,
    )
    process.kill()
    process.wait()
    assert not (only_trial(here / "outputs" / "killed") / "result.json").exists()
    resumed = only_trial(run(*longer, "name=killed").sweep)
    assert metrics(resumed) == metrics(undisturbed)
    assert {line["attempt"] for line in lines(resumed / "metrics.jsonl")} == {0, 1}


def test_a_constant_rate_continues_as_the_longer_schedule_would_have(run: Run, here: Path) -> None:
    """Every number of the log is that of a training of 12 steps, over the end of an epoch, with a
    rollout of two steps.
    """
    words = (
        "schedule=steps",
        "task.eval_prompts=32",
        "optimizer.warmup_steps=2",
        "task.train_prompts=20",
        "batch.num_iterations=2",
    )
    ended = run(
        *words,
        "schedule.max_steps=6",
        "schedule.evaluations=2",
        "trainer.keep=best_checkpoint",
        "name=short",
    )
    assert "to train it longer: grposweep continue short 0 schedule.max_steps=12" in ended.out
    whole = only_trial(
        run(*words, "schedule.max_steps=12", "schedule.evaluations=4", "name=whole").sweep
    )
    longer = grposweep(here, "continue", "short", "0", "schedule.max_steps=12")
    assert longer.code == 0, longer.err
    assert metrics(only_trial(longer.sweep)) == metrics(whole)
    assert len(metrics(whole)) == 12 + 5


def test_ctrl_c_stops_two_ranks_together_and_they_continue_together(
    run: Run, start: Callable, here: Path
) -> None:
    """All ranks leave at one boundary; the resumed run equals the undisturbed one."""
    two = (
        "cluster=local_ddp",
        "batch=auto",
        "schedule=steps",
        "schedule.max_steps=24",
        "schedule.evaluations=2",
        "task.eval_prompts=16",
    )
    undisturbed = only_trial(run(*two, "name=undisturbed").sweep)
    process = start(*two, "name=stopped")
    wait_for(
        lambda: (
            sum(
                1
                for path in here.glob("outputs/stopped/trials/*/metrics.jsonl")
                for _ in path.open()
            )
            > 3
        ),
        120,
    )
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    stopped = only_trial(here / "outputs" / "stopped")
    assert read(stopped / "result.json")["status"] == "stopped"
    assert run(*two, "name=stopped").code == 0
    assert metrics(stopped) == metrics(undisturbed)


def test_a_reward_that_crashes_on_some_data_fails_its_trial_only(run: Run, here: Path) -> None:
    """It passes preparation, fails in the middle of the first trial's training, and the sweep
    continues.
    """
    (here / "moody.py").write_text(
        "import os\n"
        "calls = 0\n"
        "def moody(completions, answer, **columns):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    if calls > 6 and os.path.exists('fail-once'):\n"
        "        os.remove('fail-once')\n"
        "        raise ValueError('not today')\n"
        "    return [float(c == a) for c, a in zip(completions, answer)]\n"
    )
    (here / "fail-once").write_text("")
    ended = run(*SHORT, "name=s", "task.rewards=[moody.py:moody]", "-m", "lr=1e-4,3e-4")
    assert ended.code == 0, ended.err
    first, second = (read(folder / "result.json") for folder in trials(ended.sweep))
    assert first["status"] == "failed"
    assert "not today" in json.dumps(first["failure"])
    assert second["status"] == "finished"


def test_wandb_gets_one_offline_run_per_trial_grouped_by_sweep(run: Run) -> None:
    """Real offline files; metrics.jsonl is still written."""
    ended = run(*SHORT, "tracker=wandb", "tracker.tags=[first]", "-m", "lr=1e-4,3e-4")
    assert ended.code == 0, ended.err
    for folder in trials(ended.sweep):
        (offline,) = (folder / "wandb").glob("offline-run-*")
        data = next(offline.glob("*.wandb")).read_bytes()
        assert ended.sweep.name.encode() in data
        assert lines(folder / "metrics.jsonl")


def test_a_users_own_prompts_and_a_local_model_train(run: Run, here: Path) -> None:
    """task=jsonl over sums, with a model folder that save_pretrained wrote (the tiny one, copied),
    and LoRA.
    """
    from grposweep.train._tiny import tiny_folder

    shutil.copytree(tiny_folder(), here / "my model")
    rows = [
        {"question": f"{a}+{b}=", "sum": str(a + b)} for a in range(10, 30) for b in range(10, 20)
    ]
    (here / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = run(
        *SHORT,
        "task=jsonl",
        "task.path=sums.jsonl",
        "task.prompt_column=question",
        "task.answer_column=sum",
        "task.max_completion_length=4",
        "model=qwen2_5_0_5b",
        "model.path=my model",
        "model.lora.r=16",
        "lr=1e-3",
    )
    assert ended.code == 0, ended.err
    result = read(only_trial(ended.sweep) / "result.json")
    assert result["status"] == "finished"
    assert result["start"] is not None


@pytest.mark.thorough
@pytest.mark.skipif(
    shutil.which("g++") is None or " " in sys.prefix,
    reason="torch compiles with g++, from a path without blanks",
)
def test_a_compiled_model_trains_as_the_plain_one_and_is_saved_as_one(run: Run) -> None:
    """trainer.compile: the same first loss and reward to rounding, and weights under their own
    names.
    """
    short = (
        "schedule=steps",
        "schedule.max_steps=2",
        "schedule.evaluations=1",
        "task.eval_prompts=8",
        "batch=small",
    )
    plain, compiled = (
        only_trial(run(*short, f"name=compile_{on}", f"trainer.compile={on}", timeout=1500).sweep)
        for on in ("false", "true")
    )
    for name in ("loss", "reward"):
        first, second = (metrics(trial)[1][name] for trial in (plain, compiled))
        assert second == pytest.approx(first, abs=1e-4)
    saved = {
        trial: safetensors.numpy.load_file(trial / "model" / "model.safetensors")
        for trial in (plain, compiled)
    }
    assert saved[plain].keys() == saved[compiled].keys()
