"""Sweeps of a program of which only its command is known: where values enter, where metrics are, how it resumes."""

import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.made import events, wandb
from diagnose.made import run as training
from support import PROJECT, Ended, grposweep, lines, read, trials, wait_for

Run = Callable[..., Ended]
PAGE = PROJECT / "docs" / "guides" / "any_program.md"
PROGRAM = """
import json, os, sys, time
from pathlib import Path
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
out, lr, form = Path(given["--out"]), float(given["--lr"]), given.get("--form", "jsonl")
out.mkdir(parents=True, exist_ok=True)
with open(out / "seen.txt", "a") as seen:
    print(json.dumps(sys.argv[1:]), file=seen)
start = int(given["--resume"].rpartition("-")[2]) if "--resume" in given else 0
for step in range(start + 1, 13):
    time.sleep(float(os.environ.get("WAIT", 0)))
    path, reward = out / f"log.{form}", round(lr * step, 6)
    if form == "print":
        print(f"at step {step}: reward={reward}, more", flush=True)
    elif form == "csv":
        text = f"{step},{reward}\\n" if path.exists() else f"global_step,reward\\n{step},{reward}\\n"
        open(path, "a").write(text)
    else:
        open(path, "a").write(json.dumps({"step": step, "train": {"reward": reward}, "note": "x"}) + "\\n")
    (out / f"checkpoint-{step}").mkdir()
"""
JSON_LINES = "trainer.metrics={output}/log.jsonl"
REWARD = "search.metric=train/reward"
COMMAND = ("--", "python", "train.py", "--lr", "{lr}", "--out", "{output}")


@pytest.fixture(autouse=True)
def program(here: Path) -> None:
    """The program, in the working directory."""
    (here / "train.py").write_text(PROGRAM)


def objectives(sweep: Path) -> list[float]:
    """The trials' results, by number."""
    return [read(trial / "result.json")["objective"] for trial in trials(sweep)]


def seen(trial: Path) -> list[list[str]]:
    """The words that the program got, by start."""
    import json

    return [json.loads(line) for line in (trial / "model" / "seen.txt").read_text().splitlines()]


def steps(trial: Path) -> list[int]:
    """The steps of its metrics."""
    return [line["step"] for line in lines(trial / "metrics.jsonl")]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("jsonl", (JSON_LINES, REWARD)),
        ("csv", ("trainer.metrics={output}/*.csv", "trainer.step_key=global_step", "search.metric=reward")),
        ("print", (r"trainer.metrics=re:step (?P<step>\d+): reward=(?P<reward>[\d.]+)", "search.metric=reward")),
    ],
)
def test_its_metrics_are_read_where_it_writes_them(run: Run, form: str, words: tuple[str, ...]) -> None:
    """JSON lines with nested names, CSV with another name of the step, and its output."""
    ended = run("-m", "trainer=command", "lr=0.1,0.2", *words, "name=s", *COMMAND, "--form", form)
    assert ended.code == 0, ended.out + ended.err
    assert objectives(ended.sweep) == [1.2, 2.4]
    assert steps(trials(ended.sweep)[0]) == list(range(1, 13))


@pytest.mark.parametrize(
    ("name", "write", "step"),
    [("events.out.tfevents.1.node", events, "step"), ("run-1.wandb", wandb, "train/global_step")],
)
def test_binary_logs_are_read_without_their_libraries(
    run: Run, here: Path, name: str, write: Callable[..., bytes], step: str
) -> None:
    """TensorBoard and W&B; a pattern finds the file."""
    (here / name).write_bytes(write(training(20)))
    words = ("trainer=command", "trainer.metrics={output}/*", f"trainer.step_key={step}", "name=s")
    ended = run(*words, "search.metric=train/reward", "--", "cp", name, "{output}/")
    assert ended.code == 0, ended.out + ended.err
    assert max(steps(trials(ended.sweep)[0])) >= 19


def test_values_enter_at_their_places_and_other_options_are_appended(run: Run) -> None:
    """A key that is not set keeps the command's default, and values with spaces stay one word."""
    ended = run(
        "trainer=command", "lr=0.1", JSON_LINES, REWARD, "name=s", "trainer.keep=all", "+trainer.args.more=two words",
        *COMMAND, "--b", "x={kl.beta:0.5}", "--s", "{seed}",
    )  # fmt: skip
    assert ended.code == 0, ended.out + ended.err
    (trial,) = trials(ended.sweep)
    out = str(trial / "model")
    assert seen(trial) == [["--lr", "0.1", "--out", out, "--b", "x=0.5", "--s", "42", "--more", "two words"]]
    assert "--lr" in (trial / "program.sh").read_text()


@pytest.mark.parametrize(
    ("words", "command", "said"),
    [
        (("lr=0.1", JSON_LINES), "python train.py --out {output}", "lr: the command has no place for it"),
        (("lr=0.1", "kl.beta=0.1", JSON_LINES), "p {lr} {output}", "kl.beta: the command has no place for it"),
        ((JSON_LINES,), "p {lr} {output}", "trainer.command has {lr}, and no value is set for it"),
        (("lr=0.1",), "p {lr} {output}", "trainer.metrics is not set"),
        (("lr=0.1", "trainer.metrics=log.csv"), "p {lr} {output}", "would all write this file"),
        (("lr=0.1", "trainer.metrics=re:step"), "p {lr} {output}", "it needs a group for the step"),
        (("lr=0.1", JSON_LINES), "p {lr}", "trainer.command has no {output}"),
        (("lr=0.1", JSON_LINES, "search.seeds=2"), "p {lr} {output}", "no place for a seed"),
        (("lr=0.1", JSON_LINES, "search.stopping=rank"), "p {lr} {output}", "a paused trial has to resume"),
        (
            ("lr=0.1", JSON_LINES, "trainer.python=python"),
            "p {lr} {output}",
            "trainer.python: trainer=command does not",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    run: Run, here: Path, words: tuple[str, ...], command: str, said: str
) -> None:
    """With what to set instead."""
    ended = run("trainer=command", *words, REWARD, "name=s", "--", command)
    assert ended.code == 2
    assert said in ended.err
    assert not (here / "outputs" / "s").exists()


def test_a_metric_that_it_does_not_write_is_told_with_those_that_it_writes(run: Run) -> None:
    """As for every trainer."""
    ended = run("trainer=command", "lr=0.1", JSON_LINES, "search.metric=accuracy", "name=s", *COMMAND)
    assert ended.code == 1
    assert "train/reward" in read(trials(ended.sweep)[0] / "result.json")["failure"]["message"]


def test_a_log_without_steps_is_told_with_the_name_of_the_step(run: Run) -> None:
    """Nothing is taken for a step that is not called so."""
    words = ("trainer=command", "lr=0.1", JSON_LINES, REWARD, "trainer.step_key=iteration", "name=s")
    ended = run(*words, *COMMAND)
    assert ended.code == 1
    assert "a step called iteration" in read(trials(ended.sweep)[0] / "result.json")["failure"]["message"]


def test_nothing_is_claimed_that_only_the_program_knows(run: Run, here: Path) -> None:
    """No sizes, no completions, and no recipe; all commands that show a sweep work."""
    ended = run("-m", "trainer=command", "lr=0.1,1e9", JSON_LINES, REWARD, "name=s", *COMMAND)
    assert ended.code == 0, ended.out + ended.err  # no rule refuses a learning rate
    plan = read(trials(ended.sweep)[0] / "plan.json")
    assert {name for name, value in plan.items() if value is not None} == {"v"}
    assert {line["completions"] for line in lines(trials(ended.sweep)[0] / "metrics.jsonl")} == {None}
    for words in (("show", "s", "0"), ("compare", "s/0", "s/1"), ("report", "s"), ("best", "s", "--as", "command")):
        assert grposweep(here, *words).code == 0, words
    assert "12 steps" in grposweep(here, "show", "s", "0").out
    refused = grposweep(here, "best", "s", "--as", "trl")
    assert (refused.code, "nothing is known of trainer=command" in refused.err) == (2, True)


def interrupted(run: Run, start: Callable[..., "subprocess.Popen[str]"], here: Path, *words: str) -> Path:
    """The trial of a sweep that was interrupted in its middle and continued."""
    words = ("trainer=command", "lr=0.1", JSON_LINES, REWARD, "name=s", "trainer.keep=all", *words)
    words = (*words, "+trainer.environment.WAIT='0.2'", *COMMAND)
    process, folder = start(*words), here / "outputs" / "s" / "trials"
    wait_for(lambda: [*folder.glob("*/metrics.jsonl")] and len(steps(trials(folder.parent)[0])) >= 3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert read(trials(folder.parent)[0] / "result.json")["status"] == "stopped"
    ended = run(*words)
    assert ended.code == 0, ended.out + ended.err
    return trials(folder.parent)[0]


@pytest.mark.slow
def test_an_interrupted_trial_resumes_from_the_newest_checkpoint(
    run: Run, start: Callable[..., "subprocess.Popen[str]"], here: Path
) -> None:
    """No step is trained twice, and its words are at the end of the command."""
    trial = interrupted(run, start, here, "trainer.resume=--resume {checkpoint}")
    first, second = seen(trial)
    assert second[: len(first)] == first
    assert re.fullmatch(r".*/model/checkpoint-\d+", second[-1])
    assert steps(trial) == list(range(1, 13))
    assert read(trial / "result.json")["objective"] == 1.2


@pytest.mark.slow
def test_a_program_that_cannot_resume_starts_over(
    run: Run, start: Callable[..., "subprocess.Popen[str]"], here: Path
) -> None:
    """Its earlier steps do not count."""
    (here / "train.py").write_text(PROGRAM.replace(".mkdir()", ".mkdir(exist_ok=True)"))
    trial = interrupted(run, start, here)
    first, second = seen(trial)
    assert second == first
    assert [(line["attempt"], line["step"]) for line in lines(trial / "metrics.jsonl")] == [
        (1, s) for s in range(1, 13)
    ]


@pytest.mark.slow
def test_trials_pause_and_are_promoted(run: Run) -> None:
    """By steps: the leader trains to its end from where it was paused, the others wait."""
    ended = run(
        "-m", "trainer=command", "lr=interval(0.1,1)", "search.trials=10", "search.effort=0.4", "schedule.max_steps=12",
        "trainer.resume=--resume {checkpoint}", "+trainer.environment.WAIT='0.2'", JSON_LINES, REWARD, "name=s", *COMMAND,
    )  # fmt: skip
    assert ended.code == 0, ended.out + ended.err
    results = [read(trial / "result.json") for trial in trials(ended.sweep)]
    assert {result["status"] for result in results} == {"finished", "stopped"}
    assert all(steps(trial) == list(range(1, len(steps(trial)) + 1)) for trial in trials(ended.sweep))


@pytest.mark.slow
def test_the_page_holds_what_it_says(run: Run, here: Path) -> None:
    """Its program and its two sweeps, as they are typed."""
    text = PAGE.read_text()
    (here / "train.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        words = shlex.split(block.replace("\\\n", " "))
        ended = run(*words[words.index("$GRPOSWEEP/src/run.py") + 1 :])
        assert ended.code == 0, ended.out + ended.err
