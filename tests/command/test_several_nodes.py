"""A program on several nodes: each also has a process of ours, and one of them writes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import TRL
from grposweep.command._contract import Entry, ExternalProgram, NodeContext, Trial
from grposweep.command._script import build_script
from grposweep.command.follow import ExternalProgramMonitor
from grposweep.schema import Trainer
from grposweep.train.records import ControlFile, MetricsFile

pytestmark = pytest.mark.slow


def test_a_second_nodes_process_obeys_the_search_and_leaves_metrics_alone(tmp_path: Path) -> None:
    """It would take the first one's end for a failure, and drop what that one has written."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n')
    (tmp_path / "control.json").write_text(json.dumps({"action": "prune"}))
    attempt = SimpleNamespace(
        folder=tmp_path,
        number=0,
        is_main=False,
        terminated=False,
        control=ControlFile(tmp_path),
        metrics=MetricsFile(tmp_path, 0),
        log=lambda *_: None,
        beat=lambda _: None,
    )
    child = subprocess.Popen(["sleep", "60"], process_group=0)
    watch = ExternalProgramMonitor(
        attempt, ExternalProgram(("sleep",), lambda: [Entry("train", 1, {"reward": 0.5})]), child
    )  # type: ignore[arg-type]
    assert watch.follow() == -signal.SIGTERM
    assert metrics.read_text() == '{"step": 1}\n'


def test_a_torchrun_command_meets_on_its_nodes_as_it_is(tmp_path: Path) -> None:
    """Two nodes with two processes each: ranks 0 to 3 of 4."""
    script = tmp_path / "train.py"
    port = 20000 + os.getpid() % 9000
    script.write_text(
        "import os\nos.write(1, '{RANK} {WORLD_SIZE}\\n'.format(**os.environ).encode())\n"
    )
    trainer = Trainer(
        command=f"{sys.executable} -m torch.distributed.run --nproc_per_node 2 {script}"
    )
    places = [NodeContext(4, node=node, nodes=2, port=port) for node in (0, 1)]
    programs = [
        build_script(Trial(trainer, tmp_path, Recipe("trl", TRL, {}), place)) for place in places
    ]
    started = [
        subprocess.Popen(
            one.command, stdout=subprocess.PIPE, text=True, env={**os.environ, **one.environment}
        )
        for one in programs
    ]
    said = sorted(
        line for child in started for line in child.communicate(timeout=120)[0].splitlines()
    )
    assert said == ["0 4", "1 4", "2 4", "3 4"]
