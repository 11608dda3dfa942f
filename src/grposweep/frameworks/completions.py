"""Sizes as TRL and ms-swift take them: whole micro-batches of completions on every training process."""

from grposweep.plan import completions_per_rollout, completions_per_step, micro_steps_per_generation, realise
from grposweep.setting import Setting


def in_completions(s: Setting) -> tuple[Setting, tuple[str, ...]]:
    """The setting with B, A and S for all its processes, a rollout's and a step's completions kept; and what could not be.

    Sizes that were in these words already stay as they are; a rollout's size gives way to micro-steps.
    """
    micro_steps = micro_steps_per_generation(s)
    plain = s.altered({"generation_batch_size": None, "steps_per_generation": micro_steps})
    if s.prompts_per_rollout is None and s.data_processes in (None, s.processes):
        return plain, ()
    # All processes are data ranks from here on, which also says that B counts completions, whatever the version is.
    plain = plain.altered({"prompts_per_rollout": None, "prompts_per_step": None, "data_processes": s.processes})
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
            return _evaluated(plain.altered(changes)), ()
    nearest = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": max(round(step / s.processes), 1),
        "steps_per_generation": max(round(rollout / s.processes), 1),
    }
    lost = (
        f"{rollout} completions a rollout and {step} a step do not divide among {s.processes} processes: the nearest do"
    )
    return _evaluated(plain.altered(nearest)), (lost,)


def _evaluated(s: Setting) -> Setting:
    """With an evaluation batch of whole groups, which frameworks that count prompts have no size for."""
    solved = realise(s.altered({"auto": frozenset({"per_device_eval_batch_size"})}))
    return solved.altered({"auto": frozenset()})
