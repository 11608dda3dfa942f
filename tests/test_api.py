"""The Python interface: ``from grposweep import fit, lint, plan``."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import grposweep
from grporecipe.errors import UserError
from grposweep import api
from made import Made, make_sweep
from refused import says
from support import PROJECT, Printed, environment

GOOD = {
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "max_steps": 100,
}
BAD = {**GOOD, "num_generations": 7}


def test_importing_the_package_imports_nothing_of_it() -> None:
    """The functions are imported at their first use."""
    code = """\
import sys, grposweep
assert [name for name in sys.modules if name.startswith("grposweep.")] == []
from grposweep import plan
assert plan({"num_generations": 8}, processes=8)["completions_per_rollout"] == 64
from grposweep import lint
assert lint({"num_generations": 8}, processes=8).ok
assert "hydra" not in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment(PYTHONPATH=str(PROJECT / "src"))
    )


def test_an_object_states_what_is_not_its_default() -> None:
    """Of a class derived from TRL's, the fields that TRL knows."""

    @dataclass
    class Theirs:
        num_generations: int = 8
        per_device_train_batch_size: int = 8
        steps_per_generation: int | None = None
        generation_batch_size: int | None = None
        names: list[str] = field(default_factory=list)

    Theirs.__module__ = "trl.trainer.grpo_config"

    @dataclass
    class Ours(Theirs):
        own: int = 1

    args = Ours(num_generations=7, steps_per_generation=1, generation_batch_size=64, own=3)
    assert api._stated(args) == {"num_generations": 7, "steps_per_generation": 1}
    assert [
        problem.code for problem in api.lint(args, processes=8, framework_version="1.16").errors
    ] == ["GB101"]


def test_lint_takes_files(tmp_path: Path) -> None:
    """Also Python with several configurations."""
    path = tmp_path / "train.py"
    path.write_text(
        "from trl import GRPOConfig\nGRPOConfig(seed=1)\nGRPOConfig(num_generation=8)\n"
    )
    found = api.lint(path, framework_version="1.16", processes=8, select=["GV"])
    assert (len(found.recipes), found.ok) == (2, False)
    assert [(problem.code, problem.line) for problem in found.errors] == [("GV102", 3)]


def test_the_examples_of_the_page_run(
    printed: Printed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docs/guides/python.md."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    monkeypatch.chdir(tmp_path)
    make_sweep(tmp_path / "outputs" / "lr_batch", Made(trials=3))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    page = (PROJECT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        # a file, which test_pages.py runs
        if not example.startswith("# "):
            # our own page
            exec(example, {})
    out = printed()
    assert "GB101 " in out
    assert "{'processes': 7}" in out
    assert out.splitlines()[-3].startswith("True [")


def test_lint_takes_a_folder_and_skips_what_is_no_recipe(tmp_path: Path) -> None:
    """As the command does; a test of a whole repository is one line."""
    (tmp_path / "a.yaml").write_text(
        "num_generations: 7\nper_device_train_batch_size: 8\nmodel_name_or_path: m\nbeta: 0.1\n"
    )
    (tmp_path / "other.yaml").write_text("name: CI\n")
    found = api.lint(tmp_path, processes=8)
    assert [Path(result.recipe.file or "").name for result in found.recipes] == ["a.yaml"]
    assert not found.ok


def test_fit_estimates_the_memory_of_a_rank() -> None:
    """More for a longer completion."""
    model = {**GOOD, "model_name_or_path": "Qwen/Qwen2.5-1.5B"}
    short, long = (
        api.fit({**model, "max_completion_length": size}, gpu="A100", processes=8)
        for size in (256, 8192)
    )
    assert short.low < short.peak < short.high
    assert long.peak > short.peak


REFUSED = [
    (lambda: api.lint(3), "int: this is no recipe"),
    (lambda: api.lint("absent.yaml"), "absent.yaml: it cannot be read"),
    (lambda: api.lint({}, framework="llama"), "framework 'llama': grposweep reads easyr1, "),
    (lambda: api.plan(PROJECT / "slurm"), "this folder has no recipe"),
    (
        lambda: api.fit({**GOOD, "model_name_or_path": "org/unknown"}, processes=8),
        "the shape of its model is unknown",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_a_call_cannot_do_is_an_exception_with_one_message(
    call: Callable[[], object], words: str
) -> None:
    """It says what can be given."""
    with pytest.raises(UserError, match=says(words)):
        call()


def test_a_notebook_completes_the_names_of_the_interface() -> None:
    """And no helper of the package itself."""
    assert dir(grposweep) == sorted([*grposweep.__all__, "__version__"])
