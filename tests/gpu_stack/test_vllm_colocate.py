"""Real vLLM inside the ranks (its CPU build), through grposweep's own trainer: it samples from the
weights that are trained.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from grporecipe.errors import ExitCode
from grposweep.train._vllm import LIMIT
from support import PROJECT
from train.conftest import MakeTrial, metrics_of, result_of

from .conftest import ROUNDING, Ranks, differences, log_of, wrapped
from .test_sharded_training import ADAPTERS

pytestmark = pytest.mark.gpu_stack

STEPS = 12
COLOCATED = (
    "generation.use_vllm=true",
    "generation.vllm_mode=colocate",
    "generation.vllm_max_model_length=32",
    "generation.vllm_gpu_memory_utilization=0.3",
    f"schedule.max_steps={STEPS}",
)
SHAPES = {
    "one rank": (),
    "two ranks": ("cluster.processes=2",),
    "tensor parallel": ("cluster.processes=2", "generation.vllm_tensor_parallel_size=2"),
    "FSDP 2": ("cluster.processes=2", "trainer.sharding=fsdp"),
    "LoRA": ADAPTERS,
}


@pytest.fixture(autouse=True)
def shared_memory() -> None:
    """Tensor parallel ranks that end by os._exit leave theirs behind, and the next run finds it in
    its way.
    """
    assert find_spec("vllm") is not None, (
        "vLLM is not installed here. Run these tests by: make vllm-stack"
    )
    for left in Path("/dev/shm").glob("-tp:0-*cpushm*"):
        left.unlink()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_colocated_engine_samples_from_the_weights_that_are_trained(
    make_trial: MakeTrial, ranks: Ranks, shape: str
) -> None:
    """In all twelve steps, while the weights change."""
    folder = make_trial(*COLOCATED, *SHAPES[shape])
    assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
    found = differences(folder)
    # pytest shows it with -rP, or where the test fails
    print(shape, found)
    assert len(found) == STEPS
    assert max(found) < ROUNDING
    assert all(line["update_size"] > 0 for line in metrics_of(folder) if line["kind"] == "train")
    assert wrapped(folder)
    assert ("FSDP" in " ".join(wrapped(folder))) == (shape == "FSDP 2")


def test_an_engine_that_gets_no_weights_ends_the_trial(make_trial: MakeTrial, ranks: Ranks) -> None:
    """The negative control: the same trial, but TRL's sync_weights does nothing."""
    folder = make_trial(*COLOCATED)
    assert ranks.train(folder, GPU_STACK_NO_SYNC="1") == ExitCode.BAD_INPUT, log_of(folder)
    found = differences(folder)
    print(found)
    assert found[0] < ROUNDING
    assert len(found) < STEPS
    assert min(found[-3:]) > LIMIT
    failure = result_of(folder)["failure"]
    assert failure["kind"] == "bad_input"
    assert "the engine's weights are stale" in failure["message"]


def test_another_seed_samples_other_completions(make_trial: MakeTrial, ranks: Ranks) -> None:
    """Of the same prompt and weights; the same seed samples the same ones. vLLM seeds the process
    when it starts.
    """
    one = (
        "batch.num_generations=8",
        "task.train_prompts=1",
        "schedule.max_steps=2",
        "schedule.eval_at_start=false",
    )
    found = []
    for name, seed in [("0000-a", 1), ("0001-b", 2), ("0002-c", 1)]:
        folder = make_trial(*COLOCATED, *one, f"seed={seed}", name=name)
        assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
        found.append(
            [
                (line["reward"], line["entropy"])
                for line in metrics_of(folder)
                if line["kind"] == "train"
            ]
        )
    print(found)
    assert found[0] == found[2]
    assert found[0][0] != found[1][0]


MODEL = PROJECT / ".models" / "smollm2_135m"
REAL = (
    "model.dtype=float32",
    f"model.path={MODEL}",
    "task.kind=jsonl",
    "task.chat=true",
    "task.eval_prompts=2",
    "lr=1e-5",
    "generation.vllm_max_model_length=96",
    "schedule.max_steps=3",
    "schedule.eval_at_start=false",
)


@pytest.mark.skipif(
    not MODEL.is_dir(), reason="needs the model that `make real-model` makes (93 MB, a minute)"
)
def test_the_engine_of_a_real_language_model_samples_from_the_weights_that_are_trained(
    make_trial: MakeTrial, ranks: Ranks, tmp_path: Path
) -> None:
    """SmolLM2 on conversations: its template is used, the weights change in each step, and the
    engine has them.
    """
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {n} + 5?"}], "answer": f"{n + 5}"}
        for n in range(10)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "rewards.py").write_text(
        "def spread(completions, **_):\n    return [i % 2 for i in range(len(completions))]"
    )
    task = (
        f"task.path={tmp_path / 'rows.jsonl'}",
        f"task.rewards=[{tmp_path / 'rewards.py'}:spread]",
    )
    folder = make_trial(*COLOCATED, *REAL, *task)
    assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
    found = differences(folder)
    print(found)
    assert len(found) == 3
    # thirty layers instead of two: 1e-5 in sync
    assert max(found) < 10 * ROUNDING
    assert all(line["update_size"] > 0 for line in metrics_of(folder) if line["kind"] == "train")
