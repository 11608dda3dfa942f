"""Damaged copies of sweeps of every kind: each command answers or says why not, and no sound trial
changes.
"""

import os
from pathlib import Path

import pytest

from .damage import MANY
from .damaged_sweeps import KINDS, make_bases, try_damaged, without_waiting

pytestmark = pytest.mark.slow
# of each kind; `make fuzz` tries more than 2,000 sweeps
SEEDS = 2 if MANY <= 500 else MANY // 7


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_sweep_is_answered_repaired_and_resumed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bounded time, without a traceback; what is wrong is named with the seed that shows it
    again.
    """
    monkeypatch.chdir(tmp_path)
    (base,) = make_bases(tmp_path / "sound", (kind,))
    with without_waiting():
        found = [(seed, try_damaged(base, tmp_path / "copy", seed)) for seed in range(SEEDS)]
    os.chdir(tmp_path)
    wrong = [(seed, outcome.damages, outcome.wrong) for seed, outcome in found if outcome.wrong]
    assert not wrong, "\n".join(map(str, wrong))


def test_a_damaged_warm_start_is_taken_over_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the earlier sweep, as at the first start; the damaged file is kept."""
    monkeypatch.chdir(tmp_path)
    (base,) = make_bases(tmp_path / "sound", ("warm start",))
    file = base.path / "warm_start.json"
    before = file.read_text()
    damages = [
        '{"first": 7, "observations": []}',
        '{"first": [], "observations": [{"point": {}}]}',
        "[[",
    ]
    with without_waiting():
        for text in damages:
            file.write_text(text)
            assert base.resume() == 0
            assert file.read_text() == before
    assert sorted(
        path.read_text() for path in base.path.glob("warm_start.json.damaged*")
    ) == sorted(damages)
