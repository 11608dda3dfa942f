"""Sizes as TRL and ms-swift take them: whole micro-batches of completions on every training process.

Sizes and schedules as EasyR1 and verl take them: prompts a rollout and a step, lengths in rollouts; and what is lost.

What neither can do, and what each does in its own way, is compared in docs/frameworks.md.
"""

from collections.abc import Iterator
from math import ceil, gcd
from typing import Any

from grposweep import plan
from grposweep.frameworks.dotted import NEVER_CLIPPED, steps_a_rollout
from grposweep.plan import completions_per_rollout, completions_per_step, micro_steps_per_generation, realise
from grposweep.setting import Setting


def in_completions(s: Setting) -> tuple[Setting, tuple[str, ...]]:
    """The setting with B, A and S for all its processes, a rollout's and a step's completions kept; and what could not be.

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
    """With an evaluation batch of whole groups, which frameworks that count prompts have no size for."""
    solved = realise(s.replace({"auto": frozenset({"per_device_eval_batch_size"})}))
    return solved.replace({"auto": frozenset()})


GPUS = 8  # assumed where no number of processes is known
NODE = 8  # GPUs


def in_prompts(s: Setting) -> tuple[Setting, tuple[str, ...]]:
    """The setting with P, p and a micro-batch that divides a step on every data rank; and what could not be kept."""
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
    """Prompts for completions: whole groups a step, whole steps a rollout."""
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


def nodes(processes: int) -> tuple[int, int]:
    """Nodes, and GPUs on each."""
    each = next(n for n in range(min(processes, NODE), 0, -1) if processes % n == 0)
    return processes // each, each


def rollouts(s: Setting) -> tuple[int | None, tuple[str, ...]]:
    """The length in whole rollouts, where steps are known or set; and what that adds."""
    steps = s.max_steps if s.max_steps is not None and not s.ends_with_epochs else plan.total_steps(s)
    if steps is None and s.max_steps is not None:
        steps = s.max_steps
    if steps is None or (s.max_steps is None and s.epochs is not None and s.epochs == int(s.epochs)):
        return None, ()
    count, each = ceil(steps / steps_a_rollout(s)), steps_a_rollout(s)
    surplus = count * each - steps
    return count, (f"{steps} optimizer steps are {count} rollouts of {each:g}: {surplus:g} more",) if surplus else ()


def every(s: Setting, steps: float | None) -> int:
    """A frequency in rollouts; -1 is never. A share of all steps stays one where their number is known."""
    if steps is None:
        return -1
    if steps < 1:
        steps = steps * (plan.total_steps(s) or 0)
    return max(round(steps / steps_a_rollout(s)), 1)


def warmup(s: Setting) -> tuple[int | None, float, tuple[str, ...]]:
    """Rollouts of warmup, or a share; the rate moves once a rollout."""
    if s.warmup_steps <= 0:
        return None, 0.0, ()
    lost = (f"the learning rate moves once a rollout ({steps_a_rollout(s):g} steps), and the first is trained at 0",)
    if s.warmup_steps < 1:
        return None, s.warmup_steps, lost
    return ceil(s.warmup_steps / steps_a_rollout(s)), 0.0, lost


def scheduler(s: Setting) -> tuple[str, tuple[str, ...]]:
    """Constant or cosine, all there is."""
    plain = {"constant": "constant", "constant_with_warmup": "constant", "cosine": "cosine"}
    if s.lr_scheduler_type in plain:
        return plain[s.lr_scheduler_type], ()
    return "cosine", (
        f"lr_scheduler_type={s.lr_scheduler_type}: only constant and cosine are there; cosine is written",
    )


def common_losses(s: Setting, framework: str) -> Iterator[str]:
    """What neither EasyR1 nor verl can do of a setting."""
    if s.sync_ref_model:
        yield "sync_ref_model: the reference never moves"
    if s.framework.unit != "prompts" and s.gradient_accumulation_steps != s.steps_per_generation is not None:
        yield "checkpoints are at the end of a rollout only"
    if s.mask_truncated_completions:
        yield "mask_truncated_completions: truncated completions count"
    if s.scale_rewards == "batch":
        yield "scale_rewards=batch: advantages are scaled within their group"
    if s.delta is None:
        yield f"the dual clip cannot be switched off: {NEVER_CLIPPED:g} is written, which never acts"
    if s.lora:
        yield "LoRA's rank and modules are not known here: rank 64 is written"
    if s.max_prompt_length is None:
        yield "prompts have no longest length here, and must have one there: 2,048 tokens are written"
    if s.framework.unit != "prompts":
        yield "advantages are scaled with 1e-6 added to the standard deviation; micro-batches are ordered by length"
        yield f"reward functions and the columns of the data are {framework}'s own: set them"


def estimator(s: Setting) -> str | None:
    """The estimator of KL in the loss; TRL's k3 weighed by the ratio has on-policy the gradient of k3+."""
    if s.kl_estimator is not None:
        return s.kl_estimator
    return "k3+" if s.use_bias_correction_kl else "k3"


def nested(keys: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as a nested mapping, those without a value left out."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        if value is None:
            continue
        *sections, last = key.split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return found


def fitting(number: int, most: int) -> int:
    """A micro-batch for log-probabilities: the wanted size where it divides, or what it has in common."""
    return most if number % most == 0 else gcd(number, most)
