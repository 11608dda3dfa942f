"""Identities: hashes that name an experiment, a sweep and what was prepared, and experiments as the algorithm sees them.

Decision 8 of the design: an identity holds everything that can change the numbers, and nothing else. Released hashes never
change, because they name folders on disk; ``tests/config/test_identity.py`` freezes some. What the algorithm sees does not
depend on the hardware, so results of one cluster can be used on another.
"""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grposweep import planning
from grposweep.config.precision import IMPLIED, read_precision
from grposweep.config.to_setting import KEYS
from grposweep.files import file_digest
from grposweep.schema import AUTO, AUTO_SIZES, Experiment, Trainer, drop_newer, is_external
from grposweep.setting import Setting
from grposweep.storage.inputs import find_inputs


def experiment_id(experiment: Experiment, setting: Setting) -> str:
    """Return the hash of everything that can change a trial's numbers.

    Batch sizes enter as realised, so ``auto`` and the same sizes written out are one experiment.
    """
    content = _content(experiment)
    for name in ("name", "force", "verbose", "outputs", "tracker", "search", "rules"):
        del content[name]
    content["cluster"] = {"processes": experiment.cluster.processes, "threads": experiment.cluster.threads}
    content["trainer"] = trainer_content(experiment.trainer)
    _drop_what_changes_nothing(content)
    for name in AUTO_SIZES:
        content["batch"][name] = getattr(setting, name)
    for name in ("prompts_per_step", "max_per_device_train_batch_size"):
        del content["batch"][name]
    return _digest(content)


def sweep_identity(space: list[dict[str, Any]], base: Experiment) -> str:
    """Return the hash of a sweep's question: its space, base configuration, objective and processes per trial.

    Where trials run, how many run at once, how many there are and how they are logged are no part of it.
    """
    content = _content(base)
    for name in ("name", "force", "verbose", "outputs", "tracker", "rules"):
        del content[name]
    search = base.search
    content["search"] = {"metric": search.metric, "direction": search.direction, "last": search.last}
    if search.at != "last":
        content["search"]["at"] = search.at
    if search.further:
        content["search"]["further"] = search.further
    if search.sampler == "one_factor":  # the same parameters span other points than a grid's
        content["search"]["sampler"] = search.sampler
    content["cluster"] = {"threads": base.cluster.threads}
    if base.batch.per_device_train_batch_size != AUTO:
        content["cluster"]["processes"] = base.cluster.processes
    content["trainer"] = trainer_content(base.trainer)
    _drop_what_changes_nothing(content)
    return _digest({"space": space, "base": content})


def prepared_key(experiment: Experiment) -> str:
    """Return the key of ``prepared.json`` for this model and task."""
    content = _content(experiment)
    content["task"].pop("eval_generations", None)  # which prompts there are does not depend on it
    return _digest({"model": content["model"], "task": content["task"]})[:12]


SAMPLING = (
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "generation_kwargs",
)
_NO_SAMPLING = ("lora", "gradient_checkpointing", "shape")  # of the model: adapters change nothing before training


def screen_key(experiment: Experiment) -> str:
    """Return the key of a screen: model, prompts, rewards and sampling. What generates, and how it is trained, is no part.

    Files of prompts, rewards and a local model enter by content.
    """
    content = _content(experiment)
    task = {n: v for n, v in content["task"].items() if n not in ("eval_generations", "keep_between", "screen")}
    model = {name: value for name, value in content["model"].items() if name not in _NO_SAMPLING}
    files = find_inputs([replace(experiment, trainer=Trainer())]).digests
    task.pop("max_completion_length")  # generation has it
    sampling = {name: content["generation"].get(name) for name in SAMPLING}
    return _digest({"model": model, "task": task, "sampling": sampling, "files": sorted(files.values())})[:12]


def _content(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as it is hashed: newer keys only if they are set, and ``auto`` types as what they come to.

    The mixed precision is left out if the type of the weights implies it.
    """
    content, found = asdict(experiment), read_precision(experiment.model)
    drop_newer(content)
    content["model"] |= {"dtype": found.weights, "mixed_precision": found.mixed}
    if found.mixed == IMPLIED.get(found.weights):
        del content["model"]["mixed_precision"]
    return content


def trainer_content(trainer: Trainer) -> dict[str, Any]:
    """Return what of the trainer can change a trial's numbers; files that an external trainer reads enter by content."""
    content: dict[str, Any] = {"kind": trainer.kind, "fake": asdict(trainer.fake)}
    content |= {name: getattr(trainer, name) for name in ("sharding", "compile")}
    content |= {"args": trainer.args} if trainer.args else {}
    content |= {"fork": trainer.fork} if trainer.fork else {}
    if not is_external(trainer.kind):
        return content | sharding_content(trainer)
    script = [Path(trainer.workdir or ".") / trainer.script] if trainer.script else []
    files = [file_digest(path) for path in (*script, *([Path(trainer.recipe)] if trainer.recipe else []))]
    named = [file_digest(Path(word)) for word in trainer.launch_arguments if Path(word).is_file()]
    words = {
        name: getattr(trainer, name) for name in ("arguments", "environment", "takes", "launcher", "launch_arguments")
    }
    return {**content, **words, "files": files, "named": named}


def sharding_content(trainer: Trainer) -> dict[str, Any]:
    """Return the options of sharding that are set; a file enters by content."""
    given: dict[str, Any] = {} if trainer.offload == "none" else {"offload": trainer.offload}
    if trainer.fsdp_config:
        given["fsdp_config"] = trainer.fsdp_config
    if trainer.deepspeed_config is not None:
        given["deepspeed_config"] = file_digest(Path(trainer.deepspeed_config))
    return given


def _drop_what_changes_nothing(content: dict[str, Any]) -> None:
    """Remove when checkpoints are written, where a vLLM server is and how long it may take to start: they change no number."""
    _drop_no_matter(content)
    for name in ("vllm_gpus", "vllm_server_base_url", "vllm_server_timeout"):
        del content["generation"][name]


def _drop_no_matter(content: dict[str, Any]) -> None:
    """Remove when checkpoints are written, and what the batch has as num_generations_eval."""
    content["schedule"].pop("checkpoint_minutes", None)
    content["task"].pop("eval_generations", None)


def _digest(content: Any) -> str:
    """Return a hash that is the same on every machine."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


# Sections that say what is searched, where it runs and how it is watched; sizes are told by what they come to.
_ELSEWHERE = (
    "name", "force", "verbose", "outputs", "tracker", "search", "rules", "cluster", "batch", "trainer", "seed",
)  # fmt: skip
_LENGTH = ("schedule", "model")  # with another, results are of another kind, though the point is the same

# The setting's fields that are neither hardware's nor lengths: two settings that differ there are two points for certain.
_TOLD = ("cluster.", "batch.", "schedule.", "task.", "model.", "generation.use_vllm", "generation.vllm_", "seed")
_NUMBERS = tuple(name for name, key in KEYS.items() if not key.startswith(_TOLD))


def sizes(s: Setting) -> dict[str, Any]:
    """The batch as the algorithm sees it: generations a prompt, prompts a step and a rollout, uses of each."""
    completions = planning.completions_per_step(s)
    return {
        "num_generations": s.num_generations,
        "num_iterations": s.num_iterations,
        "prompts_per_step": None if completions is None else completions / s.num_generations,
        "prompts_per_rollout": planning.prompts_per_rollout(s),
    }


def numbers(s: Setting) -> dict[str, Any]:
    """What of the learning a setting alone tells; cheap, for looking through many points."""
    return sizes(s) | {name: getattr(s, name) for name in _NUMBERS}


def learning(experiment: Experiment, setting: Setting) -> dict[str, Any]:
    """Everything that changes what is learnt, but for chance: seed, processes, per-device sizes and engines are left out."""
    content = {name: part for name, part in _content(experiment).items() if name not in _ELSEWHERE}
    content["generation"] = {n: v for n, v in content["generation"].items() if n != "use_vllm" and "vllm_" not in n}
    content["model"] = {name: value for name, value in content["model"].items() if name != "gradient_checkpointing"}
    _drop_no_matter(content)
    evaluated = {"num_generations_eval": experiment.batch.num_generations_eval}
    return {**content, "batch": {**sizes(setting), **evaluated}, "trainer": trainer_content(experiment.trainer)}


def is_same_point(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two learnings differ at most in the model and in how long it trains."""
    return all(one[name] == other[name] for name in one if name not in _LENGTH)
