"""TRL releases that are newer than the newest that was tested, in the layout that they have."""

import subprocess
import sys
from pathlib import Path

import pytest

from grporecipe.model.setting import TRL
from in_process import sweeps_in
from support import PROJECT, environment, sampled

TRAINER = """
def save_lora_adapter(model, accelerator, name, folder): ...
def validate_lora_for_vllm_sync(model): raise ValueError("a refusal of TRL's")
def round_lora_rank(rank): return 16
"""
ASKS = """
from grposweep.schema import Experiment
from grposweep.train._shared_engine import check_adapter
from grposweep.train._vllm import adapter_options
print(adapter_options(Experiment())[-1])
check_adapter(None)
"""


@pytest.mark.parametrize("place", sampled(["trl/trainer", "trl/experimental/async_grpo"], 2))
def test_functions_that_trl_1_18_moved_are_found_in_both_places(tmp_path: Path, place: str) -> None:
    """Its layout is staged without torch; the second place is that of 1.18."""
    files = {
        f"{place}/async_grpo_trainer.py": TRAINER,
        "trl/trainer/grpo_trainer.py": "",
        "trl/generation/vllm_client.py": "class VLLMClient: ...",
        "trl/generation/vllm_generation.py": "class VLLMGeneration: ...",
        "torch.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    # it comes before the installed one
    (tmp_path / "trl" / "__init__.py").touch()
    variables = environment(PYTHONPATH=f"{tmp_path}:{PROJECT / 'src'}")
    done = subprocess.run(
        [sys.executable, "-c", ASKS], capture_output=True, text=True, check=False, env=variables
    )
    assert done.stdout == "--max-lora-rank=16\n", done.stderr
    assert "TRL says: a refusal of TRL's" in done.stderr


@pytest.mark.parametrize(
    ("release", "is_newer"), [("1.99.0", True), (".".join(map(str, TRL)), False)]
)
def test_a_sweep_says_in_one_line_that_the_installed_trl_is_newer_than_tested(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    release: str,
    is_newer: bool,
) -> None:
    """With both releases and what to install; nothing of the kind if it is the tested one."""
    about = here / f"trl-{release}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {release}\n")
    monkeypatch.syspath_prepend(here)
    sweeps_in(here, monkeypatch)(
        "lr=1e-3", "name=s", "model=tiny", "task=arithmetic", "cluster=dry_run"
    )
    said = [line for line in capsys.readouterr().out.splitlines() if "was tested with" in line]
    newest = ".".join(map(str, TRL))
    line = (
        f"TRL {release} is installed, and the newest that grposweep was tested with is {newest}: "
    )
    assert said == [f"{line}if a trial fails in TRL, run pip install trl=={newest}."] * is_newer
