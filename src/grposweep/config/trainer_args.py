"""``trainer.args``: keys of TRL's GRPOConfig that have no key of ours, checked against TRL's own table, and as a setting.

Source: trl 1.16 trainer/grpo_config.py with the transformers of its time (frameworks/trl/keys.json).
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from grposweep.config.compose import known_keys
from grposweep.errors import UserError
from grposweep.frameworks import FRAMEWORKS
from grposweep.frameworks.base import closest_keys, text
from grposweep.frameworks.parsing.yaml_text import convert
from grposweep.frameworks.reading import read_rows, values_of
from grposweep.frameworks.trl.keys import HABITS, known, table
from grposweep.recipe import KeySpec, Recipe
from grposweep.rules.helpers import show
from grposweep.schema import ALIASES, Trainer, is_external
from grposweep.setting import TRL

ELSEWHERE = ("search", "cluster", "tracker", "rules")  # sections whose keys are no trainer's
# Keys whose home here has another name, or follows from several keys.
RENAMED = {
    "bf16": "model.mixed_precision",
    "fp16": "model.mixed_precision",
    "data_seed": "seed",
    "ddp_backend": "cluster.processes",
    "ddp_find_unused_parameters": "cluster.processes",
    "deepspeed": "trainer.sharding",
    "disable_tqdm": "verbose",
    "do_eval": "schedule.evaluations",
    "eval_on_start": "schedule.eval_at_start",
    "eval_steps": "schedule.evaluations",
    "eval_strategy": "schedule.evaluations",
    "fsdp": "trainer.sharding",
    "fsdp_config": "trainer.fsdp_config",
    "generation_batch_size": "batch.steps_per_generation",
    "logging_steps": "tracker.kind",
    "model_init_kwargs": "model.dtype",
    "num_completions_to_print": "trainer.log_completions",
    "num_train_epochs": "schedule.epochs",
    "output_dir": "outputs",
    "report_to": "tracker.kind",
    "resume_from_checkpoint": "schedule.checkpoints",
    "save_steps": "schedule.checkpoints",
    "save_strategy": "schedule.checkpoints",
    "save_total_limit": "trainer.keep",
    "torch_compile": "trainer.compile",
    "use_cpu": "cluster.gpus",
    "vllm_importance_sampling_cap": "generation.vllm_importance_sampling_clip_max",
    "vllm_server_host": "generation.vllm_server_base_url",
    "vllm_server_port": "generation.vllm_server_base_url",
}
# Switches that cannot be on in a trial, and why. Sources: transformers 5.23 training_args.py, trl 1.16 grpo_trainer.py.
UNFIT = {
    "ignore_data_skip": "a trial that is resumed would train on other prompts than one that was never stopped",
    "load_best_model_at_end": "grposweep places checkpoints and evaluations, and transformers refuses that; see trainer.keep",
    "remove_unused_columns": "rewards would not get the columns that they read, such as the answer",
    "save_only_model": "no trial could be resumed from a checkpoint without the optimizer's states",
}
WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list"}


@cache
def taken() -> Mapping[str, KeySpec]:
    """Return the keys of GRPOConfig in the release that our trainer runs."""
    places = {name: entry["in"] for name, entry in table()["keys"].items()}
    return {name: key for name, key in known(TRL).items() if places[name] == "config" or name == "trust_remote_code"}


@cache
def homes() -> Mapping[str, str]:
    """Return the key of ours that sets a key of GRPOConfig."""
    own = (key for key in known_keys() if not key.startswith((*ELSEWHERE, "trainer.args", "trainer.fake")))
    same = {key.rpartition(".")[2]: ALIASES.get(key, key) for key in own}
    return {name: key for name, key in {**same, **RENAMED}.items() if name in taken()}


def check_args(trainer: Trainer) -> None:
    """Raise UserError for keys that GRPOConfig does not have, that have a home of their own, or whose value has a wrong type."""
    for name, value in trainer.args.items():
        what = f"trainer.args.{name}={show(value)}"
        if is_external(trainer.kind):
            raise UserError(
                f"{what}: these are keys of TRL's GRPOConfig, and trainer={trainer.kind} reads its own recipe. Set it there."
            )
        if name in homes():
            raise UserError(f"{what}: grposweep sets this from a key of its own. Set {homes()[name]} instead.")
        if name not in taken():
            near = [HABITS[name]] if name in HABITS else closest_keys(name, taken())
            advice = f"Did you mean {' or '.join(map(_place, near))}?" if near else "Remove it."
            raise UserError(f"{what}: GRPOConfig of TRL {text(TRL)} has no such key. {advice}")
        if wanted := _mistyped(value, taken()[name].type):
            raise UserError(f"{what}: the key takes {wanted}. Set one.")
        if value and name in UNFIT:
            raise UserError(f"{what}: {UNFIT[name]}. Leave it out.")


def _place(name: str) -> str:
    return homes().get(name, f"trainer.args.{name}")


def _mistyped(value: Any, kind: str) -> str:
    """Return what a key of this type takes, if a value is something else."""
    base = kind.rstrip("?")
    if value is None:
        return "" if kind.endswith("?") or base in ("any", "list") else WANTED[base]
    if base == "str":
        return "" if isinstance(value, str) else WANTED[base]
    if base == "list":
        return "" if isinstance(value, list | str) else WANTED[base]
    return WANTED[base] if base in WANTED and convert(value, kind).trouble else ""


def read_args(trainer: Trainer) -> dict[str, Any]:
    """Return the fields of a setting that ``trainer.args`` sets, as a recipe of TRL with these keys would."""
    if not trainer.args:
        return {}
    framework = FRAMEWORKS["trl"]
    return read_rows(framework, values_of(Recipe("trl", TRL, dict(trainer.args))), framework.keys_at(TRL))


@cache
def arg_fields() -> Mapping[str, str]:
    """Return the fields of a setting that ``trainer.args`` may set, with the key of each."""
    rows = FRAMEWORKS["trl"].fields
    keys = {row.name: row.key.partition(".")[0] for row in rows if row.name}
    return {name: f"trainer.args.{key}" for name, key in keys.items() if key in taken() and key not in homes()}
