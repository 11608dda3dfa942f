"""The version that a recipe is judged by comes from options, settings, requirements, the
framework's source, or keys.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import Json, read_own_yaml
from grporecipe.linting.linter import LintResult, judge_text, lint_recipe, select_rules
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import text
from grporecipe.project._pins import find_pins
from grporecipe.reading.load import Options, load_recipe
from grporecipe.registries import NEWEST
from support import grposweep
from verdicts import the_one

Tree = Callable[..., Path]
RECIPE = "model_name_or_path: a/b\nnum_generations: 8\nper_device_train_batch_size: 8\n"
# until TRL 0.27
OLD = RECIPE + "max_prompt_length: 512\n"
VERL = """\
data:
  train_batch_size: 1024
  own_switch: false
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: 256
    ppo_micro_batch_size: 64
    use_kl_loss: false
  rollout:
    name: vllm
    n: 1
    n_agent: 1
trainer:
  nnodes: 1
  n_gpus_per_node: 8
  total_epochs: 30
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Write files of a repository, and return its folder, from which commands run."""

    def write(**files: str) -> Path:
        for name, content in {"README.md": "", **files}.items():
            path = tmp_path / "repo" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        monkeypatch.chdir(tmp_path / "repo")
        return tmp_path / "repo"

    return write


def loaded(name: str = "recipes/r.yaml", **options: str) -> Recipe:
    """The recipe in a file of the repository."""
    return load_recipe(Path(name), Options(**options))  # type: ignore[arg-type]


def linted(name: str = "recipes/r.yaml", **options: str) -> LintResult:
    """The answer on a file of the repository."""
    return lint_recipe(loaded(name, **options))


def codes(result: LintResult, severity: str) -> list[str]:
    """The codes of one severity."""
    return [
        found.code
        for found in result.diagnostics
        if found.severity == severity and found.code.startswith("GV")
    ]


def test_an_option_wins_over_settings_and_these_over_requirements(tree: Tree) -> None:
    """Each says where it comes from."""
    tree(**{"recipes/r.yaml": RECIPE, "setup.py": "setup(install_requires=['trl[vllm]==0.16.0'])"})
    assert (loaded().version, loaded().version_source) == (
        (0, 16, 0),
        ("pinned", "setup.py", "trl[vllm]==0.16.0", ()),
    )
    tree(**{".grposweep.toml": 'framework-version = "0.17"\n'})
    assert (loaded().version, loaded().version_source[:2]) == (
        (0, 17, 0),
        ("project", ".grposweep.toml"),
    )
    asked = loaded(own_version="0.18")
    assert (asked.version, asked.version_source[:2]) == (
        (0, 18, 0),
        ("asked", "--framework-version"),
    )


VERSIONS = read_own_yaml(__file__, "versions.yaml")


@pytest.mark.parametrize("row", VERSIONS.values(), ids=VERSIONS)
def test_a_repository_says_which_version_trains(row: Json, tree: Tree) -> None:
    """And an error holds only if it holds in all versions that may."""
    tree(**row["files"])
    result = linted(row.get("judged", "recipes/r.yaml"))
    source = result.recipe.version_source
    assert list(result.recipe.version) == row.get("version", list(result.recipe.version))
    assert source.kind == row.get("kind", source.kind)
    assert source.text.startswith(row.get("begins", ""))
    found = {problem.code: problem for problem in result.diagnostics}
    problems = row.get("problems", {})
    assert {code: found[code].severity for code in problems} == problems
    for code, words in row.get("says", {}).items():
        assert words in found[code].message
    for severity in ("error", "warning"):
        if f"{severity}s" in row:
            assert codes(result, severity) == row[f"{severity}s"]


@pytest.mark.parametrize("named", ["../other/r.yaml", "../other", "old/../../other/r.yaml"])
def test_a_recipe_is_judged_in_the_repository_that_it_is_in(tree: Tree, named: str) -> None:
    """Not by requirements and settings of the working folder, nor of a folder on the way to it."""
    here = tree(
        **{
            "requirements.txt": "trl==0.18.0",
            "r.yaml": RECIPE,
            "old/.grposweep.toml": 'framework-version = "0.16.0"',
            "../other/requirements.txt": "trl==0.21.0",
            "../other/r.yaml": RECIPE,
        }
    )
    assert "TRL 0.21.0 (requirements.txt" in grposweep(here, "lint", named).out
    # the folder above a link is that above its target
    (here / "../other/deep").mkdir()
    (here / "link").symlink_to("../other/deep")
    assert "TRL 0.21.0 (requirements.txt" in grposweep(here, "lint", "link/../r.yaml").out
    assert "TRL 0.18.0 (requirements.txt" in grposweep(here, "lint", "old/../r.yaml").out


REQUIREMENTS = {
    "setup.py": "deps = ['trl[vllm]==0.18.0']  # 'trl==0.14.0'",
    "setup.cfg": "[options]\ninstall_requires =\n    trl ==0.18.0\n",
    "requirements.txt": "# trl==0.14.0\ntrl==0.18.0  # newest\n",
    "requirements-train.txt": "git+https://github.com/huggingface/trl.git@v0.18.0#egg=trl\n",
    "pyproject.toml": '[project]\ndependencies = ["trl[vllm] == 0.18.0"]\n',
    "sub/pyproject.toml": (
        '[tool.poetry.dependencies]\ntrl = {version = "0.18.0", extras = ["vllm"]}\n'
    ),
    "uv.lock": '[[package]]\nname = "trl"\nversion = "0.18.0"\n',
    "Pipfile.lock": json.dumps({"default": {"trl": {"hashes": [], "version": "==0.18.0"}}}),
    "poetry/pyproject.toml": '[tool.poetry.dependencies]\ntrl = "(==0.18.0)"\n',
    "environment.yml": "dependencies:\n  - trl=0.18.0=py310\n",
    "Dockerfile": "ARG TRL=0.18.0\nRUN pip install vllm trl==${TRL}\n",
}


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_kind_of_requirement_is_read(name: str, tree: Tree) -> None:
    """As text; what a comment says does not count."""
    (pin,) = find_pins(tree(**{name: REQUIREMENTS[name]}) / name, "trl")
    assert pin.exact == (0, 18, 0)


def test_a_key_of_other_releases_is_not_called_unknown_to_all(tree: Tree) -> None:
    """``vllm_max_model_len`` went when ``vllm_max_model_length`` came; its value is known only to
    the program.
    """
    made = "GRPOConfig(vllm_max_model_len=own.length, vllm_max_model_length=2, beta=0.1)"
    tree(**{"train.py": f"from trl import GRPOConfig\nimport own\nargs = {made}\n"})
    assert all("no TRL release has" not in d.message for d in linted("train.py").diagnostics)


def test_keys_of_no_common_release_are_one_note_without_fixes(tree: Tree) -> None:
    """Never an error: nothing says which version trains."""
    tree(
        **{
            "recipes/r.yaml": OLD
            + "dtype: bfloat16\nlog_unique_prompts: true\nactivation_checkpointing: true\n"
        }
    )
    result = linted()
    assert not result.recipe.version_source.known
    assert (codes(result, "error"), codes(result, "warning"), codes(result, "note")) == (
        [],
        [],
        ["GV110"],
    )
    found = the_one(result.diagnostics, "GV110")
    assert found.fixes == ()
    assert "max_prompt_length" in found.keys


def test_a_pin_and_keys_of_another_release_are_one_warning(tree: Tree) -> None:
    """It names the pin, and the releases that take the keys."""
    tree(
        **{
            "recipes/r.yaml": RECIPE + "vllm_importance_sampling_mode: token_mask\n",
            "setup.py": "d = ['trl==0.18.0']",
        }
    )
    result = linted()
    assert (codes(result, "error"), codes(result, "warning")) == ([], ["GV111"])
    found = the_one(result.diagnostics, "GV111")
    assert "setup.py pins trl==0.18.0" in found.message
    assert text(NEWEST["trl"]) in found.message


def test_the_keys_of_a_verl_in_the_repository_count(tree: Tree) -> None:
    """A switch of the fork's own is known, its defaults are read, and what it lacks is an error."""
    run = (
        "python3 -m verl.trainer.main_ppo data.own_switch=true actor_rollout_ref.rollout.n_agent=5"
    )
    tree(
        **{
            "src/verl/trainer/config/ppo_trainer.yaml": VERL,
            "run.sh": run + "\n",
            "bad.sh": run + " data.no_such=1\n",
        }
    )
    result = linted("run.sh")
    assert result.recipe.version_source == ("vendored", "src/verl/", "its own source", ())
    assert codes(result, "error") == []
    # 64 of all GPUs, as its file says
    assert result.setting.per_device_train_batch_size == 8
    assert "GV401" in codes(linted("bad.sh"), "error")


def test_the_keys_of_a_trl_in_the_repository_count(tree: Tree) -> None:
    """Its GRPOConfig with own fields and defaults, in the version that it states; the rest is that
    release's.
    """
    tree(
        **{
            "recipes/r.yaml": RECIPE
            + "own_bonus: 0.5\nevaluation_strategy: steps\nmax_steps: 10\n",
            "trl/__init__.py": '__version__ = "0.16.0.dev0"\n',
            "trl/trainer/base.py": (
                "from dataclasses import dataclass\n@dataclass\nclass "
                "Base:\n    own_bonus: float = 0.0\n"
            ),
            "trl/trainer/grpo_config.py": (
                "from dataclasses import dataclass, field\nfrom .base import "
                "Base\n@dataclass\nclass GRPOConfig(Base):\n"
                "    num_generations: int = field(default=6, metadata={'help': ''})\n    beta: "
                "float = 0.125\n"
            ),
        }
    )
    found = linted()
    assert found.recipe.version == (0, 16, 0)
    assert found.recipe.version_source[:2] == ("vendored", "trl/")
    assert found.setting.beta == 0.125
    assert not any("own_bonus" in diagnostic.keys for diagnostic in found.diagnostics)
    assert loaded().vendored["num_generations"].default == 6  # type: ignore[index]  # vendored is not None here


PPO = """
from dataclasses import dataclass, field
from ..workers.config import WorkerConfig
@dataclass
class DataConfig:
    max_prompt_length: int = 8192
    max_response_length: int = 8192
    rollout_batch_size: int = 512
@dataclass
class AlgorithmConfig:
    adv_estimator: str = "grpo"
@dataclass
class PPOConfig:
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    data: DataConfig = field(default_factory=DataConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
"""
WORKER = """
from dataclasses import dataclass, field
@dataclass
class RolloutConfig:
    n: int = 8
    max_num_batched_tokens: int = 16385
    own_bonus: float = 0.0
@dataclass
class WorkerConfig:
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
"""


def test_the_keys_of_an_easyr1_in_the_repository_count(tree: Tree) -> None:
    """Its dataclasses over several files, with own fields, defaults and estimators; what they lack
    is an error.
    """
    run = (
        "python3 -m verl.trainer.main worker.rollout.own_bonus=0.5 "
        "algorithm.adv_estimator=own_grpo worker.rollout.m=1\n"
    )
    tree(
        **{
            "run.sh": run,
            "verl/trainer/config.py": PPO,
            "verl/workers/config/__init__.py": "from .own import WorkerConfig\n",
            "verl/workers/config/own.py": WORKER,
        }
    )
    result = linted("run.sh")
    assert result.recipe.version_source[:2] == ("vendored", "verl/")
    assert (result.setting.num_generations, result.setting.max_batched_tokens) == (8, 16385)
    messages = [
        found.message for found in result.diagnostics if found.code in ("GV301", "GV305", "GT303")
    ]
    assert [message.partition(":")[0] for message in messages] == ["worker.rollout.m=1"]
    tree(**{"verl/workers/config/own.py": WORKER.replace("n: int = 8", "n: int = 16")})
    assert linted("run.sh").setting.num_generations == 16


def test_lists_of_defaults_are_composed_from_that_folder(tree: Tree) -> None:
    """Without the file that verl generates."""
    config = "defaults:\n  - actor@actor_rollout_ref.actor: dp_actor\n  - _self_\n" + VERL.replace(
        "    use_kl_loss: false\n", ""
    )
    tree(
        **{
            "verl/trainer/config/ppo_trainer.yaml": config,
            "verl/trainer/config/actor/dp_actor.yaml": "own_key: 3\n",
            "run.sh": "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.own_key=4\n",
        }
    )
    vendored = loaded("run.sh").vendored
    assert vendored is not None
    assert vendored["actor_rollout_ref.actor.own_key"].default == 3
    assert codes(linted("run.sh"), "error") == []


def test_nothing_of_the_repository_is_executed(tree: Tree) -> None:
    """Neither setup.py nor the framework's source."""
    bomb = "raise SystemExit('executed')\n"
    tree(
        **{
            "setup.py": bomb + "d = ['trl==0.18.0']",
            "trl/__init__.py": bomb,
            "recipes/r.yaml": RECIPE,
        }
    )
    assert loaded().version == (0, 18, 0)
    tree(
        **{
            "setup.py": "(" * 100_000,
            "pyproject.toml": "a = " + "[" * 100_000,
            "recipes/r.yaml": RECIPE,
        }
    )
    assert loaded().version_source.kind in ("keys", "pinned")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'framwork = "trl"\n',
            "there is no setting 'framwork'. The settings are framework, framework-version",
        ),
        ("processes = 0\n", "it must be a whole number of at least 1"),
        ('framework = "rllm"\n', "grposweep reads"),
        ("framework-version = 0.18\n", "framework-version must be text"),
        ("ignore = 'GB101'\n", "ignore must be a list"),
        ("= 1\n", "it cannot be read as TOML"),
        (
            '[per-file-overrides."a.yaml"]\nper-file-overrides = {}\n',
            "there is no setting 'per-file-overrides'",
        ),
    ],
)
def test_bad_settings_are_one_message(text: str, said: str, tree: Tree) -> None:
    """With the file, and what to write."""
    tree(**{"recipes/r.yaml": RECIPE, ".grposweep.toml": text})
    with pytest.raises(UserError, match=r"\.grposweep\.toml") as found:
        loaded()
    assert said in str(found.value)


def test_settings_of_a_project_are_found_upward_and_overridden_by_file(tree: Tree) -> None:
    """In pyproject.toml too; a table of versions is by framework."""
    table = (
        '[tool.grposweep]\nframework = "open-r1"\nprocesses = 4\nframework-version = { '
        'open-r1 = "0.17.0", verl = "0.5" }\n'
    )
    more = '[tool.grposweep.per-file-overrides."recipes/*.yaml"]\nprocesses = 2\n'
    tree(**{"a/b/r.yaml": RECIPE, "recipes/r.yaml": RECIPE, "pyproject.toml": table + more})
    recipe = loaded("a/b/r.yaml")
    assert (recipe.framework, recipe.processes, recipe.version) == ("open-r1", 4, (0, 17, 0))
    assert loaded().processes == 2


def test_rules_are_switched_off_by_the_settings_of_a_project(tree: Tree) -> None:
    """As by --ignore."""
    tree(
        **{
            "recipes/r.yaml": RECIPE + "num_generatons: 4\n",
            ".grposweep.toml": 'ignore = ["GV102"]\n',
        }
    )
    path = Path("recipes/r.yaml")
    (result,) = judge_text(
        path, path.read_text(encoding="utf-8"), Options(), select_rules()
    ).results
    assert codes(result, "error") == []


def test_a_version_newer_than_all_that_are_known_says_by_which_it_is_judged(tree: Tree) -> None:
    """Its own keys are not known."""
    tree(**{"recipes/r.yaml": RECIPE})
    newest = f"judged as {text(NEWEST['trl'])}, the newest release known"
    assert loaded(own_version="9.9").version_source.text == f"9.9, {newest}"
    assert loaded(own_version="1.16").version_source.text == "1.16"
    tree(**{".grposweep.toml": 'framework-version = "9.9"\n'})
    assert loaded().version_source.text == f'framework-version = "9.9", {newest}'


def test_the_version_of_verl_s_source_is_used_if_its_configuration_is_missing(tree: Tree) -> None:
    """A configuration behind a variable was judged by the newest release, which refuses words of
    older ones.
    """
    launch = (
        "python3 -m verl.trainer.main_ppo --config-path=$WHERE --config-name=own "
        "algorithm.adv_estimator=grpo \\\n"
    )
    tree(
        **{
            "verl/trainer/config/ppo_trainer.yaml": VERL,
            "verl/version/version": "0.6.0\n",
            "run.sh": launch
            + "    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.mode=sync\n",
        }
    )
    assert (loaded("run.sh").version, loaded("run.sh").version_source[:2]) == (
        (0, 6, 0),
        ("vendored", "verl/"),
    )
    assert codes(linted("run.sh"), "error") == []


def test_a_requirement_that_changes_is_read_again(tree: Tree) -> None:
    """A program that judges twice saw the first text forever."""
    folder = tree(**{"recipes/r.yaml": RECIPE, "requirements.txt": "trl==0.14.0\n"})
    assert loaded().version == (0, 14, 0)
    (folder / "requirements.txt").write_text("trl==0.18.0 # newer\n", encoding="utf-8")
    assert loaded().version == (0, 18, 0)


def test_a_repository_of_the_home_folder_pins_nothing_for_projects_in_it(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some users keep their settings there under git. Another project's requirements do not apply
    to this one.
    """
    home = tree(
        **{".git/HEAD": "", "other/requirements.txt": "trl==0.14.0\n", "mine/r.yaml": RECIPE}
    )
    monkeypatch.setenv("HOME", str(home))
    assert loaded("mine/r.yaml").version_source.kind == "keys"


@pytest.mark.parametrize(
    "text",
    [
        "trl==" + "9" * 5000,
        "trl" + " " * 100_000 + "x",
        "trl[" * 50_000,
        "git+" * 50_000,
        "\n" * 100_000 + "trl",
    ],
)
def test_hostile_requirements_are_read_in_time(text: str, tmp_path: Path) -> None:
    """They ended in a traceback, or did not end."""
    (tmp_path / "requirements.txt").write_text(text)
    assert all(pin.exact is not None for pin in find_pins(tmp_path / "requirements.txt", "trl"))


def test_a_hostile_lock_file_is_read_in_time(tmp_path: Path) -> None:
    """Each name was searched to the end of the file."""
    (tmp_path / "uv.lock").write_text('name = "trl"\n' * 20_000 + "a = 1\n" * 20_000)
    assert find_pins(tmp_path / "uv.lock", "trl") == ()


def test_a_configuration_below_the_working_directory_is_found_in_the_repository(tree: Tree) -> None:
    """``$(pwd)`` is its root: so scripts say that they are to be started there."""
    where = (
        'HERE="$(pwd)"\npython3 -m verl.trainer.main_ppo --config-path="$HERE/conf" '
        "--config-name=own "
    )
    tree(
        **{
            "verl/trainer/config/ppo_trainer.yaml": VERL,
            "conf/own.yaml": "data:\n  train_batch_size: 96\n",
            "examples/run.sh": where
            + "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8\n",
        }
    )
    recipe = loaded("examples/run.sh")
    assert recipe.config["data.train_batch_size"] == 96
    assert not recipe.may_have_more
