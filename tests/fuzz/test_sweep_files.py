"""A sweep's own files after a bad disk or a helpful hand: skipped or said, and never a
traceback.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from grporecipe.errors import UserError
from grporecipe.files import as_number, read_json
from grposweep.launchers.base import End
from grposweep.report.view import read_sweep
from grposweep.schema import Experiment, Search
from grposweep.search.space import Space, read_space
from grposweep.storage import lease as lease_module
from grposweep.storage import paths
from grposweep.storage.damage import trial_damage
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.lease import Lease
from grposweep.storage.results import run_cost
from grposweep.sweep._failures import classify_failure, read_evidence
from grposweep.sweep._resume import open_folder, open_study
from grposweep.train.records import ControlFile, MetricsFile, find_objective

from .damage import MANY, damaged, lines, object_file, try_all

pytestmark = pytest.mark.slow

LR = {"parameter": "lr", "low": 1e-5, "high": 1e-2, "log": True}
SWEEP = {
    "name": "s",
    "identity": "x",
    "space": [LR],
    "search": {
        "sampler": "tpe",
        "seed": 0,
        "metric": "eval_reward",
        "direction": "maximize",
        "last": 1,
    },
    "overrides": ["lr=1"],
    "provenance": {"git_sha": "abc", "packages": {"trl": "1.16.0"}},
}
METRICS = [
    {
        "attempt": 0,
        "step": 0,
        "completions": 0,
        "kind": "eval",
        "eval_reward": 0.25,
        "eval_reward_se": 0.01,
    },
    {"attempt": 0, "step": 1, "completions": 8, "kind": "train", "reward": 0.5, "loss": None},
]
ATTEMPTS = [
    {"attempt": 0, "event": "intent", "time": 1.5},
    {"attempt": 0, "event": "started", "time": 2.5, "job_id": "12"},
    {"attempt": 0, "event": "ended", "code": 1, "killed": False},
]
RUNS = [
    {"event": "start", "attempt": 0, "time": 1.5, "devices": 8, "restarts": 0},
    {"event": "end", "attempt": 0, "time": 2.5},
]
RESULT = {
    "status": "finished",
    "attempt": 0,
    "objective": 0.5,
    "objective_se": 0.1,
    "step": 4,
    "seconds": 1.5,
    "failure": {"kind": "RuntimeError", "message": "no", "last_lines": ["a"]},
}
RECORD = {
    "number": 0,
    "point": {"lr": 1e-3},
    "attributes": {"experiment": "3f9a1c"},
    "config_sha256": "",
}


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    """A sweep of one trial, by hand."""
    monkeypatch.setattr(lease_module, "PATIENCE_SECONDS", 0.0)
    trial = tmp_path / "s" / "trials" / "0000-3f9a1c"
    (trial / "logs").mkdir(parents=True)
    (tmp_path / "s" / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    (trial / "config.yaml").write_text("lr: 0.001\n")
    (trial / "trial.json").write_text(json.dumps(RECORD))
    (trial / "result.json").write_text(json.dumps(RESULT))
    return SweepFolder(tmp_path / "s")


def put(path: Path, text: str) -> None:
    """Write what may be no text at all."""
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))


def trial_of(sweep: SweepFolder) -> TrialFolder:
    """Its trial."""
    return next(iter(sweep.trials()))


def read_everything(trial: TrialFolder) -> Iterator[Any]:
    """All that others ask of a trial's files."""
    yield from (
        trial.result,
        trial.is_done,
        trial.result.value,
        trial.failure,
        trial.record,
        trial.heartbeat(),
    )
    yield from (
        trial.next_attempt(),
        trial.open_attempt(),
        trial.evaluations("eval_reward"),
        trial.last_lines(),
    )
    yield sum(run_cost(trial.path))
    yield classify_failure(read_evidence(trial.path, End(1)))


FILES = {
    "metrics.jsonl": lines(*METRICS),
    "attempts.jsonl": lines(*ATTEMPTS),
    "runs.jsonl": lines(*RUNS),
    "result.json": object_file(RESULT),
    "trial.json": object_file(RECORD),
    "heartbeat": object_file({"step": 1, "total": 4, "counter": 7, "best": 0.5}),
    "logs/rank-0.log": damaged(
        'Traceback:\n  File "a.py", line 1\nRuntimeError: CUDA out of memory.\n'
    )
    | st.text(),
}


@pytest.mark.parametrize("name", FILES)
def test_a_trials_damaged_file_is_read_as_far_as_it_goes(name: str, sweep: SweepFolder) -> None:
    """By everything that reads it; objectives are finite numbers, evaluations have whole steps."""
    trial = trial_of(sweep)

    def check(text: str) -> None:
        put(trial.path / name, text)
        assert len(list(read_everything(trial))) == 12
        assert all(isinstance(step, int) and step >= 0 for step in trial.evaluations("eval_reward"))

    try_all(check, FILES[name])


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "trial.json"])
def test_a_study_is_made_again_from_damaged_files(name: str, sweep: SweepFolder) -> None:
    """One trial, or the place of one."""
    trial = trial_of(sweep)

    def check(text: str) -> None:
        put(trial.path / name, text)
        (sweep.path / paths.JOURNAL).unlink(missing_ok=True)
        study = open_study(sweep, read_space([LR]), "maximize", "eval_reward")
        assert len(study.trials) == 1

    try_all(check, FILES[name], MANY // 10)


def test_a_damaged_description_gives_one_message(sweep: SweepFolder) -> None:
    """By the sweep's own command, and by what reads the sweep."""

    def check(text: str) -> None:
        put(sweep.path / "sweep.yaml", text)
        with suppress(UserError):
            open_folder(
                SweepFolder(sweep.path),
                "x",
                Space(),
                Experiment(),
                {"git_sha": "abc", "packages": {}},
            )
        with suppress(UserError):
            read_sweep(sweep)

    rendered = yaml.safe_dump(SWEEP, sort_keys=False)
    try_all(check, damaged(rendered) | object_file(SWEEP), MANY // 5)


@pytest.mark.parametrize("name", [*FILES, "control.json"])
def test_each_line_about_a_damaged_file_names_it(name: str, sweep: SweepFolder) -> None:
    """Every damage of every file."""
    trial = trial_of(sweep)
    strategy = FILES.get(name, object_file({"action": "stop", "until_step": None}))

    def check(text: str) -> None:
        put(trial.path / name, text)
        assert all(
            line.startswith(trial.path.name) for line in trial_damage(trial, logs_steps=True)
        )

    try_all(check, strategy, MANY // 25)


def test_damaged_preparation_is_no_preparation(sweep: SweepFolder) -> None:
    """Entries that are none do not reach the rules."""

    def check(text: str) -> None:
        put(sweep.path / "prepared.json", text)
        assert all(isinstance(entry, dict) for entry in sweep.prepared().values())

    try_all(check, object_file({"entries": {"abc": {"train_prompts": 5}, "def": 3}}))


def test_a_damaged_word_of_the_controller_asks_for_nothing_or_to_stop(tmp_path: Path) -> None:
    """An attempt in training does not die of it."""

    def check(text: str) -> None:
        put(tmp_path / "control.json", text)
        assert ControlFile(tmp_path).asks_to_stop(3) in (True, False)

    try_all(check, object_file({"action": "stop", "until_step": 3}))


def test_an_attempt_continues_from_damaged_metrics(tmp_path: Path) -> None:
    """Rewinding leaves whole lines up to the checkpoint, and the objective is a number or none."""
    metrics = MetricsFile(tmp_path, attempt=1)

    def check(text: str) -> None:
        put(metrics.path, text)
        objective = find_objective(metrics.lines(), Search(last=2)).objective
        assert objective is None or as_number(objective) is not None
        metrics.rewind(1)
        assert all(line["step"] <= 1 for line in metrics.lines())
        assert metrics.path.read_text().count("\n") == len(metrics.lines())

    try_all(check, lines(*METRICS))


def test_a_damaged_lease_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder, if there is one, writes it again within a second; nothing it may say is taken for
    a process.
    """
    monkeypatch.setattr(lease_module, "PATIENCE_SECONDS", 0.0)

    def check(text: str) -> None:
        put(tmp_path / "lease.json", text)
        with Lease(tmp_path / "lease.json"):
            assert read_json(tmp_path / "lease.json")

    try_all(
        check,
        object_file({"owner": "x", "host": "y", "pid": 3, "counter": 1}),
        MANY // 25,
    )
