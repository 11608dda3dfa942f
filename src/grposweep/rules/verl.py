"""GB, verl: its validation, the assertions that come after minutes of start-up, and batches that it pads.

Symbols as in ``prompts``. Sources: verl 0.9.1 utils/config.py, workers/config/actor.py, workers/engine_workers.py:267,
workers/engine/utils.py:125, trainer/ppo/v1/trainer_base.py (_balance_batch, _next_train_batch).
"""

from collections.abc import Callable
from math import ceil

from grposweep.rules.registry import Violation, rule
from grposweep.rules.rollout_batch import SIZED, SPLIT, VERL, by_trial, is_sized, offer, on_ranks, per_rank, ranks
from grposweep.setting import Setting

CHECKED = (*SIZED, *SPLIT, "dynamic_batching")


def _unit(s: Setting) -> int:
    """What the completions of a rollout must be a multiple of: all processes, or Megatron's data ranks times m."""
    if s.engine == "megatron":
        return (ranks(s) or 1) * s.per_device_train_batch_size
    return s.processes or 1


def _shared_alike(s: Setting) -> bool:
    return (s.prompts_per_rollout or 0) * s.num_generations % _unit(s) == 0


@rule("GB401", "error", (*CHECKED, "engine"), lambda s: by_trial(s, a_rollout_is_shared_alike), of=VERL)
def a_rollout_is_shared_alike(s: Setting) -> Violation | None:
    """P G must be a multiple of all processes (FSDP, also with sequence parallelism), or of R m (Megatron).

    verl at start, unless micro-batches are dynamic: "real_train_batch_size (1030) must be divisible by minimal possible
    batch size (8)".
    """
    if s.dynamic_batching or not is_sized(s) or ranks(s) is None or _shared_alike(s):
        return None
    return Violation(
        what=f"{s.key('prompts_per_rollout')}={s.prompts_per_rollout}",
        why=f"its {(s.prompts_per_rollout or 0) * s.num_generations} completions are no multiple of {_unit(s)} "
        + (f"({ranks(s)} data ranks x {s.per_device_train_batch_size})" if s.engine == "megatron" else "processes"),
        instead=f"Choose {s.key('prompts_per_rollout')} x {s.key('num_generations')} as a multiple of {_unit(s)}.",
        fields=("prompts_per_rollout", "num_generations", "processes"),
        suggestions=offer(s, "prompts_per_rollout", "num_generations", accepts=_shared_alike),
    )


@rule("GB402", "error", (*SIZED, "dynamic_batching"), of=VERL)
def a_rollout_holds_a_step(s: Setting) -> Violation | None:
    """P must be at least p: both count prompts.

    verl at start, unless micro-batches are dynamic (see GB406): "train_batch_size (64) must be >=
    actor.ppo_mini_batch_size (256)". The default of ``ppo_mini_batch_size`` is 256.
    """
    if s.dynamic_batching or not is_sized(s) or (s.prompts_per_rollout or 0) >= (s.prompts_per_step or 0):
        return None
    return Violation(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"a rollout has only {s.key('prompts_per_rollout')}={s.prompts_per_rollout} prompts",
        instead=f"Set {s.key('prompts_per_step')}={s.prompts_per_rollout}.",
        fields=("prompts_per_step", "prompts_per_rollout"),
        suggestions=(
            *({"prompts_per_step": n} for n in range(s.prompts_per_rollout or 1, 0, -1)[:64]),
            {"prompts_per_rollout": s.prompts_per_step},
        ),
    )


@rule("GB403", "error", (*SIZED, *SPLIT), lambda s: by_trial(s, a_step_is_shared_alike), of=VERL)
def a_step_is_shared_alike(s: Setting) -> Violation | None:
    """P G, the completions of a step, must be a multiple of the data ranks R.

    verl at the first update, minutes after the start, with dynamic micro-batches too: "Got mini_batch_size={p G} and
    self.engine.get_data_parallel_size()={R}".
    """
    count = ranks(s)
    if not is_sized(s) or count is None or (s.prompts_per_step or 0) * s.num_generations % count == 0:
        return None
    return Violation(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"its {(s.prompts_per_step or 0) * s.num_generations} completions cannot be split over {count} data ranks "
        f"({on_ranks(s)})",
        instead=f"Choose {s.key('prompts_per_step')} x {s.key('num_generations')} as a multiple of {count}.",
        fields=("prompts_per_step", "num_generations", "processes"),
        suggestions=offer(s, "prompts_per_step", "num_generations", accepts=_step_splits),
    )


def _step_splits(s: Setting) -> bool:
    return (s.prompts_per_step or 0) * s.num_generations % (ranks(s) or 1) == 0


@rule("GB404", "error", CHECKED, lambda s: by_trial(s, a_rank_s_step_is_whole_micro_batches), of=VERL)
def a_rank_s_step_is_whole_micro_batches(s: Setting) -> Violation | None:
    """P G / R, a step on one data rank, must be a multiple of ``ppo_micro_batch_size_per_gpu``.

    verl at the first update: "data size must be divisible by force_group_size * micro_batch_size_per_gpu".
    """
    size = s.per_device_train_batch_size
    if s.dynamic_batching or not is_sized(s) or ranks(s) is None or not _step_splits(s) or per_rank(s) % size == 0:
        return None
    return Violation(
        what=f"{s.key('per_device_train_batch_size')}={size}",
        why=f"it does not divide the {per_rank(s)} completions of a step on each data rank "
        f"({s.prompts_per_step} prompts x {s.num_generations} / {ranks(s)})",
        instead=f"Choose a divisor of {per_rank(s)}.",
        fields=("per_device_train_batch_size", "prompts_per_step", "num_generations", "processes"),
        suggestions=offer(
            s,
            "per_device_train_batch_size",
            "prompts_per_step",
            accepts=lambda t: _step_splits(t) and per_rank(t) % t.per_device_train_batch_size == 0,
        ),
    )


def _padded(s: Setting) -> int:
    """A rollout's completions on one data rank, after verl has filled the last step."""
    return ceil((s.prompts_per_rollout or 0) / (s.prompts_per_step or 1)) * per_rank(s)


LOGGED = ("experience_batch_size", "reference_batch_size")


@rule(
    "GB405",
    "error",
    (*CHECKED, *LOGGED, "loads_reference"),
    lambda s: by_trial(s, log_probabilities_are_whole_micro_batches),
    of=VERL,
)
def log_probabilities_are_whole_micro_batches(s: Setting) -> Violation | None:
    """A rollout's completions on one data rank must be a multiple of the micro-batches for log-probabilities.

    verl after the first rollout, for the policy and, where there is one, for the reference: "data size must be divisible
    by force_group_size * micro_batch_size_per_gpu".
    """
    if s.dynamic_batching or not is_sized(s) or ranks(s) is None or not _step_splits(s):
        return None
    for name in LOGGED if s.loads_reference else LOGGED[:1]:
        size = getattr(s, name)
        if size is not None and size > 0 and _padded(s) % size:
            return Violation(
                what=f"{s.key(name)}={size}",
                why=f"it does not divide the {_padded(s)} completions of a rollout on each data rank",
                instead=f"Choose a divisor of {_padded(s)}.",
                fields=(name, "prompts_per_rollout", "num_generations", "processes"),
                suggestions=offer(s, name, accepts=_divisor_of(_padded(s), name)),
            )
    return None


def _divisor_of(number: int, name: str) -> Callable[[Setting], bool]:
    return lambda s: number % getattr(s, name) == 0


@rule("GB406", "warning", (*SIZED, "dynamic_batching"), of=VERL)
def no_step_is_padded(s: Setting) -> Violation | None:
    """P should be a multiple of p: verl fills the last step of a rollout with samples that teach nothing.

    Losses that average over sequences still divide by the nominal number of them, so that step is weaker. With dynamic
    micro-batches even P < p passes verl's validation.
    """
    if not is_sized(s) or (s.prompts_per_rollout or 0) % (s.prompts_per_step or 1) == 0:
        return None
    prompts, step = s.prompts_per_rollout or 0, s.prompts_per_step or 1
    if prompts < step and not s.dynamic_batching:
        return None  # GB402
    return Violation(
        what=f"{s.key('prompts_per_rollout')}={prompts}",
        why=f"it is no multiple of {s.key('prompts_per_step')}={step}: of the last step of a rollout {-prompts % step} of "
        f"{step} prompts are padding",
        instead=f"Choose a multiple of {step}.",
        fields=("prompts_per_rollout", "prompts_per_step"),
    )
