"""The line by which a program says why it failed."""

import pytest

from grposweep.command.follow import error_line

LOG = """$ python train.py --config recipe.yaml
Traceback (most recent call last):
  File "/home/me/project/train.py", line 12, in <module>
    trainer.train()
  File "/home/me/project/data.py", line 7, in rows
    return load(path)
  File "/home/me/.venv/lib/python3.11/site-packages/datasets/load.py", line 99, in load
    raise ValueError("no such split: tran")
ValueError: no such split: tran
"""


def test_the_last_exception_is_shown_with_the_user_s_own_file_and_line() -> None:
    """Not with the library's, and not with the sweep's copy of the file."""
    assert (
        error_line(LOG.splitlines())
        == "ValueError: no such split: tran (/home/me/project/data.py, line 7)"
    )
    copied = LOG.replace(
        "/home/me/project/", "/work/outputs/s/inputs/0123456789ab/home/me/project/"
    )
    assert error_line(copied.splitlines()) == error_line(LOG.splitlines())
    assert error_line([f"[rank0]: {line}" for line in LOG.splitlines()]) == error_line(
        LOG.splitlines()
    )


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("$ bash run.sh > log\nrank 0 on vm is process 7. If it is silent: py-spy dump\n", ""),
        ("$ bash run.sh\nstep 1\nexp1 exists already\n", "exp1 exists already"),
        (
            "$ train.py --on-error stop\nusage: train.py [-h]\ntrain.py: error: no --lr\n",
            "train.py: error: no --lr",
        ),
        (
            'Traceback (most recent call last)\n  File "a.py", line 3, in <module>\n    go()\n'
            "hub.OfflineModeIsEnabled: no network\nTrial ended: ValueError",
            "hub.OfflineModeIsEnabled: no network (a.py, line 3)",
        ),
    ],
)
def test_the_last_words_of_a_program_are_its_error(log: str, line: str) -> None:
    """An exception of any name, the line of an error, or what ``sys.exit`` said; the command
    itself, which is printed first, is none.
    """
    assert error_line(log.splitlines()) == line
