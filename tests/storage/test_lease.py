"""The lease keeps two controllers apart, also after a crash."""

import itertools
import os
import socket
from pathlib import Path

import pytest

from grporecipe.errors import LeaseLostError, UserError
from grporecipe.files import read_json, write_json
from grposweep.process import birth
from grposweep.storage import lease as module
from grposweep.storage.lease import Lease


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder is given up after half a second, and beats every tenth."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.6)
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the lease of a sweep is."""
    return tmp_path / "lease.json"


def holder(path: Path, host: str, pid: int) -> None:
    """Another user's lease."""
    write_json(path, {"owner": "other", "host": host, "pid": pid, "counter": 3})


def test_a_live_holder_is_respected(path: Path) -> None:
    """Its counter moves, so the second one is refused."""
    with Lease(path), pytest.raises(UserError, match="another controller"):
        Lease(path).__enter__()


def test_a_lease_ends_with_its_holder(path: Path) -> None:
    """The next one gets it at once."""
    with Lease(path):
        pass
    with Lease(path):
        assert read_json(path)["pid"] == os.getpid()


@pytest.mark.parametrize(
    ("host", "pid"),
    [(socket.gethostname(), 2**22 + 1), ("another-host", 1), (socket.gethostname(), os.getpid())],
    ids=["no such process", "elsewhere", "a reused pid"],
)
def test_a_holder_that_is_dead_or_whose_counter_stands_still_is_followed(
    path: Path, host: str, pid: int
) -> None:
    """Clocks of two machines differ; a counter that does not move says the same everywhere."""
    holder(path, host, pid)
    with Lease(path) as lease:
        lease.check()


def test_a_pid_that_another_process_got_is_no_holder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time of the process's start; nothing is watched."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 3600.0)
    known = {"owner": "other", "host": socket.gethostname(), "pid": os.getpid(), "counter": 3}
    write_json(path, {**known, "birth": (birth(os.getpid()) or 0) - 1})
    with Lease(path) as lease:
        lease.check()


@pytest.mark.skipif(birth(os.getpid()) is None, reason="this system has no /proc")
def test_a_holder_on_this_machine_that_moves_nothing_is_respected(path: Path) -> None:
    """It is suspended, or waits for a disk: two controllers would train its trials twice."""
    known = {"owner": "other", "host": socket.gethostname(), "pid": os.getpid(), "counter": 3}
    write_json(path, {**known, "birth": birth(os.getpid())})
    with pytest.raises(UserError, match="another controller"):
        Lease(path).__enter__()


@pytest.mark.parametrize("hidden", ["pid_namespace", "is_hidden"])
def test_a_holder_that_only_its_counter_shows_is_watched(
    path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """Two containers may share a host name and a pid; /proc may hide other users' processes."""
    numbers = itertools.count(1)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(module, "birth", lambda _pid: next(numbers))
    monkeypatch.setattr(module, hidden, lambda *_: next(numbers))
    with Lease(path):
        assert module.is_held(path)


def test_a_process_has_a_birth_until_it_ends() -> None:
    """Also before its parent has asked how it ended; other things have none."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert birth(child) is None
    os.waitpid(child, 0)
    assert [birth(pid) for pid in (child, "no pid", None)] == [None] * 3


def test_a_wait_for_a_holder_elsewhere_is_explained(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who held the sweep, and for how long its lease is watched."""
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.0)
    holder(path, "another-host", 12)
    with Lease(path):
        pass
    assert capsys.readouterr().err.startswith(
        "process 12 on another-host held this sweep last; watching"
    )


def test_a_controller_that_lost_its_lease_stops_and_does_not_take_it_back(path: Path) -> None:
    """It was suspended, another one took over, it wakes up."""
    with Lease(path) as lease:
        holder(path, "another-host", 1)
        with pytest.raises(LeaseLostError):
            lease.check()
    assert read_json(path)["owner"] == "other"


def test_a_folder_that_is_gone_was_not_taken_over(tmp_path: Path) -> None:
    """Renamed while its sweep runs: the message says so."""
    sweep = tmp_path / "s"
    sweep.mkdir()
    with Lease(sweep / "lease.json") as lease:
        sweep.rename(tmp_path / "t")
        with pytest.raises(
            LeaseLostError, match="is gone: it was renamed or removed while its sweep ran"
        ):
            lease.check()


def test_a_lease_that_is_removed_was_not_taken_over(path: Path) -> None:
    """By a hand that tidies up."""
    with Lease(path) as lease:
        (path).unlink()
        with pytest.raises(LeaseLostError, match="was removed while its sweep ran"):
            lease.check()
