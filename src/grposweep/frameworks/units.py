"""Sizes in the two units: whole micro-batches of completions on every process, or prompts a rollout and a step.

docs/frameworks.md compares what each framework cannot do, and what it does in its own way.
"""

from math import ceil

from grposweep import plan
from grposweep.plan import completions_per_rollout, completions_per_step, micro_steps_per_generation, realise
from grposweep.setting import Setting


def in_completions(s: Setting) -> tuple[Setting, tuple[str, ...]]:
    """Return the setting with B, A and S for all its processes, a rollout's and a step's completions kept; and what could not be.

    Sizes that were in these words already stay as they are; a rollout's size gives way to micro-steps.
    """
    micro_steps = micro_steps_per_generation(s)
    plain = s.replace({"generation_batch_size": None, "steps_per_generation": micro_steps})
    if s.prompts_per_rollout is None and s.data_processes in (None, s.processes):
        return plain, ()
    # All processes are data ranks from here on, which also says that B counts completions, whatever the version is.
    plain = plain.replace({"prompts_per_rollout": None, "prompts_per_step": None, "data_processes": s.processes})
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
            return _evaluated(plain.replace(changes)), ()
    nearest = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": max(round(step / s.processes), 1),
        "steps_per_generation": max(round(rollout / s.processes), 1),
    }
    lost = (
        f"{rollout} completions a rollout and {step} a step do not divide among {s.processes} processes: the nearest do"
    )
    return _evaluated(plain.replace(nearest)), (lost,)


def _evaluated(s: Setting) -> Setting:
    """Return the setting with an evaluation batch of whole groups, for which prompts have no size."""
    solved = realise(s.replace({"auto": frozenset({"per_device_eval_batch_size"})}))
    return solved.replace({"auto": frozenset()})


GPUS = 8  # assumed where no number of processes is known


def in_prompts(s: Setting) -> tuple[Setting, tuple[str, ...]]:
    """Return the setting with P, p and a micro-batch that divides a step on every data rank; and what could not be kept."""
    lost: list[str] = []
    if s.processes is None:
        s = s.replace({"processes": GPUS})
        lost.append(f"the number of GPUs is not known; {GPUS} are written")
    if s.prompts_per_rollout is None or s.prompts_per_step is None:
        s, more = _counted(s)
        lost += more
    shared = max(
        s.tensor_parallel_size * s.sequence_parallel_size * s.context_parallel_size * s.pipeline_parallel_size, 1
    )
    ranks = max((s.processes or 1) // shared, 1)
    each = (s.prompts_per_step or 0) * s.num_generations // ranks
    size = next((n for n in range(min(s.per_device_train_batch_size, each), 0, -1) if each % n == 0), 1)
    if (s.prompts_per_step or 0) * s.num_generations % ranks:
        lost.append(f"{s.prompts_per_step} prompts x {s.num_generations} a step do not divide among {ranks} data ranks")
    return plan.resize(s.replace({"per_device_train_batch_size": size})), tuple(lost)


def _counted(s: Setting) -> tuple[Setting, list[str]]:
    """Return prompts for completions: whole groups a step, whole steps a rollout; and what that loses."""
    group = max(s.num_generations, 1)
    rollout, step = plan.completions_per_rollout(s) or group, plan.completions_per_step(s) or group
    lost = []
    prompts, taken = max(rollout // group, 1), -(-step // group)
    if step % group:
        lost.append(f"{step} completions a step are no whole groups of {group}: {taken * group} are taken")
    if taken > prompts or prompts % taken:
        whole = max(n for n in range(1, prompts + 1) if prompts % n == 0 and n <= taken)
        lost.append(f"a rollout of {prompts} prompts cannot be {prompts / taken:.3g} steps: steps have {whole} prompts")
        taken = whole
    return s.replace({"prompts_per_rollout": prompts, "prompts_per_step": taken}), lost


def steps_a_rollout(s: Setting) -> float:
    """Return the optimizer steps a rollout, 1 where the sizes make none."""
    return float(plan.steps_per_rollout(s)) or 1.0


def in_rollouts(s: Setting, steps: float) -> int:
    """Return optimizer steps as whole rollouts, rounded up."""
    return max(ceil(steps / steps_a_rollout(s)), 1)
