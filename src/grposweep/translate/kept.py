"""Whether two settings, in whatever words, train alike: the plan's numbers, and those that no framework says otherwise."""

from collections.abc import Iterator
from typing import Any

from grposweep import plan
from grposweep.setting import Setting

NUMBERS = {
    "completions a rollout": plan.completions_per_rollout,
    "prompts a rollout": plan.prompts_per_rollout,
    "completions an optimizer step": plan.completions_per_step,
    "optimizer steps a rollout": plan.steps_per_rollout,
    "optimizer steps": plan.total_steps,
}
FIELDS = ("num_generations", "num_iterations", "learning_rate", "temperature", "max_completion_length")


def differences(before: Setting, after: Setting) -> Iterator[str]:
    """Numbers that are known on both sides and are not the same."""
    for name, number in NUMBERS.items():
        yield from _differs(name, number(before), number(after))
    for name in FIELDS:
        yield from _differs(name, getattr(before, name), getattr(after, name))
    yield from _differs("KL coefficient in the loss", before.beta, after.beta)


def _differs(name: str, before: Any, after: Any) -> Iterator[str]:
    if before is not None and after is not None and before != after:
        yield f"{name}: {float(before):g} becomes {float(after):g}"
