"""The keys that decide how a trial is measured. Tables read them, so this module imports nothing."""

# of generation
SAMPLING = (
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "generation_kwargs",
)


def is_of_evaluation(key: str) -> bool:
    """Return whether a key decides how a trial is measured, and not only how it is trained: prompts, rewards, sampling."""
    name = key.removeprefix("generation.")
    return key == "task" or key.startswith("task.") or (name != key and name in SAMPLING)
