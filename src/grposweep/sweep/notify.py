"""Tell the user's own programs what happens in a sweep: commands (``search.on_event``, ``search.on_end``) and a webhook.

They cannot affect the sweep: a failure prints one line, and a slow program delays only the end.
"""

import json
import os
import queue
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from grposweep.errors import UserError
from grposweep.report.trial_view import TrialView
from grposweep.schema import Search
from grposweep.storage.results import Failure

PATIENCE_SECONDS = 600.0  # after which the command of search.on_end is ended
EVENT_SECONDS = 60.0  # for one event's command or request
CLOSE_SECONDS = 120.0  # for what is still waiting when the sweep ends
Event = Mapping[str, str]  # event, sweep, metric, trial, objective, ...


def webhook_address(search: Search) -> str | None:
    """Return the address in the environment variable that ``search.webhook`` names; None without one.

    The address of a webhook is a secret, so a configuration, which is written to disk, holds only the variable's name. Raises
    UserError if it is no name of a variable, or the variable holds no http address.
    """
    if search.webhook is None:
        return None
    if not search.webhook.isidentifier():
        raise UserError(
            "search.webhook takes the name of an environment variable: an address is a secret, and the configuration is written "
            "to disk. Run export CHAT_URL=https://... first, and set search.webhook=CHAT_URL."
        )
    address = os.environ.get(search.webhook, "")
    if urlsplit(address).scheme not in ("http", "https"):
        raise UserError(
            f"search.webhook={search.webhook}: no environment variable of that name holds an http address. "
            f"Run export {search.webhook}=https://... first, or leave search.webhook out."
        )
    return address


def run_command(what: str, command: str, event: Event, seconds: float) -> str | None:
    """Run a shell line with the event in its environment, as ``GRPOSWEEP_<NAME>``; return what went wrong, in one line."""
    variables = {f"GRPOSWEEP_{name.upper()}": value for name, value in event.items()}
    try:
        done = subprocess.run(
            ["sh", "-c", command], env={**os.environ, **variables}, stdin=subprocess.DEVNULL, timeout=seconds, check=False
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{what} failed: {error}"
    return f"{what} failed with exit code {done.returncode}: {command}" if done.returncode else None


def post(address: str, event: Event) -> str | None:
    """Send an event as a JSON object, with a ``text`` that chat services show; return what went wrong, in one line."""
    body = json.dumps({"text": _text(event), **event}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=EVENT_SECONDS).close()
    except (OSError, ValueError) as error:  # the address is a secret and stays out of the message
        reason = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        return f"search.webhook failed ({reason})"
    return None


def _text(event: Event) -> str:
    of = f"trial {event['trial']}" if event.get("trial") else event.get("status") or event.get("reason", "")
    worth = f", {event['metric']} {event['objective']}" if event.get("objective") else ""
    return f"grposweep {os.path.basename(event['sweep'])}: {event['event']}, {of}{worth}"  # noqa: PTH119 - text only


@dataclass
class Notifier:
    """Sends events one after the other, in a separate thread.

    Events: ``best`` (a finished trial is the best so far), ``collapse`` (a guard ended a trial), ``failed`` (a trial failed),
    ``budget`` (the budget of GPU hours holds no further trial; once).
    """

    sweep: str
    search: Search
    address: str | None = None
    problems: list[str] = field(default_factory=list)
    _best: float | None = None
    _is_spent: bool = False
    _events: "queue.Queue[Event | None]" = field(default_factory=queue.Queue)
    _thread: threading.Thread | None = None

    def trial_ended(self, trial: TrialView, is_new: bool = True) -> None:
        """Record an ended trial. Trials of an earlier controller (not ``is_new``) only set the best value."""
        name = self._event(trial)
        if name and is_new:
            value = trial.reached if trial.objective is None else trial.objective
            self.send({"event": name, "trial": str(trial.number), "objective": "" if value is None else repr(value),
                       "reason": trial.reason})  # fmt: skip

    def _event(self, trial: TrialView) -> str:
        if trial.failure_class:
            return "failed"
        if trial.failure.name in (Failure.COLLAPSE, Failure.NON_FINITE):
            return "collapse"
        sign = -1 if self.search.direction == "minimize" else 1
        if trial.objective is None or (self._best is not None and sign * trial.objective <= sign * self._best):
            return ""
        self._best = trial.objective
        return "best"

    def budget_spent(self) -> None:
        """Send that the budget holds no further trial, once."""
        if not self._is_spent:
            self._is_spent = True
            reason = f"search.budget_gpu_hours={self.search.budget_gpu_hours:g} holds no further trial"
            self.send({"event": "budget", "trial": "", "objective": "", "reason": reason})

    def send(self, event: Event) -> None:
        """Send an event to the configured programs, if any."""
        if self.search.on_event is None and self.address is None:
            return
        self._events.put({"sweep": self.sweep, "metric": str(self.search.metric), **event})
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for pending events, for two minutes at most."""
        if self._thread is not None:
            self._events.put(None)
            self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            done = []
            if self.search.on_event is not None and event["event"] != "end":
                done.append(run_command("search.on_event", self.search.on_event, event, EVENT_SECONDS))
            if self.address is not None:
                done.append(post(self.address, event))
            self.problems += [problem for problem in done if problem and problem not in self.problems]
