"""The Python interface: ``from grposweep import lint, plan, validate``."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grposweep
from grporecipe.errors import UserError
from grposweep import api
from made import Made, make_sweep
from refused import says
from support import PROJECT, environment, read, wait_for

GOOD = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "max_steps": 100}
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


def test_lint_takes_files(tmp_path: Path) -> None:
    """Also Python with several configurations."""
    path = tmp_path / "train.py"
    path.write_text("from trl import GRPOConfig\nGRPOConfig(seed=1)\nGRPOConfig(num_generation=8)\n")
    found = api.lint(path, framework_version="1.16", processes=8, select=["GV"])
    assert (len(found.recipes), found.ok) == (2, False)
    assert [(problem.code, problem.line) for problem in found.errors] == [("GV102", 3)]


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
        if not example.startswith("# "):  # a file, which test_pages.py runs
            exec(example, {})  # our own page
    out = capsys.readouterr().out
    assert "GB101 " in out
    assert "{'processes': 8}" in out
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
    short, long = (api.fit({**model, "max_completion_length": size}, gpu="A100", processes=8) for size in (256, 8192))
    assert short.low < short.peak < short.high
    assert long.peak > short.peak


@pytest.mark.slow
def test_a_sweep_that_cannot_start_is_an_exception_with_the_command_s_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No SystemExit, and no folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^GB101 batch\.num_generations=7: it does not divide"):
        grposweep.sweep({"batch.num_generations": 7, "trainer": "fake"}, name="x")
    assert list(tmp_path.iterdir()) == []


def sweep(values: Any) -> Callable[[], object]:
    """Return a call of ``grposweep.sweep``, which is a function although a package of that name can be imported."""

    def call() -> object:
        import grposweep.sweep.log

        return grposweep.sweep(values)

    return call


FAKE = {"trainer": "fake", "lr": [1e-3]}
REFUSED = [
    (lambda: api.lint(3), "int: this is no recipe"),
    (lambda: api.lint("absent.yaml"), "absent.yaml: it cannot be read"),
    (lambda: api.lint({}, framework="llama"), "framework 'llama': grposweep reads easyr1, "),
    (lambda: api.plan(PROJECT / "slurm"), "this folder has no recipe"),
    (lambda: api.fit({**GOOD, "model_name_or_path": "org/unknown"}, processes=8), "the shape of its model is unknown"),
    (sweep({"lr": []}), "no value"),
    *((sweep(values), 'must be a mapping ... sweep({"lr": [1e-5, 1e-4]') for values in ({}, ["lr"], "lr=1e-3", None)),
    (sweep({**FAKE, "outputs": "elsewhere"}), "outputs is a separate argument"),
    (sweep({**FAKE, "name": "x"}), "name is a separate argument"),
    (sweep({**FAKE, "cluster.controller": "job"}), "waits for the results"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_a_call_cannot_do_is_an_exception_with_one_message(call: Callable[[], object], words: str) -> None:
    """Before anything starts; the demo is not trained unasked."""
    with pytest.raises(UserError, match=says(words)):
        call()


def test_a_sweep_from_python_is_the_sweep_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays, text, options and lists of lists reach it; the same call finds its trials again."""
    monkeypatch.chdir(tmp_path)
    values = {
        "lr": np.array([1e-3, 1e-2]),
        "batch": "small",
        "trainer": "fake",
        "schedule.budget_completions": np.int64(512),
        "task.rewards": [["exact"]],
        "tracker.tags": [["1e-3", "a b, c"]],
    }
    found, again = (grposweep.sweep(values, name="007", outputs=tmp_path / "o 1") for _ in range(2))
    assert found.view.path == again.view.path == tmp_path / "o 1" / "007"
    assert found.best == again.best
    assert found.best is not None
    assert (len(again.view.trials), found.best["lr"]) == (2, 1e-3)
    assert found.view.trials[0].config["tracker"]["tags"] == ["1e-3", "a b, c"]
    with pytest.raises(grposweep.SweepFailed) as caught:
        grposweep.sweep({"trainer": "fake", "trainer.fake.crash_at": 1}, name="y")
    assert caught.value.sweep is not None
    assert len(caught.value.sweep.view.trials) == 1


@pytest.mark.slow
def test_an_interrupted_script_stops_its_sweep_at_a_rollout_boundary(tmp_path: Path) -> None:
    """The signal reaches the script alone, as a notebook's kernel gets it; the sweep can be resumed."""
    code = """\
import sys, grposweep
from grposweep import sweep
try:
    sweep({"trainer": "fake", "trainer.fake.step_seconds": 1.0}, name="x")
except KeyboardInterrupt:
    print("interrupted here", "torch" in sys.modules)
"""
    variables = environment(PYTHONPATH=str(PROJECT / "src"))
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True) as script:
        wait_for(lambda: list(tmp_path.glob("outputs/x/trials/*/metrics.jsonl")))
        script.send_signal(signal.SIGINT)
        said, _ = script.communicate()
    assert said.splitlines()[-1] == "interrupted here False"
    (result,) = tmp_path.glob("outputs/x/trials/*/result.json")
    assert read(result)["status"] == "stopped"


def test_a_notebook_completes_the_names_of_the_interface() -> None:
    """And no helper of the package itself."""
    assert dir(grposweep) == sorted([*grposweep.__all__, "__version__"])
