"""Tools that others wrote open what a sweep leaves: optuna-dashboard its study, TensorBoard TRL's
curves.
"""

import json
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import Run, environment, grposweep, lines, trials, wait_for

pytestmark = pytest.mark.slow


@contextmanager
def dashboard(journal: Path) -> Iterator[str]:
    """Start ``optuna-dashboard study.journal`` as a user does; return its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).parent / "optuna-dashboard"
    command = [program, str(journal), "--port", str(port)]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate()


def answers(url: str) -> bool:
    """Whether a server answers."""
    try:
        return bool(get(url))
    except OSError:
        return False


def get(url: str) -> bytes:
    """One page."""
    with urllib.request.urlopen(url, timeout=300) as page:
        return bytes(page.read())


def test_optunas_dashboard_opens_the_study_as_it_is(run: Run) -> None:
    """Its page, and through its own interface every trial with its parameters, value and state;
    pruned points with reasons.
    """
    ended = run("trainer=fake", "name=s", "-m", "lr=1e-4,1e-3", "batch.num_generations=8,12")
    with dashboard(ended.sweep / "study.journal") as url:
        wait_for(lambda: answers(f"{url}/dashboard"), 120)
        assert b"<title>Optuna Dashboard" in get(f"{url}/dashboard")
        (study,) = json.loads(get(f"{url}/api/studies"))["study_summaries"]
        detail = json.loads(get(f"{url}/api/studies/{study['study_id']}?after=0"))
    assert study["study_name"] == "s"
    assert sorted(trial["state"] for trial in detail["trials"]) == [
        "Complete",
        "Complete",
        "Pruned",
        "Pruned",
    ]
    done = [trial for trial in detail["trials"] if trial["state"] == "Complete"]
    assert {param["name"] for param in done[0]["params"]} == {"lr", "batch.num_generations"}
    assert all(trial["values"] for trial in done)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """By tag and step what an event file holds: records of a length, its checksum, the event, its
    checksum.
    """
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    for path in folder.glob("events.out.tfevents.*"):
        data = path.read_bytes()
        place = 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event: Any = Event.FromString(data[place + 12 : place + 12 + length])
            place += length + 16
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_tensorboard_gets_trls_own_curves(run: Run) -> None:
    """Under the trial's folder, step by step what metrics.jsonl has."""
    short = (
        "schedule=steps",
        "schedule.max_steps=4",
        "schedule.evaluations=1",
        "task.eval_prompts=16",
    )
    (folder,) = trials(run(*short, "tracker=tensorboard", "name=t").sweep)
    curves = scalars(folder / "tensorboard")
    rewards = {
        line["step"]: line["reward"]
        for line in lines(folder / "metrics.jsonl")
        if line["kind"] == "train"
    }
    assert curves["train/reward"] == pytest.approx(rewards, rel=1e-6)
    assert len(rewards) == 4
    assert any(tag.startswith("eval/") for tag in curves)


def test_trls_own_script_trains_from_the_winners_recipe(run: Run, here: Path) -> None:
    """Prompts and rewards of the user's files included; only the tiny model has to be named."""
    rows = [json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) for n in range(10, 50)]
    (here / "sums.jsonl").write_text("\n".join(rows))
    (here / "mine.py").write_text(
        "def close(completions, answer, **_):\n    return [float(c == a) for c, a in "
        "zip(completions, answer)]\n"
    )
    task = (
        "task=jsonl",
        "task.path=sums.jsonl",
        "task.rewards=[mine.py:close,exact]",
        "task.eval_prompts=8",
    )
    swept = run(*task, "name=s", "schedule.max_steps=2")
    assert swept.code == 0, swept.err
    assert grposweep(here, "best", "s", "--export", "r.yaml", "--as", "trl").code == 0
    (model,) = swept.sweep.glob("trials/*/model")
    more = ["--model_name_or_path", str(model), "--output_dir", "out", "--report_to", "none"]
    command = [sys.executable, "-m", "trl.scripts.grpo", "--config", "r.yaml", *more]
    ended = subprocess.run(
        command, cwd=here, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "eval_rewards/close/mean" in ended.stdout + ended.stderr
