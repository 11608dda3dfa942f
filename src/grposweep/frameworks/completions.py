"""Sizes as TRL and ms-swift take them: whole micro-batches of completions on every training process."""

from grposweep.plan import completions_per_rollout, completions_per_step, micro_steps_per_generation
from grposweep.setting import Setting


def in_completions(s: Setting) -> tuple[Setting, tuple[str, ...]]:
    """The setting with B, A and S for all its processes, a rollout's and a step's completions kept; and what could not be.

    Sizes that were in these words already stay as they are; a rollout's size gives way to micro-steps.
    """
    micro_steps = micro_steps_per_generation(s)
    plain = s.altered({"generation_batch_size": None, "steps_per_generation": micro_steps})
    if s.prompts_per_rollout is None and s.data_processes in (None, s.processes):
        return plain, ()
    plain = plain.altered({"prompts_per_rollout": None, "prompts_per_step": None, "data_processes": None})
    rollout, step = completions_per_rollout(s), completions_per_step(s)
    if not s.processes or not rollout or not step:
        return plain, ("its sizes count prompts, and without --processes they cannot be divided among any",)
    for size in range(max(s.per_device_train_batch_size, 1), 0, -1):
        micro = size * s.processes
        if rollout % micro == 0 and step % micro == 0:
            changes = {
                "per_device_train_batch_size": size,
                "gradient_accumulation_steps": step // micro,
                "steps_per_generation": rollout // micro,
            }
            return plain.altered(changes), ()
    lost = f"{rollout} completions a rollout and {step} a step do not divide among {s.processes} processes"
    return plain, (lost,)
