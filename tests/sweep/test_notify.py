"""Events of a sweep reach the user's command and webhook, and their failures stay one line."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grposweep.errors import UserError
from grposweep.report.trial_view import State, TrialView
from grposweep.schema import Search
from grposweep.storage.results import Failure, FailureReport, TrialResult, TrialStatus
from grposweep.sweep.notify import Notifier, webhook_address
from support import Ended

Run = Callable[..., Ended]


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server on loopback, and the events that it was sent."""
    events: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/secret", events
        server.shutdown()
        thread.join()


def ended(number: int, state: State, objective: float | None = None, failure: str | None = None) -> TrialView:
    """A trial that has ended with a value or a failure."""
    report = FailureReport(name=failure, message=f"{failure} of trial {number}") if failure else None
    status = TrialStatus.FAILED if failure else TrialStatus.FINISHED
    result = TrialResult(status, objective=objective, failure=report)
    return TrialView(Path(f"{number:04d}"), number, "", {}, {}, state, result, 1, 1, 1.0, 1.0)


def notify(search: Search, *events: dict[str, str]) -> list[str]:
    """Send events, wait for them; the problems."""
    notifier = Notifier("/outputs/s", search, webhook_address(search))
    for event in events:
        notifier.send(event)
    notifier.close()
    return notifier.problems


def test_an_event_is_posted_with_a_text_that_a_chat_shows(
    received: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, as JSON."""
    monkeypatch.setenv("CHAT", received[0])
    assert notify(Search(webhook="CHAT"), {"event": "best", "trial": "3", "objective": "0.5"}, {"event": "end"}) == []
    assert [event["event"] for event in received[1]] == ["best", "end"]
    assert received[1][0]["text"] == "grposweep s: best, trial 3, eval_reward 0.5"


def test_each_kind_of_event_is_sent(
    received: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best one, a failure, a collapse and a spent budget (once); neither a worse trial nor one of an earlier run."""
    monkeypatch.setenv("CHAT", received[0])
    search = Search(webhook="CHAT", budget_gpu_hours=2.0)
    notifier = Notifier("/outputs/s", search, webhook_address(search))
    notifier.trial_ended(ended(0, State.FINISHED, 0.4), is_new=False)
    notifier.trial_ended(ended(1, State.FINISHED, 0.5))
    notifier.trial_ended(ended(2, State.FINISHED, 0.45))
    notifier.trial_ended(ended(3, State.FAILED, failure=Failure.REWARD))
    notifier.trial_ended(ended(4, State.PRUNED, failure=Failure.COLLAPSE))
    notifier.budget_spent()
    notifier.budget_spent()
    notifier.close()
    events = [(event["event"], event["trial"]) for event in received[1]]
    assert events == [("best", "1"), ("failed", "3"), ("collapse", "4"), ("budget", "")]
    assert received[1][3]["text"] == "grposweep s: budget, search.budget_gpu_hours=2 holds no further trial"


def test_a_webhook_that_fails_is_one_line_without_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often; the address is a secret."""
    monkeypatch.setenv("CHAT", "http://127.0.0.1:9/secret")
    problems = notify(Search(webhook="CHAT"), {"event": "best"}, {"event": "end"})
    assert len(problems) == 1
    assert problems[0].startswith("search.webhook failed (")
    assert "secret" not in problems[0]


def test_a_webhook_is_named_by_a_variable_that_holds_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address itself would be written to disk, and no shell exports a variable of that name."""
    monkeypatch.delenv("CHAT", raising=False)
    with pytest.raises(UserError, match="no environment variable of that name holds an http address"):
        webhook_address(Search(webhook="CHAT"))
    with pytest.raises(UserError, match=r"set search\.webhook=CHAT_URL") as refusal:
        webhook_address(Search(webhook="https://chat.example/secret"))
    assert "chat.example" not in str(refusal.value)
    assert webhook_address(Search()) is None


@pytest.mark.slow
def test_each_new_best_trial_and_each_collapse_is_an_event(run: Run, here: Path) -> None:
    """The first finished trial is the best so far; a resumed sweep does not repeat events."""
    command = "search.on_event='echo \"$GRPOSWEEP_EVENT $GRPOSWEEP_TRIAL $GRPOSWEEP_OBJECTIVE\" >> told'"
    arguments = ("trainer=fake", "name=s", "search.parallel=1", command, "-m", "lr=1e-4,1e-3,3e-4")
    ended = run(*arguments)
    assert ended.code == 0, ended.err
    told = [line.split() for line in (here / "told").read_text().splitlines()]
    assert [(event, trial) for event, trial, _ in told] == [("best", "0"), ("best", "1")]
    assert float(told[1][2]) > float(told[0][2])
    run(*arguments)
    assert len((here / "told").read_text().splitlines()) == 2
