"""Trial folders as the controller writes them, and a tiny model that is barely warm, so that it is
there at once.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from grporecipe.files import append_line, read_json, read_lines, write_text
from grposweep.config.compose import to_experiment
from grposweep.schema import Experiment

SMALL = [
    f"task.rewards=[{Path(__file__).with_name('dense.py')}:dense]",
    "task.eval_prompts=8",
    "task.max_completion_length=4",
    "generation.max_completion_length=4",
    "batch.num_generations=4",
    "batch.num_generations_eval=4",
    "batch.per_device_train_batch_size=8",
    "batch.gradient_accumulation_steps=1",
    "schedule.max_steps=4",
    "schedule.evaluations=2",
]


def build_experiment(*overrides: str) -> Experiment:
    """A small experiment: 2 prompts x 4 generations per step, 4 steps, 8 held-out prompts."""
    config = OmegaConf.from_dotlist(["lr=1e-3", *SMALL, *overrides])
    return to_experiment(config)


MakeTrial = Callable[..., Path]


@pytest.fixture
def make_trial(tmp_path: Path) -> MakeTrial:
    """A maker of trial folders: ``make_trial("lr=1e-4", name="0001-b")``."""

    def make(*overrides: str, name: str = "0000-a", sweep: str = "a sweep") -> Path:
        folder = tmp_path / sweep / "trials" / name
        folder.mkdir(parents=True)
        write_text(
            folder / "config.yaml",
            OmegaConf.to_yaml(OmegaConf.structured(build_experiment(*overrides))),
        )
        append_line(folder / "attempts.jsonl", {"attempt": 0})
        return folder

    return make


@pytest.fixture
def make_fake(make_trial: MakeTrial) -> MakeTrial:
    """The same, for the fake trainer."""
    return lambda *overrides, **kwargs: make_trial("trainer.kind=fake", *overrides, **kwargs)


@pytest.fixture(scope="session")
def cool_tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """For this process: a tiny model of 20 warm-start steps instead of 700. It runs like the real
    one and knows little.
    """
    from grposweep.train import _tiny as tiny

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.RECIPE, "steps", 20)
        patch.setenv("GRPOSWEEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        tiny.tiny_folder()
        yield


@pytest.fixture
def own_threads() -> Iterator[None]:
    """Give the process the number of threads that it had."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def result_of(folder: Path) -> dict[str, Any]:
    """The trial's result.json."""
    return read_json(folder / "result.json") or {}


def metrics_of(folder: Path, timeless: bool = False) -> list[dict[str, Any]]:
    """The trial's metrics; ``timeless`` without what may differ from run to run."""
    from grposweep.storage.provenance import TIMES

    drop = TIMES if timeless else ()
    return [
        {k: v for k, v in line.items() if k not in drop}
        for line in read_lines(folder / "metrics.jsonl")
    ]


def control(folder: Path, action: str, **more: Any) -> None:
    """The controller's word."""
    write_text(folder / "control.json", json.dumps({"action": action, **more}))
