"""Keys and values against TRL's own parser, really installed: what it takes, what it refuses, and
where its keys end.
"""

import dataclasses
from pathlib import Path

import pytest
import yaml

from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json, read_own_yaml
from grporecipe.frameworks.trl import keys
from grporecipe.linting.linter import lint_recipe, select_rules
from grporecipe.model.setting import TRL
from grporecipe.reading.load import Options, load_recipe
from grporecipe.reading.yaml_text import parse_yaml

# imports torch, transformers and trl
pytestmark = pytest.mark.slow

BASE = {"output_dir": "out", "use_cpu": True, "bf16": False, "report_to": "none"}
RECIPES: dict[str, Json] = read_own_yaml(__file__, "trl_parser_recipes.yaml")


def is_taken(path: Path) -> bool:
    """Whether TRL's own parser, as `trl.scripts.grpo` builds it, takes a file as it is."""
    from trl.scripts.grpo import make_parser

    try:
        make_parser().parse_args_and_config(["--config", str(path)])
    except (ValueError, TypeError, SystemExit):
        # argparse exits
        return False
    return True


@pytest.mark.parametrize("name", RECIPES)
def test_trl_takes_a_recipe_exactly_if_the_family_finds_no_error(name: str, tmp_path: Path) -> None:
    """Family GV at the installed release; the batches fit, so that nothing else is refused."""
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**BASE, **RECIPES[name]}), encoding="utf-8")
    verdict = lint_recipe(load_recipe(path, Options("trl", TRL, processes=1)), select_rules(["GV"]))
    assert verdict.ok == is_taken(path), [finding.message for finding in verdict.diagnostics]


def test_the_table_holds_exactly_the_keys_of_the_installed_release() -> None:
    """Every init field of the four dataclasses, and every literal default."""
    from trl import DatasetMixtureConfig, GRPOConfig, ModelConfig
    from trl.scripts.grpo import GRPOScriptArguments

    classes = (GRPOScriptArguments, GRPOConfig, ModelConfig, DatasetMixtureConfig)
    fields = {
        field.name: field.default
        for cls in classes
        for field in dataclasses.fields(cls)
        if field.init
    }
    takes = keys.known(keys.releases()[-1])
    assert takes.keys() == fields.keys()
    literal = {
        name: value for name, value in fields.items() if type(value) in (int, float, bool, str)
    }
    assert {name: takes[name].default for name in literal if takes[name].default is not None} == {
        name: value for name, value in literal.items() if takes[name].default is not None
    }


def test_the_table_holds_what_can_be_imported_from_the_installed_release() -> None:
    """The names of the package itself, and its modules."""
    import trl

    folder = Path(trl.__path__[0])
    files = (path.relative_to(folder.parent).with_suffix("") for path in folder.rglob("*.py"))
    modules = {".".join(path.parts).removesuffix(".__init__") for path in files} - {"trl"}
    known = {name for name, changes in keys.table()["imports"].items() if len(changes[-1]) > 1}
    assert {name for name in known if name.startswith("trl.")} == modules
    assert {name for name in known if "." not in name and not name.startswith("_")} == {
        name for name in dir(trl) if not name.startswith("_") and f"trl.{name}" not in modules
    } | {
        name
        for name in known
        if f"trl.{name}" in modules and "." not in name and not name.startswith("_")
    }


def test_values_arrive_as_they_do_in_the_real_class(tmp_path: Path) -> None:
    """Numbers in strings, booleans in words, shares and lists: field by field."""
    from trl.scripts.grpo import make_parser

    path = tmp_path / "recipe.yaml"
    path.write_text(
        "output_dir: out\nuse_cpu: true\nbf16: false\nlearning_rate: 3e-06\nnum_generations: "
        "'4'\nbeta: 1e-3\n"
        "warmup_steps: 0.1\nscale_rewards: false\nmax_steps: 7\nuse_vllm: 'no'\nepsilon: 1\n"
    )
    real = make_parser().parse_args_and_config(["--config", str(path)])[1]
    ours = read_recipe(load_recipe(path, Options("trl", TRL, processes=1))).setting
    names = [
        "learning_rate",
        "num_generations",
        "beta",
        "warmup_steps",
        "scale_rewards",
        "max_steps",
        "use_vllm",
        "epsilon",
        "temperature",
        "max_completion_length",
        "loss_type",
        "per_device_train_batch_size",
        "vllm_mode",
    ]
    assert {name: getattr(ours, name) for name in names} == {
        name: getattr(real, name) for name in names
    }


def test_yaml_is_read_by_both_alike(tmp_path: Path) -> None:
    """TRL uses PyYAML's safe loader."""
    text = (
        "a: 3e-06\nb: no\nc: 010\nd: 1:30\ne: 2001-01-01\nf: 0x1F\ng: ~\nh: 'no'\ni: 1_0\nj: "
        ".5\nk: 5.\nl: +1\n"
    )
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    assert parse_yaml(text).config == yaml.safe_load(path.read_text(encoding="utf-8"))
