"""Words that only certain values make sense for; types alone cannot say so."""

from typing import Any

from grposweep.config.schema import AUTO, Experiment
from grposweep.errors import BadInput

WORDS: dict[str, tuple[str, ...]] = {
    "model.dtype": ("float32", "bfloat16"),
    "task.kind": ("arithmetic", "gsm8k", "jsonl"),
    "trainer.kind": ("trl", "fake"),
    "trainer.keep": ("last", "best", "all", "none"),
    "cluster.kind": ("local",),
    "search.sampler": ("auto", "grid", "tpe", "random", "gp"),
    "search.direction": ("maximize", "minimize"),
    "tracker.kind": ("none", "wandb"),
    "tracker.mode": ("offline", "online", "disabled"),
}
SIZES_OR_AUTO = (
    "batch.per_device_train_batch_size",
    "batch.gradient_accumulation_steps",
    "batch.per_device_eval_batch_size",
    "cluster.gpus",
)
AT_LEAST_ONE = (
    "cluster.threads",
    "search.parallel",
    "search.trials",
    "search.last",
    "batch.max_per_device_train_batch_size",
)


def check_words(experiment: Experiment) -> None:
    """Raise BadInput for a word that nothing understands, or a count below one where one is needed."""
    for key, words in WORDS.items():
        value = _get(experiment, key)
        if value not in words:
            raise BadInput(f"{key}={value}: nothing understands that. Set one of {', '.join(words)}.")
    for key in SIZES_OR_AUTO:
        value = _get(experiment, key)
        if isinstance(value, str) and value != AUTO:
            raise BadInput(f"{key}={value}: this is a size, so it takes a whole number or auto. Set {key}=auto.")
    for key in AT_LEAST_ONE:
        value = _get(experiment, key)
        if value is not None and value < 1:
            raise BadInput(f"{key}={value}: it counts something of which at least one is needed. Set {key}=1 or more.")
    if experiment.task.kind == "jsonl" and experiment.task.path is None:
        raise BadInput("task=jsonl: task.path is not set, so there are no prompts. Set task.path=prompts.jsonl.")
    if experiment.search.last > max(experiment.schedule.evaluations, 1):
        raise BadInput(
            f"search.last={experiment.search.last}: the objective averages over that many evaluations, and there are "
            f"{experiment.schedule.evaluations}. Set schedule.evaluations={experiment.search.last}, or a smaller search.last."
        )


def _get(experiment: Any, key: str) -> Any:
    for part in key.split("."):
        experiment = getattr(experiment, part)
    return experiment
