"""The Python interface: ``from grposweep import lint, plan, validate``."""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import grposweep
from grposweep import api
from grposweep.errors import UserError
from made import Made, make_sweep
from support import PROJECT, environment

GOOD = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "max_steps": 100}
BAD = {**GOOD, "num_generations": 7}


def test_importing_the_package_imports_nothing_of_it() -> None:
    """The functions come when they are asked for."""
    code = """\
import sys, grposweep
assert [name for name in sys.modules if name.startswith("grposweep.")] == []
from grposweep import plan
assert plan({"num_generations": 8}, processes=8)["completions_per_rollout"] == 64
from grposweep import lint
assert lint({"num_generations": 8}, processes=8).ok
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(PYTHONPATH=str(PROJECT / "src")))


def test_validate_raises_with_the_problems_and_returns_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ValueError, whose message names each."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(grposweep.InvalidRecipe, match="GB101 num_generations=7") as caught:
        grposweep.validate(BAD, processes=8, framework_version="1.16")
    assert isinstance(caught.value, ValueError)
    assert caught.value.problems[0].fixes
    assert all(found.severity == "warning" for found in grposweep.validate(GOOD, processes=8, framework_version="1.16"))


def test_validate_counts_the_processes_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """WORLD_SIZE, which torchrun and accelerate set."""
    one = {"num_generations": 8, "per_device_train_batch_size": 1}
    monkeypatch.setenv("WORLD_SIZE", "7")
    with pytest.raises(api.InvalidRecipe, match="GB101"):
        api.validate(one, framework_version="1.16")
    monkeypatch.setenv("WORLD_SIZE", "8")
    api.validate(one, framework_version="1.16")


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
    with pytest.raises(api.InvalidRecipe, match="GB101"):
        api.validate(args, processes=8, framework_version="1.16")


def test_lint_takes_files_and_names_what_is_no_recipe(tmp_path: Path) -> None:
    """Also Python with several configurations."""
    path = tmp_path / "train.py"
    path.write_text("from trl import GRPOConfig\nGRPOConfig(seed=1)\nGRPOConfig(num_generation=8)\n")
    found = api.lint(path, framework_version="1.16", processes=8, select=["GV"])
    assert (len(found.recipes), found.ok) == (2, False)
    assert [(problem.code, problem.line) for problem in found.errors] == [("GV102", 3)]
    with pytest.raises(UserError, match="int: no recipe"):
        api.lint(3)
    with pytest.raises(UserError, match=r"absent\.yaml: it cannot be read"):
        api.lint("absent.yaml")
    with pytest.raises(UserError, match="framework 'llama': grposweep reads easyr1, "):
        api.lint({}, framework="llama")


def test_the_examples_of_the_page_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docs/guides/python.md."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    monkeypatch.chdir(tmp_path)
    make_sweep(tmp_path / "outputs" / "lr_batch", Made(trials=3))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    page = (PROJECT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(example, {})  # our own page
    out = capsys.readouterr().out
    assert "GB101 " in out
    assert "{'processes': 8}" in out
    assert out.splitlines()[-2].startswith("True [")
