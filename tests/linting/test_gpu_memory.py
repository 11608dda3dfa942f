"""``grposweep lint --gpu``: whether a recipe fits the GPU that one has, from the outside."""

import json

import pytest
import yaml

from grporecipe.files import Json
from grporecipe.linting.linter import Diagnostic, lint_recipe
from grporecipe.memory.catalog import memory_of
from grporecipe.reading.load import Options, build_recipe
from support import Run, Write, unwrap

CONFIG: Json = {
    "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct",
    "dtype": "bfloat16",
    "num_generations": 8,
    "optim": "adamw_torch_fused",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 64,
    "max_completion_length": 2048,
    "learning_rate": 1e-6,
    "warmup_steps": 0.05,
    "max_steps": 500,
    "save_steps": 100,
    "gradient_checkpointing": False,
}
LARGE = {**CONFIG, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}


def judged(config: Json, gpu: str, framework: str = "trl") -> dict[str, Diagnostic]:
    """The memory rules that a recipe breaks on a GPU."""
    options = Options(framework, processes=8, gpu_gib=memory_of(gpu, "--gpu"), gpu=gpu)
    found = lint_recipe(build_recipe(config, options)).diagnostics
    return {problem.code: problem for problem in found if problem.code.startswith("GM")}


def test_a_recipe_that_does_not_fit_is_fixed_with_its_own_keys(lint: Run, recipe: Write) -> None:
    """--fix takes the smaller micro-batch, which leaves training as it is; then the recipe fits."""
    path = recipe(start="".join(f"{key}: {json.dumps(value)}\n" for key, value in LARGE.items()))
    gpu = ("recipe.yaml", "--processes", "8", "--gpu", "A100")
    # not asked for
    assert lint("recipe.yaml", "--processes", "8", "--select", "GM").code == 0
    ended = lint(*gpu, "--select", "GM")
    assert ended.code == 1
    assert "GM101 error" in ended.out
    assert "gradient_checkpointing: true" in ended.out
    assert lint(*gpu, "--select", "GM", "--fix").code == 0
    fixed = yaml.safe_load(path.read_text())
    assert fixed["per_device_train_batch_size"] * fixed["gradient_accumulation_steps"] == 64


def test_lint_and_fit_draw_the_line_at_the_same_batch(lint: Run, recipe: Write) -> None:
    """Both have the same verdict on the largest micro-batch that fits by the estimate, of the next
    one, and of one far beyond.
    """
    recipe(start=json.dumps(CONFIG))
    fitted = json.loads(
        lint(
            "recipe.yaml",
            "--gpu",
            "a100-40gb",
            "--processes",
            "8",
            "--format",
            "json",
            command="fit",
        ).out
    )
    sizes = [fitted["batch"], 2 * fitted["batch"]]
    found = [
        "GM101"
        in judged(
            {**CONFIG, "per_device_train_batch_size": n, "gradient_accumulation_steps": 64 // n},
            gpu,
        )
        for n in sizes
        for gpu in ("A100-40GB", "40GiB")
    ]
    assert found == [False, False, True, True]


@pytest.mark.parametrize(
    ("framework", "config", "says"),
    [
        ("trl", {"model_name_or_path": "my-org/secret"}, "my-org/secret is not known"),
        ("trl", {}, "no model is named"),
        (
            "ms-swift",
            {"rlhf_type": "grpo", "model": "my-org/secret"},
            "model=my-org/secret is not known",
        ),
    ],
)
def test_what_cannot_be_judged_is_reported(
    framework: str, config: dict[str, str], says: str
) -> None:
    """Without a message it would look as if it fits."""
    problem = judged(config, "H100", framework)["GM203"]
    assert problem.severity == "warning"
    assert says in problem.message


@pytest.mark.parametrize(("gpu", "warned"), [("T4", True), ("A100", False)])
def test_bfloat16_is_noticed_on_a_gpu_without_it(
    lint: Run, recipe: Write, gpu: str, warned: bool
) -> None:
    """By the GPU's name: its memory alone does not tell."""
    recipe(start=json.dumps(CONFIG))
    out = lint("recipe.yaml", "--processes", "8", "--gpu", gpu).out
    assert ("dtype=bfloat16: a T4 has no bfloat16 arithmetic" in unwrap(out)) is warned
