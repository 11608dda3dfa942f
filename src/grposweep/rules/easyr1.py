"""GB, EasyR1: its checks of the batch, at start and late, and what it rounds down without a word.

Symbols as in ``prompts``. Sources: EasyR1 0.3.3 verl/trainer/ray_trainer.py, verl/workers/fsdp_workers.py
(_init_dist_mesh), verl/protocol.py (chunk, split).
"""

from grposweep.rules.registry import Violation, rule
from grposweep.rules.rollout_batch import (
    EASYR1,
    ROLLOUT,
    SIZED,
    SPLIT,
    by_trial,
    is_sized,
    offer,
    on_ranks,
    per_rank,
    ranks,
    shared,
)
from grposweep.setting import Setting


@rule("GB303", "error", SIZED, of=EASYR1)
def a_rollout_is_whole_steps(s: Setting) -> Violation | None:
    """P must be a multiple of p: both count prompts.

    EasyR1: "Rollout batch size must be divisible by actor global batch size."
    """
    if not is_sized(s) or (s.prompts_per_rollout or 0) % (s.prompts_per_step or 1) == 0:
        return None
    return Violation(
        what=f"{s.key('prompts_per_rollout')}={s.prompts_per_rollout}",
        why=f"it is no multiple of {s.key('prompts_per_step')}={s.prompts_per_step} (both count prompts)",
        instead=f"Choose a multiple of {s.prompts_per_step}.",
        fields=("prompts_per_rollout", "prompts_per_step"),
        suggestions=offer(s, "prompts_per_step", "prompts_per_rollout", accepts=_is_whole),
    )


def _is_whole(s: Setting) -> bool:
    return (s.prompts_per_rollout or 0) % (s.prompts_per_step or 1) == 0


@rule("GB304", "error", (*SIZED, "experience_batch_size"), of=EASYR1)
def experience_is_whole_micro_batches(s: Setting) -> Violation | None:
    """P G, the completions of a rollout, must be a multiple of the micro-batch for log-probabilities.

    EasyR1, counting the rollout of all processes, and with dynamic batching too: "Rollout batch size * rollout.n must be
    divisible by actor micro batch size for experience."
    """
    size = s.experience_batch_size
    if not is_sized(s) or size is None or size < 1 or _experience_fits(s):
        return None
    return Violation(
        what=f"{s.key('experience_batch_size')}={size}",
        why=f"it does not divide the {(s.prompts_per_rollout or 0) * s.num_generations} completions of a rollout "
        f"({s.prompts_per_rollout} prompts x {s.num_generations})",
        instead=f"Choose a divisor, such as {s.num_generations}.",
        fields=("experience_batch_size", *ROLLOUT),
        suggestions=offer(s, "experience_batch_size", "prompts_per_rollout", accepts=_experience_fits),
    )


def _experience_fits(s: Setting) -> bool:
    return (s.prompts_per_rollout or 0) * s.num_generations % (s.experience_batch_size or 1) == 0


@rule("GB305", "error", (*SIZED, *SPLIT), lambda s: by_trial(s, every_rank_has_a_completion), of=EASYR1)
def every_rank_has_a_completion(s: Setting) -> Violation | None:
    """A step must hold a completion for every data rank: g = floor(p G / R) is at least 1.

    EasyR1, in each worker: "actor global batch size * ulysses size must be larger than num gpus." (it means p G).
    """
    count = ranks(s)
    if not is_sized(s) or count is None or per_rank(s) >= 1:
        return None
    return Violation(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"{s.prompts_per_step} x {s.num_generations} completions a step are fewer than {on_ranks(s)}",
        instead=f"Choose at least {-(-count // s.num_generations)} prompts.",
        fields=("prompts_per_step", "num_generations", "processes"),
        suggestions=offer(s, "prompts_per_step", "num_generations", accepts=lambda t: per_rank(t) >= 1),
    )


@rule("GB306", "error", (*SIZED, *SPLIT), lambda s: by_trial(s, a_rank_has_whole_micro_batches), of=EASYR1)
def a_rank_has_whole_micro_batches(s: Setting) -> Violation | None:
    """G = floor(p G / R), the completions of a step on one data rank, must be a multiple of m.

    EasyR1, in each worker, with dynamic batching too: "actor global batch size per device must be divisible by the micro
    batch size." With sequences shared by two processes there are half as many data ranks, so g is twice as large.
    """
    size = s.per_device_train_batch_size
    if not is_sized(s) or ranks(s) is None or per_rank(s) < 1 or per_rank(s) % size == 0:
        return None
    return Violation(
        what=f"{s.key('per_device_train_batch_size')}={size}",
        why=f"it does not divide the {per_rank(s)} completions of a step on each rank "
        f"({s.prompts_per_step} prompts x {s.num_generations} / {on_ranks(s)})",
        instead=f"Choose a divisor of {per_rank(s)}.",
        fields=("per_device_train_batch_size", "prompts_per_step", "num_generations", "processes"),
        suggestions=offer(s, "per_device_train_batch_size", "prompts_per_step", accepts=_micro_fits),
    )


def _micro_fits(s: Setting) -> bool:
    return per_rank(s) >= 1 and per_rank(s) % s.per_device_train_batch_size == 0


@rule(
    "GB307",
    "error",
    (*SIZED, *SPLIT, "offloads_parameters"),
    lambda s: by_trial(s, offloading_does_not_accumulate),
    of=EASYR1,
)
def offloading_does_not_accumulate(s: Setting) -> Violation | None:
    """FSDP's own CPU offload knows no gradient accumulation: a step must be one micro-batch, g = m.

    EasyR1: "actor cannot use FSDP's CPU offload when gradient accumulation is enabled." Its own ``offload.offload_params``
    is another switch, which does.
    """
    size = s.per_device_train_batch_size
    if not s.offloads_parameters or not is_sized(s) or ranks(s) is None or per_rank(s) in (0, size):
        return None
    return Violation(
        what=f"{s.key('offloads_parameters')}=true",
        why=f"a step takes {per_rank(s)} completions on each rank in micro-batches of {size}, and FSDP cannot accumulate "
        "gradients with the weights offloaded",
        instead=f"Set {s.key('offloads_parameters')}=false (worker.actor.offload.offload_params=true saves memory too).",
        fields=("offloads_parameters", "per_device_train_batch_size", "prompts_per_step"),
        suggestions=({"offloads_parameters": False}, {"per_device_train_batch_size": per_rank(s)}),
        without_effect=frozenset({"offloads_parameters"}),
    )


PORTIONS = (*SIZED, "prompts_per_generation", "processes")


@rule("GB308", "error", PORTIONS, lambda s: by_trial(s, every_process_generates_alike), of=EASYR1)
def every_process_generates_alike(s: Setting) -> Violation | None:
    """The prompts of a generation call (``mini_rollout_batch_size``, or all of P) are cut into W equal parts.

    EasyR1 at the first rollout: "only support equal chunk. Got size of DataProto {n} and chunk {W}."
    """
    if not is_sized(s) or s.processes is None or s.processes < 1 or _chunks(s):
        return None
    name = "prompts_per_rollout" if s.prompts_per_generation is None else "prompts_per_generation"
    if getattr(s, name) % s.processes == 0:
        name = "prompts_per_rollout"
    return Violation(
        what=f"{s.key(name)}={getattr(s, name)}",
        why=f"the {s.processes} processes generate equal parts of it, and it is no multiple of {s.processes}",
        instead=f"Choose a multiple of {s.processes}.",
        fields=(name, "processes"),
        suggestions=offer(s, name, accepts=_chunks),
    )


def _chunks(s: Setting) -> bool:
    prompts, count = s.prompts_per_generation or s.prompts_per_rollout or 0, s.processes or 1
    return prompts % count == 0 and (s.prompts_per_rollout or 0) * s.num_generations % count == 0


@rule("GB309", "error", (*SIZED, *SPLIT), lambda s: by_trial(s, a_rank_has_whole_steps), of=EASYR1)
def a_rank_has_whole_steps(s: Setting) -> Violation | None:
    """The completions of a rollout on one data rank, P G / R, must be whole steps of g = floor(p G / R).

    Where p G is no multiple of R, g is rounded down, and then the rollout may not be whole steps any more. EasyR1 at the
    first update: "only support equal split. Got size of DataProto {n} and split {g}."
    """
    if not _divides(s) or _splits(s):
        return None
    return Violation(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"{s.prompts_per_step} x {s.num_generations} completions over {on_ranks(s)} are rounded down to {per_rank(s)} a "
        f"rank, which do not divide its {_held(s)} completions of a rollout",
        instead=f"Choose {s.key('prompts_per_step')} x {s.key('num_generations')} as a multiple of {ranks(s)}.",
        fields=("prompts_per_step", "num_generations", "processes"),
        suggestions=offer(s, "prompts_per_step", "num_generations", accepts=lambda t: _is_whole(t) and _splits(t)),
    )


def _held(s: Setting) -> int:
    """A rollout's completions on one data rank."""
    return (s.prompts_per_rollout or 0) * s.num_generations // (s.processes or 1) * shared(s)


def _divides(s: Setting) -> bool:
    """Whether sizes, processes and ranks are such that a rollout comes to be split into steps at all."""
    return is_sized(s) and ranks(s) is not None and per_rank(s) >= 1 and _is_whole(s)


def _splits(s: Setting) -> bool:
    return per_rank(s) >= 1 and _held(s) % per_rank(s) == 0


@rule("GB310", "warning", (*SIZED, *SPLIT), of=EASYR1)
def a_step_is_not_rounded_down(s: Setting) -> Violation | None:
    """P G should be a multiple of R: EasyR1 rounds g = p G / R down without a word, and takes more and smaller steps.

    Run on its own arithmetic: two processes, one prompt a step, five completions a prompt, four prompts a rollout make
    five steps of 4 completions instead of four steps of 5.
    """
    count = ranks(s)
    if not _divides(s) or not _splits(s) or count is None:
        return None
    wanted = (s.prompts_per_step or 0) * s.num_generations
    if wanted % count == 0:
        return None
    return Violation(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"{wanted} completions a step over {on_ranks(s)} are rounded down: steps of {per_rank(s) * count}, and "
        f"{_held(s) // per_rank(s)} of them a rollout",
        instead=f"Choose {s.key('prompts_per_step')} x {s.key('num_generations')} as a multiple of {count}.",
        fields=("prompts_per_step", "num_generations", "processes"),
    )


@rule("GB311", "warning", (*SIZED, "prompts_per_generation", "filters_groups"), of=EASYR1)
def nothing_is_generated_for_the_bin(s: Setting) -> Violation | None:
    """``mini_rollout_batch_size`` should divide P: what is generated beyond a rollout is thrown away.

    EasyR1 generates portions until there are enough, and keeps ``batch[: P * n]``. With online filtering it has to.
    """
    size, prompts = s.prompts_per_generation, s.prompts_per_rollout or 0
    if size is None or size < 1 or not is_sized(s) or s.filters_groups or prompts % size == 0:
        return None
    surplus = -prompts % size
    return Violation(
        what=f"{s.key('prompts_per_generation')}={size}",
        why=f"it does not divide {s.key('prompts_per_rollout')}={prompts}: {surplus * s.num_generations} completions a "
        "rollout are generated and thrown away",
        instead=f"Choose a divisor of {prompts}.",
        fields=("prompts_per_generation", "prompts_per_rollout"),
    )
