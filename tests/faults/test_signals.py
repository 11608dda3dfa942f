"""Signals at random moments to some or all processes of a sweep: none is a trial's failure, and
nothing is lost.
"""

import itertools
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from support import StartInterpreter, lines, read, trials

pytestmark = pytest.mark.slow
# benchmarks/README.md has the table of 200
SIGNALS = int(os.environ.get("GRPOSWEEP_SIGNALS", "12"))
TRIALS = 8
WORDS = (
    "trainer=fake",
    "schedule=steps",
    "schedule.max_steps=60",
    "schedule.checkpoints=6",
    "search.parallel=3",
    "trainer.args.step_seconds=0.03",
    "-m",
    "lr=1e-4,2e-4,3e-4,5e-4,1e-3,2e-3,3e-3,5e-3",
)
GROUPS = ("all", "controller", "server", "ranks", "one rank")
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def processes_of(controller: int) -> dict[str, list[int]]:
    """The processes of a sweep by what they are; a rank is forked from the server, or started."""
    servers = children(controller)
    ranks = [pid for server in servers for pid in children(server)]
    everything = [controller, *servers, *ranks]
    return {
        "all": everything,
        "controller": [controller],
        "server": servers,
        "ranks": ranks,
        "one rank": ranks[:1],
    }


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes that may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def disturb(start: StartInterpreter, name: str, most: int, chosen: random.Random) -> Counter[str]:
    """Send up to ``most`` signals to one sweep until it has finished; its command is repeated where
    it has stopped.
    """
    sent: Counter[str] = Counter()
    controller = start(f"name={name}", *WORDS)
    while True:
        wait = chosen.uniform(0.1, 2.5) if sent.total() < most else 120
        try:
            code = controller.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            group = chosen.choice(GROUPS)
            number = chosen.choice(NUMBERS)
            if group == "server" and chosen.random() < 0.3:
                number = signal.SIGKILL
            send(processes_of(controller.pid)[group], number)
            sent[f"{number.name} to {group}"] += 1
            continue
        if code == 0:
            return sent
        # Before it counts requests they end it, in Python's own start with code 1.
        assert controller.stdout is not None
        printed = controller.stdout.read()
        assert code in (130, *(-number for number in NUMBERS)) or "KeyboardInterrupt" in printed, (
            printed
        )
        controller = start(f"name={name}", *WORDS)


def test_no_trial_fails_because_of_signals(start_interpreter: StartInterpreter, here: Path) -> None:
    """The same command continues until all trials have finished, each step trained once."""
    chosen = random.Random(0)
    sent: Counter[str] = Counter()
    for number in itertools.count():
        sent += disturb(start_interpreter, f"s{number}", SIGNALS - sent.total(), chosen)
        folders = trials(here / "outputs" / f"s{number}")
        assert [read(trial / "result.json")["status"] for trial in folders] == ["finished"] * TRIALS
        for trial in folders:
            steps = [
                line["step"] for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"
            ]
            assert steps == list(range(1, 61))
        if sent.total() >= SIGNALS:
            break
    print(dict(sorted(sent.items())))
