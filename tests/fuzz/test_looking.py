"""Every view of a sweep shows what can be read of it, even if files are damaged: no traceback, and
JSON that is JSON.
"""

import io
import json
from pathlib import Path

import pytest
from hypothesis import strategies as st
from rich.console import Console

from grporecipe.errors import UserError
from grposweep.report.html_page import page_content, page_data, script_json
from grposweep.report.status import status_json, status_screen
from grposweep.report.trial_screen import trial_screen
from grposweep.report.view import read_sweep
from support import examples, sampled

from .damage import damaged, json_values, lines, object_file, try_all
from .test_sweep_files import ATTEMPTS, METRICS, RECORD, RESULT, RUNS, put, sweep  # noqa: F401 - a fixture among them

pytestmark = pytest.mark.slow
# of each file; an example reads the whole sweep
EXAMPLES = examples(45)
OUTLOOK = {
    "target": 4,
    "at_once": 2,
    "sampler": "tpe",
    "waiting": {"0": "(Priority)"},
    "notice": "",
}
INVALID = {
    "point": {"batch": "small"},
    "problems": [{"code": "GB101", "message": "no", "fixes": [{"a.b": 3}]}],
}
BEAT = {"step": 3, "total": 9, "counter": 3}
KEPT = {
    "step": 3,
    "value": 0.5,
    "prompt_id": 1,
    "prompt": "1+1=",
    "completion": "2",
    "reward": 1.0,
    "rewards": {"exact": 1.0},
}
SEEN = {
    "kind": "eval",
    "step": 3,
    "samples": 64,
    "template_share": 0.5,
    "distinct_ngrams": 0.1,
    "similarity_across": 0.9,
}
OF_SWEEP = {
    "outlook.json": object_file(OUTLOOK),
    "invalid.jsonl": lines(INVALID),
    "lease.json": json_values.map(json.dumps),
}
OF_TRIAL = {
    "result.json": object_file(RESULT),
    "trial.json": object_file(RECORD),
    "attempts.jsonl": lines(*ATTEMPTS),
    "runs.jsonl": lines(*RUNS),
    "metrics.jsonl": lines(*METRICS, SEEN | {"step": 0}, SEEN),
    "heartbeat": object_file(BEAT),
    "completions.jsonl": lines(KEPT | {"step": 0}, KEPT),
    "config.yaml": damaged("lr: 0.001\nbatch: {num_generations: 8}\n"),
    "command.sh": damaged("#!/bin/sh\npython run.py\n"),
}


def look(folder: Path) -> None:
    """At everything that there is to see."""
    try:
        view = read_sweep(folder)
    except UserError:
        return
    console = Console(file=io.StringIO(), width=80)
    console.print(status_screen(view))
    for trial in view.trials:
        console.print(trial_screen(view, trial))
    json.dumps(status_json(view))
    json.loads(script_json(page_data(view)))
    page_content(view)


@pytest.mark.parametrize("name", sampled(OF_TRIAL, 3, pytest.mark.thorough))
def test_a_trials_damaged_file_hides_nothing_else(name: str, sweep: object) -> None:  # noqa: F811
    """One at a time, among sound ones."""
    folder: Path = sweep.path  # type: ignore[attr-defined]
    trial = next((folder / "trials").iterdir())
    put(
        trial / "completions.jsonl",
        "".join(json.dumps(KEPT | {"step": step}) + "\n" for step in (0, 3)),
    )
    for other, content in (
        ("metrics.jsonl", [*METRICS, SEEN | {"step": 0}, SEEN]),
        ("attempts.jsonl", ATTEMPTS),
        ("runs.jsonl", RUNS),
    ):
        put(trial / other, "".join(json.dumps(line) + "\n" for line in content))

    def check(text: str) -> None:
        put(trial / name, text)
        look(folder)

    try_all(check, OF_TRIAL[name], EXAMPLES)


@pytest.mark.parametrize("name", OF_SWEEP)
def test_a_sweeps_damaged_file_hides_nothing_else(name: str, sweep: object) -> None:  # noqa: F811
    """One at a time."""
    folder: Path = sweep.path  # type: ignore[attr-defined]

    def check(text: str) -> None:
        put(folder / name, text)
        look(folder)

    strategy: st.SearchStrategy[str] = OF_SWEEP[name]
    try_all(check, strategy, EXAMPLES)


def test_a_damaged_description_is_read_as_far_as_it_goes_or_refused(sweep: object) -> None:  # noqa: F811
    """sweep.yaml, which people edit."""
    folder: Path = sweep.path  # type: ignore[attr-defined]
    text = (folder / "sweep.yaml").read_text()

    def check(changed: str) -> None:
        put(folder / "sweep.yaml", changed)
        look(folder)

    try_all(check, damaged(text), EXAMPLES)
