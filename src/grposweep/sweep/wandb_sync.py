"""``grposweep sync``: the runs that W&B keeps offline in the trial folders, sent one trial at a time through ``wandb sync``.

W&B marks what it has sent (``.wandb.synced``), and appends to a run that it knows: so only trials that are over are sent.
"""

import configparser
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from grposweep.errors import ExitCode, UserError
from grposweep.labels import count
from grposweep.report.trial_view import TrialView
from grposweep.report.view import SweepView
from grposweep.terminal import say

SERVER = "https://api.wandb.ai"
REACH_SECONDS, SEND_SECONDS = 10.0, 900.0  # without a network W&B itself tries for hours
_ADDRESS = re.compile(r"View run .* at (\S+)")


def sync_sweep(sweep: SweepView) -> int:
    """Send the offline runs, and return the exit code.

    Raises UserError if nothing was tracked offline, or W&B knows no login.
    """
    runs = {trial.number: offline_runs(trial.path) for trial in sweep.trials}
    kept = [trial for trial in sweep.trials if runs[trial.number]]
    if not kept:
        raise UserError(f"{sweep.name} has no offline W&B runs. Set tracker=wandb for the next sweep.")
    unsent = {trial.number: [run for run in runs[trial.number] if not is_sent(run)] for trial in kept}
    ready = [trial for trial in kept if unsent[trial.number] and trial.state.is_over]
    open_ = [trial for trial in kept if unsent[trial.number] and not trial.state.is_over]
    if already := len(kept) - len(ready) - len(open_):
        say(f"sent before: {count(already, 'trial')}")
    if open_:
        say(f"not finished yet: {count(len(open_), 'trial')}. Run this command again when they are")
    if ready and (why := unreachable(server())):
        say(
            f"nothing sent: {server()} cannot be reached ({why}). {count(len(ready), 'trial')} stay in {sweep.path}",
            sys.stderr,
        )
        return ExitCode.FAILED
    failed = 0
    for index, trial in enumerate(ready, 1):
        failed += not _send(trial, unsent[trial.number], f"{index} of {len(ready)}: {trial.name}")
    return ExitCode.FAILED if failed else ExitCode.FINISHED


def offline_runs(trial: Path) -> list[Path]:
    """The folders of a trial's offline runs, in the order of its attempts: all are parts of one run."""
    return sorted(path for path in (trial / "wandb").glob("offline-run-*") if any(path.glob("*.wandb")))


def is_sent(run: Path) -> bool:
    """Return whether W&B has marked a run's folder as sent."""
    return any(run.glob("*.wandb.synced"))


def server() -> str:
    """Where W&B sends to: its variable, its settings file, or its own address."""
    folder = Path(os.environ.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb")
    settings = configparser.ConfigParser()
    settings.read(folder / "settings")
    return os.environ.get("WANDB_BASE_URL") or settings.get("default", "base_url", fallback=None) or SERVER


def unreachable(address: str) -> str | None:
    """Return why a server does not answer at all; None if it answers, even with an error."""
    try:
        urllib.request.urlopen(address, timeout=REACH_SECONDS).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None


def _send(trial: TrialView, runs: Sequence[Path], what: str) -> bool:
    """Send one trial's parts in one call, which W&B does in order; False if that failed.

    Raises UserError if W&B knows no login.
    """
    command = [sys.executable, "-m", "wandb", "sync", *map(str, runs)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SEND_SECONDS, check=False,
            cwd=trial.path,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        say(f"{what}: not sent within {SEND_SECONDS / 60:.0f} minutes; nothing is lost", sys.stderr)
        return False
    said = done.stdout + done.stderr
    if "No API key" in said:
        raise UserError("W&B knows no login, so nothing was sent. Run 'wandb login', or set WANDB_API_KEY.")
    if done.returncode or not all(is_sent(run) for run in runs):
        say(f"{what}: not sent: {' '.join(said.split())[-300:]}", sys.stderr)
        return False
    address = _ADDRESS.search(said)
    say(f"{what}: sent{f' to {address[1]}' if address else ''}")
    return True
