"""A program on several nodes: each also has a process of ours, and one of them writes."""

import json
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

from grposweep.external import Entry, ExternalProgram
from grposweep.train.external import ExternalProgramMonitor
from grposweep.train.records import ControlFile, MetricsFile


def test_a_second_nodes_process_obeys_the_search_and_leaves_metrics_alone(tmp_path: Path) -> None:
    """It would take the first one's end for a failure, and drop what that one has written."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n')
    (tmp_path / "control.json").write_text(json.dumps({"action": "prune"}))
    attempt = SimpleNamespace(
        folder=tmp_path, number=0, is_main=False, terminated=False, control=ControlFile(tmp_path),
        metrics=MetricsFile(tmp_path, 0), log=lambda *_: None, beat=lambda _: None,
    )  # fmt: skip
    child = subprocess.Popen(["sleep", "60"], process_group=0)
    watch = ExternalProgramMonitor(
        attempt, ExternalProgram(("sleep",), lambda: [Entry("train", 1, {"reward": 0.5})]), child
    )  # type: ignore[arg-type]
    assert watch.follow() == -signal.SIGTERM
    assert metrics.read_text() == '{"step": 1}\n'
