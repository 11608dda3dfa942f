"""Identities name folders on disk, and a finished trial is recognised by its own."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from command.conftest import SCRIPT
from grporecipe.files import Json
from grposweep.config.compose import Session
from grposweep.config.identity import ResolvedConfig, prepared_key, sweep_identity
from grposweep.config.points import Points
from support import sampled

GOLDEN = Path(__file__).with_name("identities.json")
FROZEN: dict[str, list[str]] = json.loads(GOLDEN.read_text())
ACCEPT = "ACCEPT_IDENTITIES=1 python -m pytest tests/config/test_identity.py"
SPACE: list[Json] = [{"parameter": "lr", "low": 1e-5, "high": 1e-3, "log": True}]
RECIPE = """\
learning_rate: 1.0e-6
per_device_train_batch_size: 8
num_generations: 8
gradient_accumulation_steps: 2
max_steps: 20
"""


@pytest.mark.parametrize("overrides", sampled(sorted(FROZEN), 4))
def test_an_experiment_and_its_sweep_keep_their_identities(
    overrides: str, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the experiment, of a sweep over the learning rate, and the key in prepared.json."""
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE)
    Path("train.py").write_text("print('hello')\n")
    words = shlex.split(overrides)
    # the interpreter, which is no part of it, runs a stub in place of a greeting
    if "trainer=command" in words:
        monkeypatch.setenv("GRPOSWEEP_ASK_MODE", "real")
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        Path("stub.py").write_text(SCRIPT)
        Path("python").write_text(f'#!/bin/sh\nshift\nexec {sys.executable} stub.py "$@"\n')
        Path("python").chmod(0o755)
    experiment = Points(session.compose, words).base
    found = [ResolvedConfig.of(experiment).identity, sweep_identity(SPACE, experiment)]
    found.append(prepared_key(experiment))
    if os.environ.get("ACCEPT_IDENTITIES"):
        FROZEN[overrides] = found
        GOLDEN.write_text(json.dumps(FROZEN, indent=1) + "\n")
    assert found == FROZEN[overrides], (
        f"a finished trial would be trained again; to accept it: {ACCEPT}"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        "schedule.checkpoint_minutes=5",
        "cluster=slurm +cluster.environment.NCCL_DEBUG=INFO",
        "cluster=slurm cluster.gres_type=a100",
        # the batch has it
        "task.eval_generations=2 batch.num_generations_eval=8",
    ],
)
def test_where_and_how_safely_a_trial_runs_is_no_part_of_it(
    overrides: str, session: Session
) -> None:
    """Neither of its identity nor of what it learns."""
    plain, changed = (Points(session.compose, words.split()).base for words in ("", overrides))
    one, other = map(ResolvedConfig.of, (plain, changed))
    assert one.identity == other.identity
    assert sweep_identity(SPACE, plain) == sweep_identity(SPACE, changed)
    assert one.learning() == other.learning()


def test_options_of_a_server_are_part_of_a_trial(session: Session) -> None:
    """They may change numbers, as another precision does."""
    plain, changed = (
        Points(
            session.compose, ["generation=vllm_server", f"generation.vllm_server_args={args}"]
        ).base
        for args in ("[]", "[--quantization,fp8]")
    )
    assert ResolvedConfig.of(plain).identity != ResolvedConfig.of(changed).identity
