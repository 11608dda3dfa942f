"""Turn a setting into the values of grposweep's groups, and compare experiments by what the algorithm sees.

The second does not depend on the hardware, so results of one cluster can be used on another.
"""

from dataclasses import asdict, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from grposweep import plan
from grposweep.config.identity import trainer_content
from grposweep.config.to_setting import FROM_RECIPE, KEYS
from grposweep.plan import micro_steps_per_generation
from grposweep.schema import Experiment
from grposweep.setting import Setting

# The groups whose values are a recipe's numbers; the others say what is trained, where, and how it is searched.
NUMBERS = ("batch", "optimizer", "kl", "loss", "schedule", "generation")


def own_values(s: Setting, every: bool = False) -> dict[str, Any]:
    """``lr``, ``seed`` and one mapping a group of NUMBERS; what the setting leaves open keeps its default here.

    A number of evaluations or checkpoints is 0: as often as the recipe says. ``every``: also what a program that keeps its
    recipe would say itself.
    """
    found: dict[str, Any] = {name: {} for name in NUMBERS}
    for name, path in KEYS.items():
        group, _, key = path.partition(".")
        value = getattr(s, name)
        if name in FROM_RECIPE and not every:
            continue
        if not key and value is not None:
            found[path] = value
        elif group in NUMBERS and (value not in (None, "") or _is_optional(path)):
            found[group][key] = value
    found["optimizer"]["learning_rate"] = "${lr}"
    found["kl"]["enabled"] = s.beta != 0
    found["batch"] |= _sizes(s)
    found["schedule"] |= _length(s) | {"evaluations": 0, "checkpoints": 0, "eval_at_start": False}
    return {name: found[name] for name in ("lr", "seed", *NUMBERS) if name in found}


def _sizes(s: Setting) -> dict[str, Any]:
    """Sizes as they are, micro-steps where they are not the accumulation; a rollout's size follows from them."""
    micro_steps = micro_steps_per_generation(s)
    return {
        "steps_per_generation": None if micro_steps == s.gradient_accumulation_steps else micro_steps,
        "prompts_per_step": None,
        "max_per_device_train_batch_size": max(s.per_device_train_batch_size, 64),
    }


def _length(s: Setting) -> dict[str, Any]:
    """Exactly one length: the steps override the epochs, as in TRL."""
    steps = s.max_steps if s.max_steps is not None and s.max_steps > 0 else None
    return {"max_steps": steps, "epochs": s.epochs if steps is None else None, "budget_completions": None}


def _is_optional(path: str) -> bool:
    """Whether a key of the schema may be null."""
    schema: Any = Experiment
    *sections, last = path.split(".")
    for section in sections:
        schema = get_type_hints(schema)[section]
        assert is_dataclass(schema)
    return type(None) in get_args({field.name: get_type_hints(schema)[field.name] for field in fields(schema)}[last])


# Sections that say what is searched, where it runs and how it is watched; sizes are told by what they come to.
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
