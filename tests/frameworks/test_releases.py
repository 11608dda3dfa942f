"""A new release of a framework: one fact says which is the newest, and its tables grow by one
command.
"""

import json
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest

from grporecipe.files import Json
from grporecipe.frameworks.trl import keys
from grporecipe.linting.linter import Diagnostic
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.registries import NEWEST
from grporecipe.rules.loss import AGGREGATIONS, CORRECTIONS, LEVELS, SCALES
from support import PROJECT
from verdicts import findings_of

WORKERS = "actor_rollout_ref"
LAUNCH = (
    f"python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {WORKERS}.rollout.n=8 "
    f"{WORKERS}.rollout.name=vllm {WORKERS}.rollout.log_prob_micro_batch_size_per_gpu=8 "
    f"{WORKERS}.actor.ppo_micro_batch_size_per_gpu=8 "
    f"{WORKERS}.rollout.tensor_model_parallel_size=1 "
)
NEXT = {name: f"{major}.{minor + 1}.0" for name, (major, minor, _) in NEWEST.items()}


def findings(path: Path, script: str, **options: Any) -> list[Diagnostic]:
    """Errors, and what concerns keys and versions, of a file with this text."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(script, encoding="utf-8")
    found = findings_of(path, processes=1, **options)
    return [one for one in found if one.severity == "error" or one.code.startswith("GV")]


@pytest.mark.parametrize("name", NEWEST)
def test_the_newest_release_is_the_last_of_its_table_and_the_default(name: str) -> None:
    """It was stated in each framework, and in rules."""
    framework = FRAMEWORKS[name]
    assert NEWEST[name] == framework.known_releases[-1] == framework.version


GRPO_CONFIG = """
class GRPOConfig(TrainingArguments):
    num_generations: int | None = field(default=16)
    own_key: float = field(default=0.5)
    def __post_init__(self):
        if self.own_key > 1:
            raise ValueError("own_key is a share")
"""
TRAINER = (
    "class GRPOTrainer:\n    def _compute_loss(self):\n        return self.loss_type in "
    "['grpo', 'own_loss']\n"
)


def package(folder: Path, name: str, **files: str) -> Path:
    """A wheel of release 9.0.0 with these files."""
    path = folder / f"{name}-9.0.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file.replace("__", "/") + ".py", content)
    return path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module behind `make trl-release`, which finds packages of a release 9.0.0."""
    monkeypatch.syspath_prepend(PROJECT / "benchmarks" / "tools")
    tables = import_module("tables")
    monkeypatch.setattr(tables, "PACKAGES", tmp_path)
    package(
        tmp_path, "trl", trl__trainer__grpo_config=GRPO_CONFIG, trl__trainer__grpo_trainer=TRAINER
    )
    package(
        tmp_path,
        "transformers",
        transformers__training_args="class TrainingArguments:\n    optim: str = 'adamw_torch'\n",
    )
    return import_module("release")


def grown(release: ModuleType, name: str) -> tuple[Json, Any]:
    """The table of a framework with release 9.0.0, and the framework's tool."""
    tool = import_module(f"{name}_keys")
    table = json.loads(tool.TARGET.read_text(encoding="utf-8"))
    tool.add(table, release.Release(tool, "9.0.0", {"transformers": {"9.0.0": "9.0.0"}}))
    return table, tool


def test_a_release_is_read_from_its_package_and_can_be_taken_out_again(tools: ModuleType) -> None:
    """Keys, defaults and choices; without it the table has the same bytes as before."""
    table, tool = grown(tools, "trl")
    assert table["keys"]["own_key"] == {"in": "config", "history": [["9.0.0", "float", 0.5]]}
    assert table["keys"]["num_generations"]["history"][-1] == ["9.0.0", "int?", 16]
    assert table["keys"]["beta"]["history"][-1] == ["9.0.0"]
    assert table["choices"]["loss_type"][-1] == ["9.0.0", ["grpo", "own_loss"]]
    tool.drop(table, "9.0.0")
    assert tool.text(table) == tool.TARGET.read_text(encoding="utf-8")


def test_what_changed_is_printed(tools: ModuleType, tmp_path: Path) -> None:
    """New, gone and renamed keys, defaults, choices, and refusals."""
    table, tool = grown(tools, "trl")
    before = json.loads(tool.TARGET.read_text(encoding="utf-8"))
    lines = [*tools.changed_names(tool.histories(before), tool.histories(table))]
    assert "choices: loss_type: -bnpo -dr_grpo -dapo -cispo -sapo -luspo -vespo +own_loss" in lines
    assert 'keys: num_generations was "int?", 8, is "int?", 16' in lines
    assert "keys: beta is gone" in lines
    histories = (
        {"keys": {"top_n": [["1.0.0", "int", 3]]}},
        {"keys": {"top_n": [["1.0.0", "int", 3], ["1.1.0"]], "top_num": [["1.1.0", "int", 3]]}},
    )
    assert next(tools.changed_names(*histories)) == "keys: top_n is gone; renamed to top_num?"
    old, new = (
        import_module("tables").Package(
            package(tmp_path / folder, "trl", trl__trainer__grpo_config=text)
        )
        for folder, text in (("..", ""), (".", GRPO_CONFIG))
    )
    (line,) = tools.changed_checks(import_module("trl_keys"), old, new)
    assert line == (
        "check is new: grpo_config.py.GRPOConfig.__post_init__: self.own_key > 1 and raise "
        "ValueError('own_key is a share')"
    )


def test_pages_name_the_newest_releases() -> None:
    """`make trl-release` writes them."""
    names = {"trl": "TRL", "ms-swift": "ms-swift", "easyr1": "EasyR1", "verl": "verl"}
    readme, limits = (
        (PROJECT / page).read_text(encoding="utf-8")
        for page in ("README.md", "docs/explanation/limits.md")
    )
    for name, spelled in names.items():
        newest = ".".join(map(str, NEWEST[name])).removesuffix(".0")
        assert re.search(rf"\| {spelled} \| [\d.]+ to {re.escape(newest)} \|", readme), name
        assert re.search(rf"{spelled} [\d.]+ to {re.escape(newest)}(?!\.?\d)", limits), name


def test_words_of_rules_are_those_of_the_table() -> None:
    """Rules on settings cannot read it."""
    words = {
        "scale_rewards": SCALES,
        "importance_sampling_level": LEVELS,
        "multi_objective_aggregation": AGGREGATIONS,
        "vllm_importance_sampling_mode": CORRECTIONS,
    }
    assert {key: set(keys.choices(key)) for key in words} == {
        key: set(values) for key, values in words.items()
    }


def test_keys_and_words_of_a_release_that_is_newer_than_all_known_are_not_judged(
    tmp_path: Path,
) -> None:
    """An unknown key was an error by an option, and a pin gave a note that nothing states the
    version.
    """
    recipe = (
        "num_generations: 8\nlearning_rate: 1.0e-6\nnew_key: 1\noptim: "
        "new_optimizer\nloss_type: new_loss\n"
    )
    (found,) = findings(tmp_path / "a" / "r.yaml", recipe, own_version=NEXT["trl"])
    assert (found.code, found.severity, found.keys) == ("GV110", "note", ("new_key", "optim"))
    assert f"--framework-version states {NEXT['trl']}" in found.message
    (tmp_path / "b" / ".git").mkdir(parents=True)
    (tmp_path / "b" / "requirements.txt").write_text(f"verl=={NEXT['verl']}\n")
    (found,) = findings(tmp_path / "b" / "run.sh", LAUNCH + "algorithm.new_option=3")
    assert (found.code, found.severity) == ("GV110", "note")
    assert f"requirements.txt states {NEXT['verl']}" in found.message
    assert "nothing states" not in found.message


def test_a_mistake_that_no_release_repairs_is_an_error_in_a_newer_one_too(tmp_path: Path) -> None:
    """A removed key, a number that is none; a misspelled key is a warning."""
    found = findings(
        tmp_path / "r.yaml",
        "max_prompt_length: 512\nbeta: high\nnum_generatons: 4\n",
        own_version=NEXT["trl"],
    )
    assert {one.keys: one.severity for one in found} == {
        ("max_prompt_length",): "error",
        ("beta",): "error",
        ("num_generatons",): "warning",
    }


IMPORTS = (
    "from trl import GRPOConfig, {}\nGRPOConfig(num_generations=8, per_device_train_batch_size=8)\n"
)


@pytest.mark.parametrize(
    ("version", "name", "why"),
    [
        ("1.16.0", "AsyncGRPOConfig", "no release up to"),
        ("0.14.0", "clone_chat_template", "it came with 0.19.0"),
        ("1.0.0", "BestOfNSampler", "removed it"),
        ("1.16.0", "GRPOTrainer", ""),
        ("0.14.0", "BestOfNSampler", ""),
    ],
)
def test_an_import_that_the_stated_release_does_not_have_is_an_error(
    version: str, name: str, why: str, tmp_path: Path
) -> None:
    """Python ends with an ImportError."""
    told = findings(tmp_path / "t.py", IMPORTS.format(name), own_version=version)
    # GV120 is about defects of the release itself
    found = [one for one in told if one.code != "GV120"]
    assert [(one.code, one.severity) for one in found] == [("GV117", "error")] * bool(why)
    assert all(
        f"line 1 of t.py ends with an ImportError in TRL {version}, because" in one.message
        and why in one.message
        for one in found
    )


def test_imports_are_judged_only_if_the_release_is_stated_and_the_import_is_certain(
    tmp_path: Path,
) -> None:
    """A file may try several places, and a guess of the release proves nothing."""
    guarded = (
        "try:\n    from trl import AsyncGRPOConfig\nexcept ImportError:\n    pass\n"
        + IMPORTS.format("GRPOTrainer")
    )
    assert findings(tmp_path / "t.py", guarded, own_version="1.16.0") == []
    assert findings(tmp_path / "t.py", IMPORTS.format("AsyncGRPOConfig")) == []
    assert (
        findings(tmp_path / "t.py", IMPORTS.format("AsyncGRPOConfig"), own_version=NEXT["trl"])
        == []
    )
    module = "import trl.experimental.nothing\n" + IMPORTS.format("GRPOTrainer")
    assert [one.code for one in findings(tmp_path / "t.py", module, own_version="1.16.0")] == [
        "GV117"
    ]
