"""Options that are left to TRL where they are not set, and ``trainer.args``, as the real GRPOConfig
takes them.
"""

import dataclasses
from typing import Any

import pytest
from trl import GRPOConfig

from grporecipe.model import setting
from grposweep.config.fields import KEYS
from grposweep.train._models import Loaded
from grposweep.train._trl_config import build_config, grpo_arguments
from grposweep.train.attempt import load_attempt

from .conftest import MakeTrial

# torch and TRL take 8 s to import
pytestmark = pytest.mark.slow

MODEL = Loaded("model", None, None, {"dtype": "float32"})
OPTIONS = [KEYS[name] for name in setting.OPTIONS if name in KEYS]
DEFAULTS = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
# How an option is set, and what TRL gets.
VALUES: dict[str, tuple[str, Any]] = {
    "generation_kwargs": ("{min_new_tokens: 2}", {"min_new_tokens": 2}),
}


def test_what_is_not_set_is_left_to_trl(make_trial: MakeTrial) -> None:
    """None of the options is passed."""
    arguments = grpo_arguments(load_attempt(make_trial()), MODEL)
    assert arguments.keys().isdisjoint(key.rpartition(".")[2] for key in OPTIONS)


def test_the_real_config_takes_all_options_and_arguments_at_once(make_trial: MakeTrial) -> None:
    """What GRPOConfig has afterwards is what was set, and not TRL's default."""
    options = {key: VALUES.get(key.rpartition(".")[2], ("0.125", 0.125)) for key in OPTIONS}
    overrides = [f"{key}={written}" for key, (written, _) in options.items()]
    folder = make_trial(
        *overrides, "trainer.args.disable_dropout=true", "trainer.args.ddp_timeout=60"
    )
    config = build_config(load_attempt(folder), MODEL)
    assert {key: getattr(config, key.rpartition(".")[2]) for key in options} == {
        k: v for k, (_, v) in options.items()
    }
    assert (config.disable_dropout, config.ddp_timeout) == (True, 60)
    assert not [
        key for key, (_, wanted) in options.items() if DEFAULTS[key.rpartition(".")[2]] == wanted
    ]
