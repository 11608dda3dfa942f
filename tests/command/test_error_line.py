"""The line by which a program says why it failed."""

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


def test_a_log_without_an_exception_has_no_such_line() -> None:
    """An exit code is all there is."""
    assert error_line(["step 1", "loss 0.3"]) == ""


def test_without_an_exception_the_last_line_that_speaks_of_an_error_is_the_error() -> None:
    """argparse and shells print one line; the command itself, which is printed first, is none."""
    lines = [
        "$ train.py --on-error stop",
        "usage: train.py [-h]",
        "train.py: error: unrecognized arguments: --lr",
        "",
    ]
    assert error_line(lines) == "train.py: error: unrecognized arguments: --lr"
