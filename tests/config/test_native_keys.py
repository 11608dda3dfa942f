"""``trainer.args`` and the options that are left to TRL: checked, judged, part of the identity when
they are set.
"""

import ast
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grporecipe.files import Json
from grporecipe.frameworks.trl.keys import known, table
from grporecipe.model import setting
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import TRL
from grporecipe.rules.check import check
from grposweep.config.compose import Session
from grposweep.config.fields import ARGS, KEYS
from grposweep.config.identity import ResolvedConfig, sweep_identity
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.config.trl_args import homes, taken
from grposweep.process import PROJECT
from grposweep.schema import Experiment, keys_with, trl_arguments
from grposweep.search.parse import parse_space
from grposweep.search.validity import Validator, check_space
from support import check_experiment
from verdicts import codes_of

OPTIONS = [KEYS[name] for name in setting.OPTIONS if name in KEYS]


def base(session: Session, *overrides: str) -> Experiment:
    """A checked experiment with these overrides."""
    experiment = Points(session.compose, list(overrides)).base
    check_experiment(experiment)
    return experiment


def identity(experiment: Experiment) -> str:
    """The experiment's identity."""
    return ResolvedConfig.of(experiment).identity


@cache
def grpo_config() -> Json:
    """Every field of the installed GRPOConfig with its default, read without importing TRL; ``...``
    for what is no constant.
    """
    root = Path(next(iter(find_spec("trl").submodule_search_locations)))  # type: ignore[union-attr,arg-type]  # it is installed
    files = {
        "GRPOConfig": root / "trainer/grpo_config.py",
        "_BaseConfig": root / "trainer/base_config.py",
        "TrainingArguments": root.parent / "transformers/training_args.py",
    }
    found: Json = {}
    for name, path in files.items():
        classes = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
        ]
        for row in next(node for node in classes if node.name == name).body:
            if isinstance(row, ast.AnnAssign) and isinstance(row.target, ast.Name):
                found.setdefault(row.target.id, _default(row.value))
    return found


def _default(value: ast.expr | None) -> Any:
    if isinstance(value, ast.Call):
        value = next((word.value for word in value.keywords if word.arg == "default"), None)
    return value.value if isinstance(value, ast.Constant) else ...


@pytest.mark.locked
def test_the_table_has_every_field_of_the_real_config() -> None:
    """Neither a key too many nor one too few."""
    assert taken().keys() == grpo_config().keys()


@pytest.mark.parametrize("key", OPTIONS)
def test_every_option_is_a_field_of_the_real_config_with_trls_default(key: str) -> None:
    """What null means here is what the installed TRL does."""
    name = key.rpartition(".")[2]
    assert grpo_config()[name] == known(TRL)[name].default


def test_everything_that_we_pass_to_trl_has_a_home() -> None:
    """So ``trainer.args`` never contradicts another key; read from the source of the mapping, which
    imports torch.
    """
    tree = ast.parse((PROJECT / "src/grposweep/train/_trl_config.py").read_text())
    copied = set(trl_arguments().values())
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    computed = {key.value for node in dicts for key in node.keys if isinstance(key, ast.Constant)}
    passed = {name for name in copied | computed if name in taken()}
    assert len(passed) > 40
    assert passed <= homes().keys()
    assert {name for names in keys_with("native").values() for name in names.split()} <= table()[
        "keys"
    ].keys()


def test_identities_change_only_with_what_is_set(session: Session) -> None:
    """Null is what a key is without an override."""
    plain = base(session)
    for override in (
        "trainer.args.disable_dropout=true",
        "loss.epsilon_high=0.3",
        "generation.min_p=0.1",
        "generation.generation_kwargs.top_k=3",
    ):
        other = base(session, override)
        assert identity(other) != identity(plain)
        assert sweep_identity([], other) != sweep_identity([], plain)
    assert identity(base(session, "loss.epsilon_high=null")) == identity(plain)


def test_arguments_are_judged_by_the_rules_of_their_keys(session: Session) -> None:
    """With one that a rule refuses, and one that corrects it."""
    vllm = ["generation=vllm_colocate", "loss=vespo"]
    assert codes_of(check(read_setting(base(session, *vllm)))) >= {"GL107"}
    corrected = [*vllm, "trainer.args.vllm_importance_sampling_mode=token_truncate"]
    assert not codes_of(check(read_setting(base(session, *corrected)))) & {"GL107"}


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("trainer.args.delta=0.5", "GL202"),
        ("trainer.args.auto_find_batch_size=true", "GB108"),
        ("trainer.args.multi_objective_aggregation=mean", "GL105"),
    ],
)
def test_an_argument_is_judged_under_the_name_that_was_set(
    session: Session, override: str, code: str
) -> None:
    """As in a recipe."""
    (found,) = check(read_setting(base(session, override)))
    assert (found.code, found.broken.what) == (code, override)


def test_no_upper_bound_is_null(session: Session) -> None:
    """As in TRL; without an override the bound is TRL's."""
    bound = "vllm_importance_sampling_clip_max"
    assert (
        read_setting(base(session, f"trainer.args.{bound}=null")).vllm_importance_sampling_clip_max
        is None
    )
    assert read_setting(base(session)).vllm_importance_sampling_clip_max == 3.0


def test_the_fields_that_arguments_set_are_those_of_trls_table() -> None:
    """A field that gets a key of its own leaves the list."""
    keys = {row.name: row.key.partition(".")[0] for row in FRAMEWORKS["trl"].fields if row.name}
    unnamed = {name: key for name, key in keys.items() if key in taken() and key not in homes()}
    assert {name: f"trainer.args.{key}" for name, key in unnamed.items()} == ARGS


def test_arguments_can_be_swept(session: Session) -> None:
    """A value that TRL does not take stops the sweep; a point's setting has the argument."""
    points = Points(session.compose, [])
    space, _ = parse_space(["trainer.args.use_liger_kernel=true,false"], {})
    check_space(space, points)
    validator = Validator(space, points)
    settings = [
        validator.fields.setting({"trainer.args.use_liger_kernel": label})
        for label in (True, False)
    ]
    assert [setting.use_liger_kernel for setting in settings] == [True, False]
    assert (
        json.dumps(points.experiment({"trainer.args.tf32": True}).trainer.args) == '{"tf32": true}'
    )
