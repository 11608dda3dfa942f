"""GT and GL, EasyR1 and verl: processes shared out to generation engines, sequences and models; clips that act.

Sources: EasyR1 0.3.3 verl/workers/fsdp_workers.py (_build_rollout), verl/workers/rollout/vllm_rollout_spmd.py,
verl/trainer/core_algos.py (compute_policy_loss); verl 0.9.1 workers/engine_workers.py:659, utils/config.py,
trainer/ppo/core_algos.py.
"""

from grposweep.rules import counts
from grposweep.rules.prompts import EASYR1, SPLIT, VERL, near, shared
from grposweep.rules.registry import Broken, rule
from grposweep.setting import IN_PROMPTS, Setting


def _engine_counts(s: Setting) -> int:
    return counts.ALL if s.prompts_per_rollout is None else counts.multiples(max(s.vllm_tensor_parallel_size, 1))


ENGINE = ("prompts_per_rollout", "processes", "vllm_tensor_parallel_size")


@rule("GT301", "error", ENGINE, _engine_counts, of=IN_PROMPTS)
def engines_share_all_processes(s: Setting) -> Broken | None:
    """The processes are cut into generation engines of equal size, so their number is a multiple of an engine's GPUs.

    EasyR1: "rollout world size {W} is not divisible by tp size {tp}."; verl: "rollout world_size: {W} is not divisible by
    infer_world_size: {tp x dp x pp}". The default of both is 2, so one GPU needs ``tensor_parallel_size`` 1.
    """
    size, name = s.vllm_tensor_parallel_size, "vllm_tensor_parallel_size"
    if s.prompts_per_rollout is None or s.processes is None or s.processes < 1 or size < 1 or s.processes % size == 0:
        return None
    return Broken(
        what=f"{s.key(name)}={size}",
        why=f"the {s.processes} process{'' if s.processes == 1 else 'es'} cannot be cut into engines of {size}",
        instead=f"Choose a divisor of {s.processes}.",
        fields=(name, "processes"),
        suggestions=tuple({name: n} for n in near(size, lambda n: (s.processes or 1) % n == 0)),
    )


def _shared_counts(s: Setting) -> int:
    return counts.ALL if s.prompts_per_rollout is None else counts.multiples(shared(s))


@rule("GT302", "error", (*SPLIT, "prompts_per_rollout"), _shared_counts, of=IN_PROMPTS)
def sequences_share_all_processes(s: Setting) -> Broken | None:
    """Processes that share a sequence (Ulysses) or a model (Megatron) form groups of equal size.

    verl with Megatron at start: "n_gpus (8) must be divisible by model_parallel_size (3) times context_parallel_size (1)";
    otherwise both fail when the device mesh is made.
    """
    if s.prompts_per_rollout is None or s.processes is None or s.processes < 1 or s.processes % shared(s) == 0:
        return None
    names = [name for name in SPLIT[1:] if getattr(s, name) > 1]
    return Broken(
        what=" and ".join(f"{s.key(name)}={getattr(s, name)}" for name in names),
        why=f"the {s.processes} processes cannot be cut into groups of {shared(s)}",
        instead=f"Choose sizes whose product divides {s.processes}.",
        fields=(*names, "processes"),
        suggestions=tuple(
            {name: n} for name in names for n in near(getattr(s, name), lambda n: (s.processes or 1) % n == 0)
        ),
    )


LENGTHS = ("max_batched_tokens", "max_prompt_length", "max_completion_length")


@rule("GT303", "error", LENGTHS, of=EASYR1)
def a_sequence_fits_the_engine(s: Setting) -> Broken | None:
    """The engine must be able to take a whole prompt and response at once.

    EasyR1 when generation is set up: "max_num_batched_tokens should be greater than prompt_length + response_length."
    """
    longest = (s.max_prompt_length or 0) + s.max_completion_length
    if s.max_batched_tokens is None or s.max_batched_tokens >= longest:
        return None
    return Broken(
        what=f"{s.key('max_batched_tokens')}={s.max_batched_tokens}",
        why=f"a prompt and its response have up to {longest} tokens ({s.max_prompt_length} + {s.max_completion_length})",
        instead=f"Set {s.key('max_batched_tokens')}={longest} or more.",
        fields=LENGTHS,
        suggestions=({"max_batched_tokens": longest},),
    )


@rule("GL301", "error", ("framework", "delta"), of=IN_PROMPTS)
def the_dual_clip_is_above_one(s: Setting) -> Broken | None:
    """The dual clip bounds the loss of bad answers at so many times the advantage; at 1 and below they teach nothing.

    verl at the first update: "The lower bound of the clip_ratio_c for dual-clip PPO should be greater than 1.0". EasyR1
    accepts it. Neither can switch it off; a large value does the same.
    """
    if s.delta is None or s.delta > 1:
        return None
    return Broken(
        what=f"{s.key('delta')}={s.delta:g}",
        why="it clips even where policy and old policy agree, so answers with a negative advantage teach nothing",
        instead=f"Set {s.key('delta')}=3.0, the default.",
        fields=("delta",),
        suggestions=({"delta": 3.0},),
    )


@rule("GL302", "warning", ("loss_average",), of=EASYR1)
def the_mean_over_sequences_is_one(s: Setting) -> Broken | None:
    """``loss_avg_mode=seq`` is weighed by tokens again: EasyR1 multiplies each micro-batch by its share of the tokens.

    So it is no mean over sequences as in the GRPO paper, and long micro-batches count more.
    """
    if s.loss_average != "seq":
        return None
    return Broken(
        what=f"{s.key('loss_average')}=seq",
        why="EasyR1 weighs each micro-batch by its number of tokens, so this is not the mean over sequences",
        instead=f"Set {s.key('loss_average')}=token, whose weights are exact.",
        fields=("loss_average",),
    )


@rule("GL303", "warning", ("advantage_estimator",), of=VERL)
def grpo_is_asked_for(s: Setting) -> Broken | None:
    """The default ``adv_estimator`` of verl is ``gae``, which trains a critic: GRPO must be asked for."""
    if s.advantage_estimator != "gae":
        return None
    return Broken(
        what=f"{s.key('advantage_estimator')}=gae",
        why="this is PPO with a critic; verl takes it where nothing else is set",
        instead=f"Set {s.key('advantage_estimator')}=grpo.",
        fields=("advantage_estimator",),
    )
