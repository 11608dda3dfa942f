"""What squeue, sacct and sbatch might print: jobs where there are jobs, nothing elsewhere, and no
traceback.
"""

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import strategies as st

from grporecipe.errors import UserError
from grposweep.launchers.base import LauncherBusy
from grposweep.launchers.slurm import _commands as queue
from grposweep.schema import Cluster

from .damage import damaged, try_all

pytestmark = pytest.mark.slow

QUEUE = "".join(
    f"{job_id:<24}{state:<24}{status:<16}{reason:<48}{name:<256}\n"
    for job_id, state, status, reason, name in [
        ("12", "RUNNING", "0", "None", "0003-3f9a1c:0:grposweep:s-1a2b3c4d"),
        ("13_[1-4]", "PENDING", "0", "Priority", "another user's array"),
        ("14", "FAILED", "256", "NonZeroExitCode", "0004-000000:1:grposweep:s-1a2b3c4d"),
    ]
)
ACCOUNTS = (
    "12|COMPLETED|0:0|1:0:grposweep:s\n12|CANCELLED by 1000|0:15|a|b\n13|OUT_OF_MEMORY|0:125|c\n"
)
Say = Callable[[str, str, int], None]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """``say(out, err, code)``: what every command of Slurm's answers from now on."""
    answer = subprocess.CompletedProcess[str]([], 0, "", "")
    monkeypatch.setattr(queue, "_run", lambda *_: answer)

    def prepare(out: str, err: str, code: int) -> None:
        answer.stdout, answer.stderr, answer.returncode = out, err, code

    return prepare


@pytest.mark.parametrize(
    ("sound", "read"), [(QUEUE, queue.read_queue), (ACCOUNTS, lambda: queue.read_accounts(["12"]))]
)
def test_a_damaged_queue_is_read_as_far_as_it_goes(
    say: Say, sound: str, read: Callable[[], dict[str, queue.JobInfo]]
) -> None:
    """Every entry of squeue or sacct has a number, a state and a status."""

    def check(text: str) -> None:
        say(text, "", 0)
        for job_id, entry in read().items():
            assert (job_id.isdecimal(), bool(entry.state), isinstance(entry.code, int)) == (
                True,
                True,
                True,
            )

    try_all(check, damaged(sound) | st.text())


def test_every_answer_of_sbatch_is_a_number_a_wait_or_a_refusal(say: Say) -> None:
    """By its standard output, its errors and its exit code."""

    def check(text: str) -> None:
        out, _, err = text.partition("\n")
        say(out, err, len(text) % 2)
        with suppress(LauncherBusy, UserError):
            assert queue.submit_script(Path("job.sbatch"), Cluster(partition="x")).isdecimal()

    try_all(
        check,
        damaged(
            "123;cluster\n", "greetings\n124\n", "\nsbatch: error: invalid partition specified: x\n"
        ),
    )


def test_a_greeting_before_the_jobs_number_is_not_taken_for_it(say: Say) -> None:
    """Some sites' plugins are friendly."""
    say("Welcome!\n4711;main\n", "", 0)
    assert queue.submit_script(Path("job.sbatch"), Cluster()) == "4711"


def test_a_job_whose_number_was_not_understood_is_looked_for(say: Say) -> None:
    """It is in the queue by its name: submitting once more would run the trial twice."""
    say("Submitted, good luck!\n", "", 0)
    with pytest.raises(LauncherBusy, match="instead of its number"):
        queue.submit_script(Path("job.sbatch"), Cluster())
