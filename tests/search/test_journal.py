"""The journal after any damage: what stood before it is there, what came after is kept aside, and work continues."""

import json
import os
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grposweep.search.journal import damaged_path, open_journal
from grposweep.search.space import Choice, Interval, Parameter, Space
from grposweep.search.study import SweepStudy

SPACE = Space(
    (Parameter("lr", Interval(1e-5, 1e-2, log=True)), Parameter("kl", Choice(("none", "low"), ("none", "low"))))
)
SCRAPS = [
    "",
    "\n",
    "null\n",
    "5\n",
    "[]\n",
    "{}\n",
    '{"op_code":99}\n',
    "\x00" * 30,
    '{"op_code": 4, "worker_id": "x"}',
    "é\n",
]


def open_study(journal: Path) -> SweepStudy:
    """The study in the journal, new or found."""
    return SweepStudy(journal, SPACE, "maximize")


State = list[tuple[Any, ...]]
Whole = tuple[bytes, list[State]]


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return [path.name for path in folder.iterdir()]


def state(study: SweepStudy) -> State:
    """All that is known of each trial."""
    return [
        (t.number, t.state, t.value, t.params, t.user_attrs, t.intermediate_values, t.distributions)
        for t in study.trials
    ]


def write(journal: Path) -> list[State]:
    """A study of some trials of each kind; its state after every line of the journal."""
    study = open_study(journal)
    study.add_invalid({"lr": 1e-3, "kl": "none"}, ["GB101 …"])
    for number, kl in enumerate(["low", "none", "low"]):
        study.add({"lr": 1e-4 * (number + 1), "kl": kl}, {"experiment": f"3f9a1c{number}"})
    study.tell(1, 0.5, {10: 0.25, 20: 0.5})
    study.tell(2, None)
    lines = journal.read_bytes().splitlines(keepends=True)
    states = []
    for count in range(len(lines) + 1):
        journal.write_bytes(b"".join(lines[:count]))
        states.append(state(open_study(journal)))
        assert not damaged_path(journal).exists()
    journal.write_bytes(b"".join(lines))
    return states


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A real journal, and its state after every line."""
    journal = tmp_path_factory.mktemp("whole") / "lr_batch" / "study.journal"
    journal.parent.mkdir()
    states = write(journal)
    return journal.read_bytes(), states


def check(journal: Path, damaged: bytes, before: State, certain: bool = True) -> None:
    """Opening a damaged journal gives what stood before; then work continues, and a fresh load sees all of it."""
    journal.write_bytes(damaged)
    damaged_path(journal).unlink(missing_ok=True)
    study = open_study(journal)
    found = state(study)
    assert found == before if certain else _agrees(found, before)
    number = study.add({"lr": 2e-3, "kl": "low"}, {"experiment": "new"})
    study.tell(number, 0.75, {5: 0.75})
    again = open_study(journal)
    assert state(again) == state(study)
    assert not again.repairs
    scraps = damaged_path(journal).read_bytes() if damaged_path(journal).exists() else b""
    assert bool(scraps) == bool(study.repairs)
    assert scraps.rstrip(b"\n") in damaged


def _agrees(found: State, before: State) -> bool:
    """Trials that had ended are as they were; one that still ran may have ended since."""
    ended = [trial for trial in before if trial[1].is_finished()]
    return all(trial in found for trial in ended) and len(found) >= len(before)


@pytest.mark.slow
def test_a_journal_cut_at_any_byte_opens_with_what_stood_before(tmp_path: Path, whole: Whole) -> None:
    """A writer may die in the middle of any line; every 23rd byte here, all of them in the slow tier."""
    data, states = whole
    for length in range(0, len(data) + 1, 23):
        check(tmp_path / "study.journal", data[:length], states[data[:length].count(b"\n")])


@pytest.mark.slow
def test_a_journal_cut_at_every_byte_opens_with_what_stood_before(tmp_path: Path, whole: Whole) -> None:
    """All of them."""
    data, states = whole
    for length in range(len(data) + 1):
        check(tmp_path / "study.journal", data[:length], states[data[:length].count(b"\n")])


def unreadable(data: bytes, at: int) -> bytes:
    """One byte replaced by what no JSON text holds."""
    return data[:at] + b"\xff" + data[at + 1 :]


@pytest.mark.slow
def test_an_unreadable_byte_anywhere_costs_only_what_follows(tmp_path: Path, whole: Whole) -> None:
    """At every byte; in a line's end it costs this line and the next, which are one now."""
    data, states = whole
    for at in range(len(data)):
        check(tmp_path / "study.journal", unreadable(data, at), states[data[:at].count(b"\n")])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), byte=st.binary(min_size=1, max_size=1))
def test_a_tipped_byte_costs_no_trial_that_had_ended_before_it(
    tmp_path: Path, whole: Whole, share: float, byte: bytes
) -> None:
    """The line may still be JSON and even a record; then it says something else, which the trial folders will tell."""
    data, states = whole
    at = int(share * len(data))
    line = data[:at].count(b"\n")
    check(tmp_path / "study.journal", data[:at] + byte + data[at + 1 :], states[line], certain=False)


@pytest.mark.parametrize("scrap", SCRAPS)
@pytest.mark.parametrize("line", [0, 1, 3, -1])
def test_a_scrap_between_lines_is_set_aside_with_what_follows(
    tmp_path: Path, whole: Whole, line: int, scrap: str
) -> None:
    """Records name trials by position: after a lost one they may mean others."""
    data, states = whole
    lines = data.splitlines(keepends=True)
    line %= len(lines) + 1
    damaged = b"".join([*lines[:line], scrap.encode(), *lines[line:]])
    check(tmp_path / "study.journal", damaged, states[line] if scrap else states[-1])


def test_another_direction_than_ours_is_damage(tmp_path: Path, whole: Whole) -> None:
    """Readable, and wrong: the search would go the other way."""
    first, rest = whole[0].split(b"\n", 1)
    record = json.dumps({**json.loads(first), "directions": [1]}).encode()
    check(tmp_path / "study.journal", record + b"\n" + rest, [])


def test_a_study_has_its_sweeps_name_and_is_opened_under_any(tmp_path: Path, whole: Whole) -> None:
    """Earlier releases called every study grposweep, and a sweep's folder may be renamed."""
    first, rest = whole[0].split(b"\n", 1)
    assert json.loads(first)["study_name"] == "lr_batch"
    record = json.dumps({**json.loads(first), "study_name": "grposweep"}).encode()
    journal = tmp_path / "renamed" / "study.journal"
    journal.parent.mkdir()
    check(journal, record + b"\n" + rest, whole[1][-1])
    assert open_study(journal).study.study_name == "grposweep"


def test_a_whole_journal_is_left_alone(tmp_path: Path, whole: Whole) -> None:
    """Byte for byte, and no other file appears."""
    journal = tmp_path / "study.journal"
    journal.write_bytes(whole[0])
    assert not open_study(journal).repairs
    assert journal.read_bytes() == whole[0]
    assert names(tmp_path) == [journal.name]


def test_damage_found_later_joins_what_was_set_aside_before(tmp_path: Path) -> None:
    """Nothing of a journal is ever thrown away."""
    journal = tmp_path / "study.journal"
    for scrap in (b'{"one', b'{"two'):
        open_study(journal)
        with journal.open("ab") as file:
            file.write(scrap)
    assert "damaged" in open_study(journal).repairs[0]
    assert damaged_path(journal).read_bytes() == b'{"one\n{"two\n'


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_dead_writers_lock_is_removed_and_a_live_ones_is_respected(tmp_path: Path, kind: str) -> None:
    """optuna-dashboard and notebooks lock with a link or a file, for milliseconds; ours is the sweep's lease."""
    journal = tmp_path / "study.journal"
    open_study(journal)
    lock = journal.with_name(f"{journal.name}.lock")
    lock.symlink_to(journal) if kind == "link" else lock.touch()
    assert "another program" in open_study(journal).repairs[0]
    old = time.time() - 3600
    os.utime(lock, (old, old), follow_symlinks=False)
    assert "was removed" in open_study(journal).repairs[0]
    assert names(tmp_path) == [journal.name]
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    assert optuna.create_study(storage=storage).trials == []  # it is not kept waiting


def test_a_file_too_large_for_a_journal_is_set_aside_unread(tmp_path: Path) -> None:
    """Optuna would read all of it into memory; a sparse terabyte stands for it."""
    path = tmp_path / "study.journal"
    path.touch()
    os.truncate(path, 1 << 40)
    storage, said = open_journal(path, "maximize")
    assert storage.get_all_studies() == []
    assert said == ["study.journal was no journal: it is study.journal.damaged now"]
