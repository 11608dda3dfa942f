"""``search.on_end``: a shell line of the user's own, run once when a sweep ends; what it needs to know is in its environment."""

import os
import subprocess

from grposweep.sweep.controller import Controller

PATIENCE_SECONDS = 600.0  # then it is ended: nobody watches a sweep's controller


def run_on_end(controller: Controller) -> str | None:
    """Run the command that the sweep names; what went wrong, in one line, or None."""
    command = controller.search.on_end
    if command is None:
        return None
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            env={**os.environ, **told(controller)},
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"search.on_end failed: {error}"
    return f"search.on_end failed with exit code {done.returncode}: {command}" if done.returncode else None


def told(controller: Controller) -> dict[str, str]:
    """How the sweep ended, for the command's environment; empty text where there is no best trial.

    With several objectives all trials on the Pareto front are named, separated by blanks, with the first objective's values.
    """
    best = controller.study.best
    winners = controller.study.front or ([] if best is None else [best])
    return {
        "GRPOSWEEP_SWEEP": str(controller.folder.path),
        "GRPOSWEEP_STATUS": status(controller),
        "GRPOSWEEP_METRIC": controller.search.metric,
        "GRPOSWEEP_BEST_TRIAL": " ".join(controller.trial_folder(trial).path.name for trial in winners),
        "GRPOSWEEP_OBJECTIVE": " ".join(repr(trial.value) for trial in winners),
    }


def status(controller: Controller) -> str:
    """``finished``; ``stopped``: by itself, something is to be mended; ``budget``: it is spent; ``failed``: no result."""
    if controller.stopped_itself:
        return "stopped"
    if controller.study.best is None:
        return "failed"
    return "budget" if controller.spending.overspent and controller.ended < controller.proposals.planned else "finished"
