"""Sweeps of a program of which only its command is known: where values enter, where metrics are,
how it resumes.
"""

import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.made import events, wandb
from diagnose.made import run as training
from support import PROJECT, Run, Start, grposweep, lines, read, sampled, trials, wait_for

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
    sampled(
        [
            ("jsonl", (JSON_LINES, REWARD)),
            (
                "csv",
                (
                    "trainer.metrics={output}/*.csv",
                    "trainer.step_key=global_step",
                    "search.metric=reward",
                ),
            ),
            (
                "print",
                (
                    r"trainer.metrics=re:step (?P<step>\d+): reward=(?P<reward>[\d.]+)",
                    "search.metric=reward",
                ),
            ),
        ],
        3,
    ),
)
def test_its_metrics_are_read_where_it_writes_them(
    run: Run, form: str, words: tuple[str, ...]
) -> None:
    """JSON lines with nested names, CSV with another name of the step, and its output. What it
    leaves need not be a model.
    """
    ended = run("-m", "trainer=command", "lr=0.1,0.2", *words, "name=s", *COMMAND, "--form", form)
    assert ended.code == 0, ended
    assert ("its files are in" in ended.out, "its model" in ended.out) == (True, False)
    assert objectives(ended.sweep) == [1.2, 2.4]
    assert steps(trials(ended.sweep)[0]) == list(range(1, 13))


def test_a_number_of_which_a_part_is_read_fails_the_trial(run: Run, here: Path) -> None:
    """9.0 for 9.0e-01 would let the wrong trial win. A first step 0 is no value before training."""
    said = "print(f'step {n} reward {n + 0.9:.1e}', flush=True)"
    (here / "train.py").write_text(f"for n in range(2):\n    {said}\n")
    words = ("trainer=command", "search.metric=reward", "--", "python", "train.py")
    run("name=cut", r"trainer.metrics=re:step (?P<step>\d+) reward (?P<reward>[\d.]+)", *words)
    (trial,) = trials(here / "outputs" / "cut")
    failure = read(trial / "result.json")["failure"]["message"]
    assert "reward is 9.0 where the program wrote 9.0e-01, so another number" in failure
    whole = r"trainer.metrics=re:step (?P<step>\d+) reward (?P<reward>[-+.\deE]+)"
    ended = run("name=whole", whole, *words)
    assert objectives(ended.sweep) == [1.9]
    assert "before training" not in ended.out


@pytest.mark.slow
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
    assert ended.code == 0, ended
    assert max(steps(trials(ended.sweep)[0])) >= 19


# Programs that log as five trainers do, with the same calls of W&B and TensorBoard. They stop at
# SIGTERM, as a Ray driver does.
# Sources: OpenRLHF 0.11.2 utils/logging_utils.py, trainer/ppo_trainer.py; SkyRL 0.3.0
# train/utils/tracking.py, trainer.py; slime utils/tensorboard_utils.py, wandb_utils.py; NeMo RL
# utils/logger.py, utils/checkpoint.py; prime-rl utils/monitor/file.py.
LIKE = """
import json, os, sys, time
from pathlib import Path
kind, lr, out, *rest = sys.argv[1:]
out = Path(out)
numbers = [int(path.name.rpartition("_")[2].removeprefix("step")) for path in out.glob("ckpt/*step*")]
begin = max(numbers, default=0) if rest else 0
if kind in ("openrlhf", "skyrl", "nemo-rl"):
    sys.modules["torch"] = None  # 3 s at each start, for tensors that are never written
    from tensorboardX import SummaryWriter
    place = {"openrlhf": "tb/ppo_1", "skyrl": "tb", "nemo-rl": f"logs/exp_{begin:03}/tensorboard"}[kind]
    writer = SummaryWriter(str(out / place), flush_secs=0.1)  # theirs is 120, and a step of theirs takes minutes
elif kind == "slime":
    import wandb
    (out / "wb").mkdir(parents=True, exist_ok=True)
    run = wandb.init(project="p", dir=str(out / "wb"), settings=wandb.Settings(mode="offline", silent=True))
    for part in ("rollout", "train", "eval"):
        wandb.define_metric(f"{part}/step")
        wandb.define_metric(f"{part}/*", step_metric=f"{part}/step")
else:
    files = []
    for part in ("trainer", "orchestrator"):
        (out / part).mkdir(parents=True, exist_ok=True)
        files.append(open(out / part / "metrics.jsonl", "a", buffering=1))
for step in range(begin + 1, 9):
    time.sleep(float(os.environ.get("WAIT", 0)))
    score = round(float(lr) * step, 6)
    if kind == "openrlhf":
        [writer.add_scalar(f"train/{name}", value, step) for name, value in {"reward": score, "kl": 0.0}.items()]
        if step % 2 == 0:
            writer.add_scalar("eval/eval_math_pass1", score, step)
    elif kind == "skyrl":
        for name, value in {"reward/avg_raw_reward": score, "eval/all/avg_score": score}.items():
            writer.add_scalar(name, value, step)
    elif kind == "nemo-rl":
        writer.add_scalar("train/reward", score, step)
        writer.add_scalar("validation/accuracy", score, step)
    elif kind == "slime":
        wandb.log({"rollout/raw_reward": score, "rollout/step": step})
        wandb.log({"train/loss": 0.1, "train/step": 2 * step})
        wandb.log({"eval/math": score, "eval/step": step})
    else:
        for file, values in zip(files, ({"loss/mean": 0.1}, {"reward/all/mean": score})):
            file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\\n")
    (out / "ckpt" / f"step_{step}").mkdir(parents=True)
"""
PROGRAMS = {
    "openrlhf": ("{output}/tb/**/events*", "step", "eval/eval_math_pass1"),
    "skyrl": ("{output}/tb", "step", "eval/all/avg_score"),
    "nemo-rl": ("{output}/logs/exp_*/tensorboard", "step", "validation/accuracy"),
    "slime": ("{output}/wb/**/*.wandb", "eval/step", "eval/math"),
    "prime-rl": ("{output}/*/metrics.jsonl", "step", "reward/all/mean"),
}


def like(kind: str, name: str, *words: str) -> tuple[str, ...]:
    """The words of a sweep of a program that logs as one of them."""
    metrics, step, metric = PROGRAMS[kind]
    known = (
        f"trainer.metrics={metrics}",
        f"trainer.step_key={step}",
        f"search.metric={metric}",
        f"name={name}",
    )
    places = (
        "trainer.checkpoints=ckpt/step_*",
        "trainer.resume=resume",
        "schedule.max_steps=8",
        "trainer.keep=all",
    )
    command = ("--", sys.executable, "like.py", kind, "{lr}", "{output}", "{resume}")
    return ("-m", "trainer=command", *known, *places, *words, *command)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(PROGRAMS, 3, pytest.mark.thorough))
def test_programs_that_log_as_known_trainers_are_swept_paused_and_resumed(
    run: Run, here: Path, kind: str
) -> None:
    """Their metrics by their own names, the leader trained to its end from its checkpoint, and no
    step twice.
    """
    (here / "like.py").write_text(LIKE)
    whole = run(*like(kind, "whole", "lr=0.1,0.2"))
    assert whole.code == 0, whole.out + whole.err
    assert objectives(whole.sweep) == pytest.approx([0.8, 1.6])
    # W&B writes in blocks of 32 KiB, so of this little nothing is known before the end
    if kind == "slime":
        return
    slow = (
        "+trainer.environment.WAIT='0.3'",
        "lr=interval(0.1,1)",
        "search.trials=4",
        "search.effort=0.4",
    )
    paused = run(*like(kind, "paused", *slow))
    assert paused.code == 0, paused.out + paused.err
    results = [read(trial / "result.json") for trial in trials(paused.sweep)]
    assert {result["status"] for result in results} == {"finished", "stopped"}
    for trial in trials(paused.sweep):
        seen = [
            line["step"] for line in lines(trial / "metrics.jsonl") if PROGRAMS[kind][2] in line
        ]
        assert seen == sorted(set(seen)), seen


@pytest.mark.slow
def test_values_enter_at_their_places_and_other_options_are_appended(run: Run) -> None:
    """A key that is not set keeps the command's default, and values with spaces stay one word."""
    ended = run(
        "trainer=command",
        "lr=0.1",
        JSON_LINES,
        REWARD,
        "name=s",
        "trainer.keep=all",
        "+trainer.args.more=two words",
        *COMMAND,
        "--b",
        "x={kl.beta:0.5}",
        "--s",
        "{seed}",
    )
    assert ended.code == 0, ended
    (trial,) = trials(ended.sweep)
    out = str(trial / "model")
    assert seen(trial) == [
        ["--lr", "0.1", "--out", out, "--b", "x=0.5", "--s", "42", "--more", "two words"]
    ]
    assert "--lr" in (trial / "program.sh").read_text()


@pytest.mark.parametrize(
    ("script", "code"),
    sampled(
        [
            ("ray job submit --no-wait -- python train.py", 2),
            ("ray job submit --address=a \\\n  --no-wait -- python train.py", 2),
            # an option of the program
            ("ray job submit -- python train.py --no-wait", 0),
        ],
        2,
    ),
)
def test_a_command_that_ends_before_its_training_is_refused(
    run: Run, here: Path, script: str, code: int
) -> None:
    """Also if its script submits the job."""
    (here / "run.sh").write_text(script + "\n")
    ended = run(
        "trainer=command",
        "cluster=dry_run",
        "lr=0.1",
        JSON_LINES,
        REWARD,
        "name=s",
        "--",
        "bash run.sh {lr} {output}",
    )
    assert (ended.code, "leave --no-wait out" in ended.err) == (code, bool(code)), ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    sampled(
        [
            # a metric that it does not write, told with those that it writes
            (["search.metric=accuracy"], "train/reward"),
            # nothing else is taken for a step
            ([REWARD, "trainer.step_key=iteration"], "a step called iteration"),
        ],
        2,
    ),
)
def test_a_log_without_metric_or_step_is_told_with_its_name(
    run: Run, words: list[str], said: str
) -> None:
    """As for every trainer."""
    ended = run("trainer=command", "lr=0.1", JSON_LINES, *words, "name=s", *COMMAND)
    assert ended.code == 1
    assert said in read(trials(ended.sweep)[0] / "result.json")["failure"]["message"]


@pytest.mark.parametrize(("length", "code"), sampled([(20, 1), (12, 0), (13, 0)], 3))
def test_a_program_that_ends_before_its_stated_length_is_not_ranked(
    run: Run, length: int, code: int
) -> None:
    """It logs 12 steps. One more may be the step 0 of a program that counts from there."""
    ended = run(
        "trainer=command",
        "lr=0.1",
        JSON_LINES,
        REWARD,
        f"schedule.max_steps={length}",
        "name=s",
        *COMMAND,
    )
    assert (ended.code, "with exit code 0 at step 12" in ended.out + ended.err) == (
        code,
        bool(code),
    ), ended.out


@pytest.mark.slow
def test_nothing_is_claimed_that_only_the_program_knows(run: Run, here: Path) -> None:
    """No sizes, no completions, and no recipe; all commands that show a sweep work."""
    ended = run("-m", "trainer=command", "lr=0.1,1e9", JSON_LINES, REWARD, "name=s", *COMMAND)
    # no rule refuses a learning rate
    assert ended.code == 0, ended
    plan = read(trials(ended.sweep)[0] / "plan.json")
    assert {name for name, value in plan.items() if value is not None} == set()
    assert {line["completions"] for line in lines(trials(ended.sweep)[0] / "metrics.jsonl")} == {
        None
    }
    for words in (("compare", "s/0", "s/1"), ("report", "s"), ("best", "s", "--as", "command")):
        assert grposweep(here, *words).code == 0, words
    assert "12 steps" in grposweep(here, "show", "s", "0").out
    refused = grposweep(here, "best", "s", "--as", "trl")
    assert (refused.code, "Set --as command." in refused.err) == (2, True)


def interrupted(run: Run, start: Start, here: Path, *words: str) -> Path:
    """The trial of a sweep that was interrupted in its middle and continued."""
    words = ("trainer=command", "lr=0.1", JSON_LINES, REWARD, "name=s", "trainer.keep=all", *words)
    words = (*words, "+trainer.environment.WAIT='0.2'", *COMMAND)
    process = start(*words)
    folder = here / "outputs" / "s" / "trials"
    wait_for(
        lambda: [*folder.glob("*/metrics.jsonl")] and len(steps(trials(folder.parent)[0])) >= 3
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert read(trials(folder.parent)[0] / "result.json")["status"] == "stopped"
    ended = run(*words)
    assert ended.code == 0, ended
    return trials(folder.parent)[0]


@pytest.mark.slow
def test_an_interrupted_trial_resumes_from_the_newest_checkpoint(
    run: Run, start: Start, here: Path
) -> None:
    """No step is trained twice, and its words are at the end of the command."""
    trial = interrupted(run, start, here, "trainer.resume=--resume {checkpoint}")
    first, second = seen(trial)
    assert second[: len(first)] == first
    assert re.fullmatch(r".*/model/checkpoint-\d+", second[-1])
    assert steps(trial) == list(range(1, 13))
    assert read(trial / "result.json")["objective"] == 1.2


@pytest.mark.slow
def test_a_program_that_cannot_resume_starts_over(run: Run, start: Start, here: Path) -> None:
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
        "-m",
        "trainer=command",
        "lr=interval(0.1,1)",
        "search.trials=10",
        "search.effort=0.4",
        "schedule.max_steps=12",
        "trainer.resume=--resume {checkpoint}",
        "+trainer.environment.WAIT='0.2'",
        JSON_LINES,
        REWARD,
        "name=s",
        *COMMAND,
    )
    assert ended.code == 0, ended
    results = [read(trial / "result.json") for trial in trials(ended.sweep)]
    assert {result["status"] for result in results} == {"finished", "stopped"}
    assert all(
        steps(trial) == list(range(1, len(steps(trial)) + 1)) for trial in trials(ended.sweep)
    )


@pytest.mark.slow
def test_the_page_holds_what_it_says(run: Run, here: Path) -> None:
    """Its program and its two sweeps, as they are typed."""
    text = PAGE.read_text()
    (here / "train.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        words = shlex.split(block.replace("\\\n", " "))
        ended = run(*words[words.index("$GRPOSWEEP/src/run.py") + 1 :])
        assert ended.code == 0, ended


@pytest.mark.slow
def test_the_pages_commands_for_known_programs_are_accepted(run: Run) -> None:
    """Every key has a place, and every place a value."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == len(PROGRAMS)
    for number, block in enumerate(blocks):
        words = shlex.split(block.replace("\\\n", " "))
        ended = run("cluster=dry_run", f"name=s{number}", *words[words.index("run.py") + 1 :])
        assert ended.code == 0, ended.err
