"""Hashes that identify an experiment, a sweep and a preparation, and experiments as the algorithm
sees them.

An identity holds everything that can change the numbers, and nothing else. It names folders on
disk. What the algorithm sees does not depend on the hardware, so results of one cluster can be used
on another.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from grporecipe.files import Config, Json, file_digest, without
from grporecipe.model import planning
from grporecipe.model.setting import Setting
from grposweep.config.fields import KEYS
from grposweep.config.precision import read_precision
from grposweep.config.to_setting import read_setting
from grposweep.schema import AUTO, AUTO_SIZES, Experiment, Trainer, keys_with
from grposweep.schema.registries import is_external

# The keys of ``search`` that make it another question.
OBJECTIVE = ("metric", "direction", "last", "at")


def sweep_identity(space: list[Json], base: Experiment) -> str:
    """Return the hash of a sweep's question: its space, base configuration, objective and processes
    per trial.

    It does not include where trials run, how many there are or run at once, and how they are
    logged.
    """
    content = _content(base)
    for name in ("name", "force", "verbose", "outputs", "tracker", "rules"):
        del content[name]
    search = base.search
    content["search"] = {name: getattr(search, name) for name in OBJECTIVE}
    # the same parameters span other points than in a grid
    if search.sampler == "one_factor":
        content["search"]["sampler"] = search.sampler
    content["cluster"] = {"threads": base.cluster.threads}
    if base.batch.per_device_train_batch_size != AUTO:
        content["cluster"]["processes"] = base.cluster.processes
    content["trainer"] = trainer_content(base.trainer)
    _drop_neutral(content)
    return _digest({"space": space, "base": content})


def prepared_key(experiment: Experiment) -> str:
    """Return the key of ``prepared.json`` for this model and task."""
    content = _content(experiment)
    # it does not affect the choice of prompts
    content["task"].pop("eval_generations", None)
    return _digest({"model": content["model"], "task": content["task"]})[:12]


def _content(experiment: Experiment) -> Json:
    """Return the content to hash, with ``auto`` types resolved."""
    content = asdict(experiment)
    precision = read_precision(experiment.model)
    content["model"] |= {"dtype": precision.weights, "mixed_precision": precision.mixed}
    return content


def trainer_content(trainer: Trainer) -> Json:
    """Return the keys of the trainer that can change a trial's numbers. Files of an external
    trainer enter by content.
    """
    content: Json = {
        name: getattr(trainer, name) for name in ("kind", "sharding", "compile", "args")
    }
    if trainer.fork:
        content["fork"] = trainer.fork
    if not is_external(trainer):
        content |= {"offload": trainer.offload, "fsdp_config": trainer.fsdp_config}
        if trainer.deepspeed_config is not None:
            content["deepspeed_config"] = file_digest(Path(trainer.deepspeed_config))
        return content
    names = ("environment", "command", "metrics", "step_key")
    return {**content, **{name: getattr(trainer, name) for name in names}}


def _drop_neutral(content: Json) -> None:
    """Remove keys that change no number, and what the batch has as num_generations_eval."""
    for path in (*keys_with("neutral"), "task.eval_generations"):
        section, _, name = path.rpartition(".")
        content.get(section, {}).pop(name, None)


def _digest(content: Any) -> str:
    """Return a hash that is the same on every machine."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


# Sections on search, place and tracking. Sizes enter by the numbers that they result in.
_ELSEWHERE = (
    "name",
    "force",
    "verbose",
    "outputs",
    "tracker",
    "search",
    "rules",
    "cluster",
    "batch",
    "trainer",
    "seed",
)

# Fields of the setting for the algorithm, without hardware and lengths: if they differ, two
# settings are different points.
_TOLD = (
    "cluster.",
    "batch.",
    "task.",
    "model.",
    "generation.use_vllm",
    "generation.vllm_",
    "seed",
    # kl.beta says it
    "kl.enabled",
)
_NUMBERS = tuple(
    name
    for name, key in KEYS.items()
    if not key.startswith(_TOLD) and key not in keys_with("length")
)


def sizes(s: Setting) -> Json:
    """Return the batch as the algorithm sees it: generations per prompt, prompts per step and
    rollout, uses of each.
    """
    completions = planning.completions_per_step(s)
    prompts = None if completions is None else completions / s.num_generations
    return {
        "num_generations": s.num_generations,
        "num_iterations": s.num_iterations,
        "prompts_per_step": prompts,
        "prompts_per_rollout": planning.prompts_per_rollout(s),
    }


def numbers(s: Setting) -> Json:
    """Return the part of an identity that a setting alone determines. It is cheap, so many points
    can be compared.
    """
    return sizes(s) | {name: getattr(s, name) for name in _NUMBERS}


@dataclass(frozen=True)
class ResolvedConfig:
    """An experiment and its setting, made once for everything that needs both."""

    experiment: Experiment
    setting: Setting

    @classmethod
    def of(cls, experiment: Experiment, prepared: Config | None = None) -> Self:
        """Return an experiment with its setting. ``prepared``: the entries of prepared.json."""
        counted = prepared.get(prepared_key(experiment)) if prepared else None
        return cls(experiment, read_setting(experiment, counted))

    @cached_property
    def identity(self) -> str:
        """The hash of everything that can change a trial's numbers.

        Batch sizes enter with ``auto`` solved, so ``auto`` and the same sizes written out are one
        experiment.
        """
        content = _content(self.experiment)
        for name in ("name", "force", "verbose", "outputs", "tracker", "search", "rules"):
            del content[name]
        content["cluster"] = {
            "processes": self.experiment.cluster.processes,
            "threads": self.experiment.cluster.threads,
        }
        content["trainer"] = trainer_content(self.experiment.trainer)
        _drop_neutral(content)
        for name in AUTO_SIZES:
            content["batch"][name] = getattr(self.setting, name)
        for name in ("prompts_per_step", "max_per_device_train_batch_size"):
            del content["batch"][name]
        return _digest(content)

    def learning(self) -> Json:
        """Return everything that affects learning except chance.

        Without seed, processes, per-device sizes and engines.
        """
        content = without(_content(self.experiment), _ELSEWHERE)
        content["generation"] = {
            n: v for n, v in content["generation"].items() if n != "use_vllm" and "vllm_" not in n
        }
        del content["model"]["gradient_checkpointing"]
        _drop_neutral(content)
        evaluated = self.experiment.batch.num_generations_eval
        batch = {**sizes(self.setting), "num_generations_eval": evaluated}
        trainer = trainer_content(self.experiment.trainer)
        return {**content, "batch": batch, "trainer": trainer}


def is_same_point(one: Json, other: Json) -> bool:
    """Return whether two results of `learning` differ at most in the model, the task and the length
    of training.
    """
    return _without_length(one) == _without_length(other)


def _without_length(content: Json) -> Json:
    """Return `learning` without what makes results another kind although the point is the same."""
    schedule = {
        name: value
        for name, value in content["schedule"].items()
        if f"schedule.{name}" not in keys_with("length")
    }
    return {**content, "schedule": schedule, "model": None, "task": None}
