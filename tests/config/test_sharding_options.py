"""Options of sharding: what goes together, and that a file enters a trial's identity by its
content.
"""

import json
from pathlib import Path

from omegaconf import OmegaConf

from grposweep.config.compose import to_experiment
from grposweep.config.identity import ResolvedConfig
from grposweep.schema import Experiment
from grposweep.storage.inputs import find_inputs
from grposweep.storage.provenance import collect_provenance, difference
from support import check_experiment


def build(*overrides: str) -> Experiment:
    """The experiment of a few keys."""
    return to_experiment(OmegaConf.from_dotlist(list(overrides)))


def write(path: Path, **content: object) -> str:
    """A configuration of DeepSpeed's; the override that names it."""
    path.write_text(json.dumps(content))
    return f"trainer.deepspeed_config={path}"


def test_a_file_of_deepspeeds_is_part_of_the_identity_by_its_content(tmp_path: Path) -> None:
    """Not by its name; memory is not estimated, because the file may offload anything."""

    def identity(file: str) -> str:
        experiment = build("trainer.sharding=zero2", file)
        check_experiment(experiment)
        return ResolvedConfig.of(experiment).identity

    here = tmp_path / "a.json"
    there = tmp_path / "b.json"
    first = identity(write(here, zero_optimization={"stage": 2}))
    assert identity(write(there, zero_optimization={"stage": 2})) == first
    assert (
        identity(write(there, zero_optimization={"stage": 2}, wall_clock_breakdown=True)) != first
    )
    offloaded = build("trainer.sharding=zero2", "trainer.offload=optimizer")
    assert ResolvedConfig.of(offloaded).identity != first


def test_a_changed_file_of_deepspeeds_is_named_when_a_sweep_is_resumed(tmp_path: Path) -> None:
    """As changed rewards and prompts are."""
    path = tmp_path / "zero.json"
    experiment = build("trainer.sharding=zero2", write(path, zero_optimization={"stage": 2}))
    before = collect_provenance(find_inputs([experiment]))
    write(path, zero_optimization={"stage": 2, "overlap_comm": False})
    assert (
        difference(before, collect_provenance(find_inputs([experiment]))) == f"{path} has changed"
    )
