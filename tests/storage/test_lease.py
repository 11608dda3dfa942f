"""The lease keeps two controllers apart, also after a crash."""

import os
import socket
from pathlib import Path

import pytest

from grposweep.errors import LeaseLostError, UserError
from grposweep.files import read_json, write_json
from grposweep.storage import lease as module
from grposweep.storage.lease import Lease


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder is given up after half a second, and beats every tenth."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.6)
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.1)


def holder(path: Path, host: str, pid: int) -> None:
    """Another user's lease."""
    write_json(path, {"owner": "other", "host": host, "pid": pid, "counter": 3})


def test_a_live_holder_is_respected(tmp_path: Path) -> None:
    """Its counter moves, so the second one is refused."""
    with Lease(tmp_path / "lease.json"), pytest.raises(UserError, match="another controller"):
        Lease(tmp_path / "lease.json").__enter__()


def test_a_lease_ends_with_its_holder(tmp_path: Path) -> None:
    """The next one gets it at once."""
    with Lease(tmp_path / "lease.json"):
        pass
    with Lease(tmp_path / "lease.json"):
        assert read_json(tmp_path / "lease.json")["pid"] == os.getpid()


def test_a_dead_holder_on_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    """No process has its pid (the largest possible one plus one never exists)."""
    holder(tmp_path / "lease.json", socket.gethostname(), 2**22 + 1)
    with Lease(tmp_path / "lease.json") as lease:
        lease.check()


def test_a_holder_elsewhere_whose_counter_stands_still_is_followed(tmp_path: Path) -> None:
    """Clocks of two machines differ; a counter that does not move says the same everywhere."""
    holder(tmp_path / "lease.json", "another-host", 1)
    with Lease(tmp_path / "lease.json") as lease:
        lease.check()


def test_a_reused_pid_is_no_holder(tmp_path: Path) -> None:
    """Our own pid, but a counter that stands still."""
    holder(tmp_path / "lease.json", socket.gethostname(), os.getpid())
    with Lease(tmp_path / "lease.json") as lease:
        lease.check()


def test_a_controller_that_lost_its_lease_stops_and_does_not_take_it_back(tmp_path: Path) -> None:
    """It was suspended, another one took over, it wakes up."""
    with Lease(tmp_path / "lease.json") as lease:
        holder(tmp_path / "lease.json", "another-host", 1)
        with pytest.raises(LeaseLostError):
            lease.check()
    assert read_json(tmp_path / "lease.json")["owner"] == "other"


def test_a_folder_that_is_gone_was_not_taken_over(tmp_path: Path) -> None:
    """Renamed while its sweep runs: the message says so."""
    sweep = tmp_path / "s"
    sweep.mkdir()
    with Lease(sweep / "lease.json") as lease:
        sweep.rename(tmp_path / "t")
        with pytest.raises(LeaseLostError, match="is gone: it was renamed or removed while its sweep ran"):
            lease.check()


def test_a_lease_that_is_removed_was_not_taken_over(tmp_path: Path) -> None:
    """By a hand that tidies up."""
    with Lease(tmp_path / "lease.json") as lease:
        (tmp_path / "lease.json").unlink()
        with pytest.raises(LeaseLostError, match="was removed while its sweep ran"):
            lease.check()
