"""What 56 mistakes of a user are answered with: what is wrong, where, what to set, and how long
that takes.

Aims: grade A for each, in a second of CPU time. Each is a whole process in an empty folder, without
a network.
"""

import os
import platform
import re
import resource
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

PYTHON = shlex.quote(sys.executable)
RESULT = Path(__file__).with_suffix(".md")
COMMAND = (sys.executable, "-m", "grposweep")
INTRODUCTION = (
    "`benchmarks/mistakes.py` makes this page. Each command is `grposweep ...` as a whole "
    "process, without a network.\n"
    "A: the answer says what is set, where or why it cannot work, and what to do. B: one of "
    "these is missing. C: more, or a\n"
    'traceback. "works" was a mistake in an earlier version. Its two launch commands ask a real '
    "script, which imports torch if "
    "it has to."
)

ROWS = '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3"}\n' + "".join(
    f'{{"prompt": "{first}+4=", "answer": "{first + 4}"}}\n' for first in range(40)
)
CHAT = "".join(
    f'{{"prompt": [{{"role": "user", "content": "{first}+1="}}], "answer": "{first + 1}"}}\n'
    for first in range(40)
)
REWARDS = """
def none(completions, **kwargs): return None
def nan(completions, **kwargs): return [float("nan")] * len(completions)
def infinite(completions, **kwargs): return [float("-inf")] * len(completions)
def short(completions, **kwargs): return [1.0] * (len(completions) - 1)
def single(completions, **kwargs): return 1.0
def strings(completions, **kwargs): return ["1.0"] * len(completions)
def raises(completions, **kwargs): raise KeyError("label")
def other(data_source, solution_str, ground_truth): return [0.0]
class Stateful:
    def __call__(self, completions, **kwargs): return [0.0] * len(completions)
"""
HYDRA = """
import hydra
from trl import GRPOConfig, GRPOTrainer
ROWS = [{"prompt": "1+1="}]
@hydra.main(config_path=".", config_name="base", version_base=None)
def main(cfg):
    args = GRPOConfig(output_dir="out", learning_rate=cfg.optim.lr, max_steps=2, per_device_train_batch_size=8)
    GRPOTrainer(model=cfg.model, reward_funcs=lambda completions, **kwargs: [0.0], args=args, train_dataset=ROWS).train()
main()
"""
BELOW = """
import argparse, os
from trl import GRPOConfig, GRPOTrainer
ROWS = [{"prompt": "1+1="}]
a = argparse.ArgumentParser()
a.add_argument("--output_dir", default="out")
a.add_argument("--lr", type=float, default=1e-4)
a = a.parse_args()
args = GRPOConfig(output_dir=os.path.join(a.output_dir, f"lr{a.lr}"), learning_rate=a.lr, max_steps=2,
                  per_device_train_batch_size=8)
GRPOTrainer(model="tiny", reward_funcs=lambda completions, **kwargs: [0.0], args=args, train_dataset=ROWS).train()
"""
FILES = {
    "rows.jsonl": ROWS,
    "p,comma.jsonl": ROWS,
    # httpx imports the package of this name
    "h2.py": "print('a banner')\n",
    "rows.csv": "prompt,answer\n" + "".join(f"{first}+1=,{first + 1}\n" for first in range(40)),
    "null.jsonl": ROWS + '{"prompt": "5+5=", "answer": null}\n',
    "chat.jsonl": CHAT,
    "r.py": REWARDS,
    "hydra_train.py": HYDRA,
    "base.yaml": "optim:\n  lr: 1.0e-4\nmodel: tiny\n",
    "below.py": BELOW,
    "typo.yaml": "per_device_train_batch_size: 8\nnum_generations: 8\nmax_stps: 200\n",
    "indent.yaml": "per_device_train_batch_size: 8\n num_generations: 8\n",
}
TINY = "model=tiny_text schedule.max_steps=1"
UNREAD = "model=tiny schedule.max_steps=1 task=jsonl"
JSONL = f"run {TINY} task=jsonl task.path=rows.jsonl"


class Mistake(NamedTuple):
    """A mistake: what is typed, and patterns of a good answer: what is set, where or why, and what
    to do.

    Without patterns it is none any more: the command works.
    """

    name: str
    typed: str
    what: str = ""
    where: str = ""
    remedy: str = ""


def reward(name: str, where: str, remedy: str) -> Mistake:
    """Return a mistake of a reward function in r.py."""
    return Mistake(
        f"a reward: {name}", f"{JSONL} 'task.rewards=[r.py:{name}]'", f"r.py:{name}", where, remedy
    )


FAKE = "run trainer=fake"
MISTAKES = (
    Mistake("a key of TRL", f"{FAKE} learning_rate=1e-4", "learning_rate", "not a key", r"\blr\b"),
    Mistake("a key misspelt", f"{FAKE} -m lrr=1,2", "lrr", "not a key", r"mean lr\b"),
    Mistake("a group misspelt", f"{FAKE} btach=small", "btach", "not a key", "mean batch"),
    Mistake(
        "an option misspelt",
        f"{FAKE} batch=smal",
        "smal",
        "batch has no option",
        "mean batch=small",
    ),
    Mistake(
        "a nested key misspelt",
        f"{FAKE} batch.num_generation=4",
        "num_generation",
        "not a key",
        "batch.num_generations",
    ),
    Mistake("letters for a number", f"{FAKE} lr=abc", "lr=abc", "not a number", "Set one"),
    Mistake("a rate of zero", f"{FAKE} lr=0", "lr=0", "above 0", "Set lr="),
    Mistake("a negative rate", f"{FAKE} lr=-1e-4", "lr=-0.0001", "above 0", "Set lr="),
    Mistake("a letter too many", f"{FAKE} lr=1e-5x", "lr=1e-5x", "not a number", "Set one"),
    Mistake(
        "groups of one",
        f"{FAKE} batch.num_generations=1",
        "num_generations=1",
        "at least 2",
        "Set batch.num_generations=",
    ),
    Mistake(
        "half a completion",
        f"{FAKE} batch.num_generations=8.5",
        "num_generations=8.5",
        "whole number",
        "Set one",
    ),
    Mistake(
        "a number in words",
        f"{FAKE} batch.num_generations=eight",
        "num_generations=eight",
        "whole number",
        "Set one",
    ),
    Mistake(
        "no such data file",
        f"run {TINY} task=jsonl task.path=nosuch.jsonl",
        "nosuch.jsonl",
        "no such file",
        "Set task.path",
    ),
    Mistake(
        "data file not set", f"run {TINY} task=jsonl", "task.path", "is not set", "Set task.path="
    ),
    Mistake(
        "a hub model, no network",
        "run model.path=Qwen/Qwen2.5-0.5B-Instruct",
        "model.path=Qwen",
        "the hub",
        "Set model.path",
    ),
    Mistake(
        "no such reward in the file",
        f"{JSONL} 'task.rewards=[r.py:nosuch]'",
        "nosuch",
        "r.py has no",
        "Set one of",
    ),
    Mistake(
        "no such reward file",
        f"{JSONL} 'task.rewards=[nosuch.py:f]'",
        "nosuch.py:f",
        "there is no file",
        "Set the path",
    ),
    Mistake(
        "a reward without brackets",
        f"{JSONL} task.rewards=r.py:none",
        "rewards=r.py",
        "a list",
        r"'task.rewards=\[r.py",
    ),
    Mistake(
        "a reward misspelt",
        f"{JSONL} 'task.rewards=[exactt]'",
        "exactt",
        "task.rewards",
        "mean exact",
    ),
    reward("none", "returned None", "Return one number a completion"),
    reward("nan", "returned nan for row 0", "Return a finite number"),
    reward("infinite", "returned -inf for row 0", "Return a finite number"),
    reward("short", "returned 1 values for 2", "Return one number a completion"),
    reward("single", "returned 1.0, no list", "Return one number a completion"),
    reward("strings", "no list of numbers", "Return one number a completion"),
    reward(
        "raises", "KeyError: 'label', in r.py, line 8", "It gets prompts, completions, .*answer"
    ),
    Mistake(
        "an interval reversed",
        f"{FAKE} -m 'lr=interval(1e-3,1e-5)'",
        "lr=interval",
        "is empty",
        "smaller end first",
    ),
    Mistake(
        "a log interval from 0",
        f"{FAKE} -m 'lr=tag(log,interval(0,1e-3))'",
        "lr=interval",
        "logarithm",
        "Set one, or drop log",
    ),
    Mistake(
        "an effort in percent",
        f"{FAKE} -m lr=1e-4,1e-3 search.effort=60",
        "search.effort=60",
        "a share",
        "at most 1",
    ),
    Mistake(
        "a metric of nothing",
        f"{FAKE} -m lr=1e-4,1e-3 search.metric=accuracy",
        "accuracy",
        "no such metric",
        "eval_reward",
    ),
    Mistake(
        "a study misspelt",
        f"{FAKE} -m sweeps=lr_bacth",
        "lr_bacth",
        "sweeps has no option",
        "mean sweeps=lr_batch",
    ),
    Mistake(
        "no such script",
        "run lr=1e-4 -- python nosuch.py",
        "nosuch.py",
        "it ended without building",
        "Give the command",
    ),
    Mistake(
        "command not set",
        "run trainer=command",
        "trainer.command",
        "is not set",
        "-- bash launch.sh",
    ),
    Mistake(
        "a name with a slash", f"{FAKE} name=a/b", "name=a/b", "a folder", "Set one without slashes"
    ),
    Mistake("no such trial", "show 99", "no sweep", "outputs", "grposweep list"),
    Mistake("a command misspelt", "staus", "staus", "No such command", "mean 'status'"),
    Mistake(
        "no such sweep", "report nosuch", "nosuch is no sweep", "outputs/nosuch", "grposweep list"
    ),
    Mistake(
        "two values without -m", f"{FAKE} lr=1e-4,1e-3", "lr=1e-4,1e-3", "need a sweep", "Add -m"
    ),
    Mistake(
        "a key of a YAML misspelt",
        "lint typo.yaml --processes 1",
        "max_stps",
        "typo.yaml:3",
        "max_steps: 200",
    ),
    Mistake(
        "a comma in a path",
        f"run {TINY} task=jsonl task.path=p,comma.jsonl",
        "p,comma",
        "comma",
        """'task.path="p,comma""",
    ),
    Mistake("CSV as data", f"run {TINY} task=jsonl task.path=rows.csv cluster=dry_run"),
    reward("Stateful", "a class", "Write stateful = Stateful()"),
    reward("other", "data_source, solution_str, ground_truth", "It gets prompts, completions"),
    Mistake(
        "an indentation of YAML",
        "lint indent.yaml --processes 1",
        "not YAML",
        "indent.yaml: .*line 2",
        "Indent the line",
    ),
    Mistake(
        "a null answer",
        f"run {TINY} task=jsonl task.path=null.jsonl",
        "no answer",
        "row 43 of null.jsonl",
        "Fill it in",
    ),
    Mistake(
        "a range with dots",
        f"{FAKE} lr=1e-4..1e-3",
        r"lr=1e-4\.\.1e-3",
        "not a number",
        r"'lr=interval\(1e-4,1e-3\)'",
    ),
    Mistake(
        "no evaluation prompts",
        f"{FAKE} task.eval_prompts=0",
        "eval_prompts=0",
        "evaluation",
        "Set task.eval_prompts=",
    ),
    Mistake(
        "no such model folder",
        "run model.path=./nofolder",
        "model.path=./nofolder",
        "no such folder",
        "Set the folder",
    ),
    Mistake(
        "conversations, tiny model",
        f"run {UNREAD} task.path=chat.jsonl",
        "model.path",
        "the prompt",
        "Set model=tiny_text",
    ),
    Mistake(
        "a model saved below output_dir",
        f"run cluster=dry_run search.metric=reward -m lr=1e-4,1e-3 -- {PYTHON} below.py",
    ),
    Mistake(
        "a script of Hydra's",
        f"run cluster=dry_run search.metric=reward -m lr=1e-4,1e-3 -- {PYTHON} hydra_train.py",
    ),
    Mistake(
        "a banner at import",
        f"{JSONL} 'task.rewards=[r.py:short]'",
        "r.py:short",
        "returned 1 values",
        "Return one number",
    ),
    Mistake("1e5 for 1e-5", f"{FAKE} lr=1e5", "lr=100000", "weights are about", "Write 1e-5"),
    Mistake(
        "a range of one value",
        f"{FAKE} -m 'lr=range(1e-4,1e-3)'",
        "lr=range",
        "steps of 1",
        "Set lr=interval",
    ),
)


class Answer(NamedTuple):
    """What a command said, its exit code, and its CPU seconds, those of its processes included."""

    text: str
    code: int
    seconds: float


def ask(typed: str) -> Answer:
    """Run a command in a folder that holds `FILES`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "HYDRA"))
    }
    environment = {**kept, "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "1000"}
    with TemporaryDirectory() as folder:
        for name, content in FILES.items():
            Path(folder, name).write_text(content)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*COMMAND, *shlex.split(typed)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Answer(" ".join((done.stdout + done.stderr).split()), done.returncode, seconds)


def grade(mistake: Mistake, answer: Answer) -> str:
    """A: what, where and what to do; B: one of them is missing; C: more, or a traceback; works:
    there is nothing to say.
    """
    if not mistake.what:
        return "works" if answer.code == 0 else "C"
    missing = sum(not re.search(pattern, answer.text) for pattern in mistake[2:])
    refused = answer.code in (1, 2) and "Traceback" not in answer.text
    return "C" if not refused else "ABCC"[missing]


def main() -> None:
    """Print a line for each mistake, and write the table."""
    when, load = datetime.now(UTC).strftime("%d %B %Y"), os.getloadavg()[0]
    rows, grades, seconds = [], list[str](), list[float]()
    for number, mistake in enumerate(MISTAKES, start=1):
        answer = ask(mistake.typed)
        grades.append(grade(mistake, answer))
        seconds.append(answer.seconds)
        shown = mistake.typed.replace(f"{PYTHON} ", "python ").replace("|", r"\|")
        rows.append(
            f"| {number} | {mistake.name} | `{shown}` | {grades[-1]} | {answer.seconds:.1f} |"
        )
        print(rows[-1], flush=True)
        if grades[-1] not in ("A", "works"):
            print(f"    code {answer.code}: {answer.text[-600:]}", flush=True)
    counts = ", ".join(f"{grades.count(name)} {name}" for name in ("A", "B", "C", "works"))
    summary = (
        f"{len(MISTAKES)} mistakes: {counts}. CPU seconds: {median(seconds):.1f} in the "
        f"median, {max(seconds):.1f} at most."
    )
    table = "\n".join(["| | mistake | command | grade | CPU s |", "|---|---|---|---|---|", *rows])
    machine = (
        f"{os.cpu_count()} cores ({platform.machine()}), load {load:.0f} to "
        f"{os.getloadavg()[0]:.0f}, {when}"
    )
    RESULT.write_text(
        f"# Mistakes and their answers\n\n{INTRODUCTION}\n\nMeasured on {machine}. "
        f"{summary}\n\n{table}\n"
    )
    print(summary)


if __name__ == "__main__":
    main()
