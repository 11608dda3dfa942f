"""``python -m grposweep.train <trial folder>`` runs one rank of one attempt.

``... prepare <sweep folder>`` prepares models and data, ``... rewards <file>`` tries rewards,
``... serve <trial folder>`` is the trial's vLLM server.
"""

import errno
import os
import signal
import sys
from pathlib import Path

from grporecipe.errors import ExitCode, packages_first
from grposweep.process import STOP_SIGNALS
from grposweep.process.redaction import guard_output

USAGE = (
    "usage: python -m grposweep.train <trial folder> | prepare <sweep folder> | serve "
    "<trial folder>"
)


def main(arguments: list[str]) -> int:
    """The exit code; torch is imported only once a real training is certain."""
    is_trial = len(arguments) == 1 and not arguments[0].startswith("-")
    # A trial keeps a request to stop until it can answer it: at a rollout boundary, with a
    # checkpoint.
    how = signal.SIG_BLOCK if is_trial else signal.SIG_UNBLOCK
    signal.pthread_sigmask(how, STOP_SIGNALS)
    guard_output()
    # TRL imports MLflow, which would write to the user's folder
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if len(arguments) == 2 and arguments[0] == "prepare":
        from grposweep.train._prepare import prepare_sweep

        return prepare_sweep(Path(arguments[1]))
    if len(arguments) == 2 and arguments[0] == "rewards":
        from grposweep.train.rewards import try_early

        try_early(Path(arguments[1]))
        return ExitCode.FINISHED
    if len(arguments) == 2 and arguments[0] == "serve":
        from grposweep.train._vllm import serve_model

        # becomes another program
        serve_model(Path(arguments[1]))
    if is_trial:
        from grposweep.train.process import take_rank_place
        from grposweep.train.run import run_attempt

        folder = Path(arguments[0])
        take_rank_place(folder)
        return run_attempt(folder)
    print(USAGE, file=sys.stderr)
    return ExitCode.BAD_INPUT


def run(arguments: list[str]) -> int:
    """Return the exit code, even if the disk is too full to record the failure."""
    packages_first()
    try:
        code = main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        return ExitCode.DISK_FULL
    return code


if __name__ == "__main__":
    code = run(sys.argv[1:])
    # all is written; taking torch.distributed down object by object may hang (trl.py says why)
    os._exit(code)
