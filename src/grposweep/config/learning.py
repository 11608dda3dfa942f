"""What the algorithm sees of an experiment, whatever hardware realised it: so results of one cluster serve on another."""

from dataclasses import asdict
from typing import Any

from grposweep import plan
from grposweep.config.read import KEYS, trainer_content
from grposweep.config.schema import Experiment
from grposweep.setting import Setting

# Sections that say what is searched, where it runs and how it is watched; sizes are told by what they come to.
_ELSEWHERE = ("name", "force", "outputs", "tracker", "search", "rules", "cluster", "batch", "trainer", "seed")
_LENGTH = ("schedule", "model")  # with another, results are of another kind, though the point is the same

# The setting's fields that are neither hardware's nor lengths: two settings that differ there are two points for certain.
_TOLD = ("cluster.", "batch.", "schedule.", "task.", "model.", "generation.use_vllm", "generation.vllm_", "seed")
_NUMBERS = tuple(name for name, key in KEYS.items() if not key.startswith(_TOLD))


def sizes(s: Setting) -> dict[str, Any]:
    """The batch as the algorithm sees it: generations a prompt, prompts a step and a rollout, uses of each."""
    completions = plan.completions_per_step(s)
    return {
        "num_generations": s.num_generations,
        "num_iterations": s.num_iterations,
        "prompts_per_step": None if completions is None else completions / s.num_generations,
        "prompts_per_rollout": plan.prompts_per_rollout(s),
    }


def numbers(s: Setting) -> dict[str, Any]:
    """What of the learning a setting alone tells; cheap, for looking through many points."""
    return sizes(s) | {name: getattr(s, name) for name in _NUMBERS}


def learning(experiment: Experiment, setting: Setting) -> dict[str, Any]:
    """Everything that changes what is learnt, but for chance: seed, processes, per-device sizes and engines are left out."""
    content = {name: part for name, part in asdict(experiment).items() if name not in _ELSEWHERE}
    content["generation"] = {n: v for n, v in content["generation"].items() if n != "use_vllm" and "vllm_" not in n}
    content["model"] = {name: value for name, value in content["model"].items() if name != "gradient_checkpointing"}
    evaluated = {"num_generations_eval": experiment.batch.num_generations_eval}
    return {**content, "batch": {**sizes(setting), **evaluated}, "trainer": trainer_content(experiment.trainer)}


def is_same_point(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two learnings differ at most in the model and in how long it trains."""
    return all(one[name] == other[name] for name in one if name not in _LENGTH)
