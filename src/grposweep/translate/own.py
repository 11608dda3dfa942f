"""A setting as configuration of ours: an option of each group that ``run.py`` can sweep, and a study that chooses them."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from grposweep.config.compose import PROJECT
from grposweep.config.own import NUMBERS, own_values
from grposweep.config.read import KEYS, SOURCES
from grposweep.frameworks import trl
from grposweep.frameworks.completions import in_completions
from grposweep.frameworks.keys import span
from grposweep.frameworks.trl_losses import NAMES, fitted
from grposweep.plan import save_every, total_steps
from grposweep.setting import TRL, Setting

NAME = "translated"  # of the options, and of the study
WHAT = {
    "batch": "Generations and sizes, in completions.",
    "optimizer": "AdamW and the learning rate's way.",
    "kl": "The KL penalty.",
    "loss": "The loss and its clips.",
    "schedule": "How long, and how often it evaluates and saves.",
    "generation": "How completions are sampled.",
}
COMMAND = ("python", str(PROJECT / "src" / "run.py"), "--config-dir", ".", f"sweeps={NAME}")
# Said by other keys of ours, or by nobody because we place evaluations and checkpoints ourselves.
PLACED = frozenset(
    ["generation_batch_size", "do_eval", "eval_strategy", "eval_steps", "save_steps", "save_strategy", "launcher",
     "reward_weights", "rewards", "load_best_model_at_end", "minimum_learning_rate_ratio"]
)  # fmt: skip


def write_own(s: Setting) -> tuple[dict[str, str], tuple[str, ...]]:
    """Files for a folder that ``--config-dir`` names, and what they cannot say."""
    sized, undivided = in_completions(s)
    fits, lost = fitted(sized, "trl", TRL)
    values = own_values(fits, every=True)
    values["schedule"] |= _frequencies(fits)
    files = {f"{group}/{NAME}.yaml": f"# {WHAT[group]}\n{_yaml(values[group])}" for group in NUMBERS}
    study = {"defaults": [{f"override /{group}": NAME} for group in NUMBERS], **_study(fits, values)}
    head = f"# @package _global_\n# {shlex.join(COMMAND)}\n#\n# Written by grposweep translate; add -m and dials to sweep it.\n"
    return {f"sweeps/{NAME}.yaml": head + _yaml(study), **files}, (*undivided, *lost, *_unsaid(fits), *_open(fits))


def _study(s: Setting, values: Mapping[str, Any]) -> dict[str, Any]:
    """What is no group's: the learning rate, the seed, the model's name, the processes."""
    found = {name: values[name] for name in ("lr", "seed") if name in values}
    model: dict[str, Any] = {} if s.model_name_or_path is None else {"path": s.model_name_or_path}
    if s.lora:
        model["lora"] = {"enabled": True}
    found |= {"model": model} if model else {}
    return found | ({"cluster": {"processes": s.processes}} if s.processes else {})


def _frequencies(s: Setting) -> dict[str, Any]:
    """Steps between evaluations and checkpoints as numbers of them, where the run's length is known."""
    total, found = total_steps(s), {}
    if s.evaluates and s.eval_steps and total:
        found["evaluations"] = max(round(1 / s.eval_steps if s.eval_steps < 1 else total / s.eval_steps), 1)
    every = save_every(s)
    if every and total and s.save_strategy in (None, "steps"):
        found["checkpoints"] = max(round(total / every), 1)
    return found


def _unsaid(s: Setting) -> Iterator[str]:
    """Fields that are set, matter, and have no key of ours."""
    default = {**vars(Setting()), **trl.defaults("trl", TRL)}
    for name in sorted(trl.SAME - KEYS.keys() - SOURCES.keys() - PLACED - NAMES):
        value = getattr(s, name)
        if (
            span(name) is not None
            and value not in (None, default[name])
            and not (name.startswith("vllm_") and not s.use_vllm)
        ):
            yield f"{name}={value}: grposweep's own trainer has no key for it"


def _open(s: Setting) -> Iterator[str]:
    """What nobody can translate, because it is a program's and not a number."""
    yield "prompts and rewards are named by no recipe in a way that another program understands: set task=..."
    if s.model_name_or_path is None:
        yield "the recipe names no model: set model=... or model.path=..."
    if s.eval_steps and total_steps(s) is None:
        yield "evaluations in steps of a run whose length is unknown: set --dataset-size, or schedule.evaluations"


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
