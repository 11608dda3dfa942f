"""Checks that only ms-swift has, and settings that it silently reads differently; codes 501 and
above.

Source: ms-swift 4.6.0; each rule names its file. Rules that it shares with TRL are in their
families' files.
"""

from math import prod

from grporecipe.frameworks.ms_swift.keys import PLACE_IS_CHECKED, TAKES_ALL_FOR_TAUGHT
from grporecipe.model import planning
from grporecipe.model.setting import Setting
from grporecipe.rules.batch import SIZES, judgeable, only_tries
from grporecipe.rules.evaluation import evaluation_group
from grporecipe.rules.helpers import (
    divides_the_processes,
    one_of,
)
from grporecipe.rules.registry import Finding, Violation, rule, variant

MS_SWIFT = frozenset({"ms-swift"})
# The choices in rlhf_trainers/grpo_trainer.py and args_mixin.py.
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "real", "fipo")
SCALES = ("group", "batch", "none", "gdpo")
LEVELS = ("token", "sequence", "sequence_token")
# normalised by the tokens of a whole rollout
WINDOWED = ("cispo", "dapo", "fipo")
KL = ("beta", "kl_placement", "kl_reward_coefficient")

variant("GL101", MS_SWIFT, one_of("loss_type", lambda _: LOSSES))
variant("GL102", MS_SWIFT, one_of("scale_rewards", lambda _: SCALES))
variant("GL103", MS_SWIFT, one_of("importance_sampling_level", lambda _: LEVELS))


def coefficient(s: Setting) -> float:
    """Return ``beta``, with ms-swift's default if it is not set."""
    return s.kl_reward_coefficient if s.kl_placement == "reward" else s.beta


@rule(
    "GB501",
    "error",
    SIZES,
    "by trial",
    of=MS_SWIFT,
    blames=("generation_batch_size", "steps_per_generation"),
    why="{steps_per_generation=} makes {made} completions per rollout "
    "({s.processes} x {s.per_device_train_batch_size} x {s.steps_per_generation})",
    instead="Leave one of the two out.",
    to=({"generation_batch_size": None}, {"steps_per_generation": None}),
)
def the_two_sizes_of_a_rollout_agree(s: Setting) -> Finding:
    """``generation_batch_size`` and ``steps_per_generation`` may both be set, if the first is B W
    times the second.

    rlhf_trainers/args_mixin.py: "generation_batch_size (16) must equal per_device_train_batch_size
    * world_size * steps_per_generation = 32." TRL refuses the two together in any case.
    """
    total = s.generation_batch_size or 0
    factors = (s.per_device_train_batch_size, s.processes or 0, s.steps_per_generation or 0)
    made = prod(factors)
    if total == made or min(total, *factors) < 1 or s.data_processes is not None:
        return None
    return {"made": made}


@rule(
    "GB502",
    "warning",
    ("auto_find_batch_size",),
    of=MS_SWIFT,
    blames=("auto_find_batch_size",),
    why=(
        "a batch that shrinks on out-of-memory no longer holds whole groups, and ms-swift does "
        "not report it"
    ),
    instead="Set {auto_find_batch_size}=false, and a smaller {per_device_train_batch_size}.",
)
def the_batch_does_not_shrink_in_ms_swift(s: Setting) -> bool:
    """``auto_find_batch_size`` halves the batch when memory runs out, after which groups are no
    longer whole; unchecked.

    rlhf_trainers/arguments.py skips TRL's own checks, which refuse it since 1.9.
    """
    return s.auto_find_batch_size


EVALUATION = (
    "evaluates",
    "eval_prompts",
    "per_device_eval_batch_size",
    "num_generations",
    "num_generations_eval",
    "processes",
    "unsolved",
    "version",
)


def _sizes_of_evaluation(s: Setting) -> tuple[int, int, int]:
    """Return held-out prompts, completions per prompt and per evaluation batch; 1 for each if
    unknown or invalid, which breaks no rule.
    """
    prompts = s.eval_prompts or 0
    group = evaluation_group(s)
    batch = s.per_device_eval_batch_size * (s.processes or 0)
    is_known = s.evaluates and "per_device_eval_batch_size" not in s.unsolved
    if is_known and min(group, batch, prompts) >= 1:
        return prompts, group, batch
    return 1, 1, 1


@rule(
    "GE501",
    "error",
    EVALUATION,
    "by trial",
    of=MS_SWIFT,
    blames=("eval_prompts", "per_device_eval_batch_size"),
    what="{s.eval_prompts} held-out prompts",
    why="an evaluation batch takes {needed}, and ms-swift needs at least one",
    instead="Hold more out, or choose smaller evaluation batches.",
)
def held_out_prompts_fill_a_batch(s: Setting) -> Finding:
    """The held-out prompts fill one evaluation batch of all processes, B_eval W // G_eval prompts.

    rlhf_trainers/grpo_trainer.py, after the model is loaded: "eval_dataset size 1 is smaller than
    total_eval_batch_size 4."
    """
    prompts, group, batch = _sizes_of_evaluation(s)
    needed = batch // group
    if prompts < needed:
        return {"needed": needed}
    return None


@rule(
    "GE502",
    "warning",
    EVALUATION,
    of=MS_SWIFT,
    blames=("per_device_eval_batch_size",),
    why="{lost} of {s.eval_prompts} held-out prompts do not fill a batch, and are never scored",
    instead="Choose a size whose product with the processes divides {completions}.",
)
def held_out_prompts_are_whole_batches(s: Setting) -> Finding:
    """The last evaluation batch is dropped if it is not full: ms-swift always sets
    ``dataloader_drop_last``.

    rlhf_trainers/arguments.py GRPOConfig.__post_init__.
    """
    prompts, group, batch = _sizes_of_evaluation(s)
    completions = prompts * group
    left = completions % batch
    if not left or prompts < batch // group:
        return None
    return {"lost": -(-left // group), "completions": completions}


@rule(
    "GK501",
    "warning",
    ("sync_ref_model", "lora", *KL),
    of=MS_SWIFT,
    blames=("sync_ref_model", "lora", "beta"),
    why=(
        "with {reason} there is no reference model to synchronise, and ms-swift silently does "
        "nothing"
    ),
    instead="Set {sync_ref_model}=false, or train all weights with a coefficient.",
)
def syncing_has_a_reference(s: Setting) -> Finding:
    """``sync_ref_model`` without a separate reference model (``beta`` 0, or a tuner such as LoRA)
    silently does nothing.

    rlhf_trainers/rollout_mixin.py SyncRefModelCallback returns where there is none. TRL refuses
    both since 0.28.
    """
    if not s.sync_ref_model or (coefficient(s) != 0 and not s.lora):
        return None
    reason = "an adapter, under which the reference is the base model,"
    if coefficient(s) == 0:
        reason = f"{s.key('beta')}=0"
    return {"reason": reason}


@rule(
    "GK502",
    "warning",
    ("given", "lora", "max_steps", "parameters", *KL),
    of=MS_SWIFT,
    blames=("beta",),
    what="{beta} is not set",
    why="ms-swift takes {taken:g} and loads a second model, where TRL takes 0",
    instead="Write down which is meant: {beta}={taken:g} or {beta}=0.",
)
def the_coefficient_was_meant_in_ms_swift(s: Setting) -> Finding:
    """An unset ``beta`` is 0.04: there is a KL penalty, and with full training a second model in
    memory.

    arguments/rlhf_args.py _init_grpo. TRL takes 0 and loads none. Not told with LoRA, which loads
    none either, and in a run that only tries the code.
    """
    if not s.given or {"beta", "kl_reward_coefficient"} & s.given or s.lora or only_tries(s):
        return None
    if coefficient(s) != 0:
        return {"taken": coefficient(s)}
    return None


@rule(
    "GK503",
    "warning",
    ("scale_rewards", *KL),
    of=MS_SWIFT,
    blames=("kl_placement", "scale_rewards"),
    what="{kl_placement}=true",
    why=(
        "with {scale_rewards=} a group of equal rewards is ranked by KL alone, and the "
        "coefficient cancels out"
    ),
    instead="Set {scale_rewards}=none, or {kl_placement}=false.",
)
def a_penalty_in_the_reward_is_not_scaled_away(s: Setting) -> bool:
    """KL in the reward is divided by the deviation of group or batch. If rewards are equal, only KL
    counts.

    This holds for any coefficient. Measured with verl's function: four equally right answers have
    advantages 0 without KL, and 1.44, -0.72, -0.13, -0.58 with a coefficient of 1e-3; 1e-2 gives
    the same.
    """
    return (
        s.kl_placement == "reward" and s.kl_reward_coefficient != 0 and s.scale_rewards == "group"
    )


@rule(
    "GK504",
    "warning",
    ("given", *KL),
    of=MS_SWIFT,
    blames=("kl_placement", "beta"),
    what="{kl_placement} is set",
    why="{beta}=0 computes no KL, so nothing reads it",
    instead="Set {beta} above 0, or leave it out.",
)
def the_place_of_the_penalty_is_read(s: Setting) -> bool:
    """``kl_in_reward`` sets the place of the KL term. With ``beta`` 0 there is none, and nothing
    reads the key.
    """
    return "kl_placement" in s.given and coefficient(s) == 0


@rule(
    "GL501",
    "warning",
    (*SIZES, "unsolved", "loss_type"),
    of=MS_SWIFT,
    blames=("loss_type", "steps_per_generation", "generation_batch_size"),
    why="it is divided by the tokens of a rollout of {steps} micro-steps, of which a step sums "
    "{accumulation}: "
    "gradients are {accumulation}/{steps} as large",
    instead="Set {gradient_accumulation_steps}={steps}, or {loss_type}=grpo.",
)
def the_loss_is_normalised_by_its_step(s: Setting) -> Finding:
    """The losses cispo, dapo and fipo divide by the tokens of the whole rollout, S micro-steps, but
    a step sums A of them.

    With S = k A gradients are 1/k as large (Adam hides most of it; clipping by norm and the logged
    loss do not). TRL 1.16 corrects by A / S. rlhf_trainers/grpo_trainer.py
    _undo_gradient_accumulation_scaling. Measured on a tiny model with dapo: gradient norm 1.35 with
    S = A = 4, 0.55 with S = 8.
    """
    if s.loss_type not in WINDOWED or not judgeable(s):
        return None
    steps = planning.micro_steps_per_generation(s)
    accumulation = s.gradient_accumulation_steps
    if steps > accumulation:
        return {"steps": steps, "accumulation": accumulation}
    return None


@rule(
    "GL502",
    "warning",
    ("vllm_importance_sampling_correction", *KL),
    of=MS_SWIFT,
    blames=("vllm_importance_sampling_mode", "beta"),
    why=(
        "its weights multiply the KL term as well as the policy's, so masked tokens have no "
        "penalty either"
    ),
    instead="Expect a weaker penalty than {beta=} says, or set {beta}=0.",
)
def the_correction_leaves_the_penalty_alone(s: Setting) -> bool:
    """The weights of ``rollout_importance_sampling_mode`` multiply the KL term too; in TRL only the
    policy's.

    rlhf_trainers/grpo_trainer.py: per_token_loss holds both when it is weighted.
    """
    return s.vllm_importance_sampling_correction and s.kl_placement == "loss" and s.beta != 0


@rule(
    "GL503",
    "error",
    ("loss_type", "version"),
    of=MS_SWIFT,
    blames=("loss_type",),
    why=(
        "ms-swift 4.4.0 to 4.6.0 treats every run as one with a teacher, and refuses this loss "
        "at its first step"
    ),
    instead="Set {loss_type}=grpo, or use another release.",
    to=({"loss_type": "grpo"},),
)
def the_loss_survives_its_first_step(s: Setting) -> bool:
    """The real and fipo losses fail at the first step of ms-swift 4.4.0 to 4.6.0, with or without a
    teacher.

    rlhf_trainers/rollout_mixin.py _setup_teacher takes every run without a teacher for
    self-distillation, and grpo_trainer.py then refuses these losses. Measured: "ValueError: OPD-RL
    (teacher) does not support loss_type='real'".
    """
    return s.loss_type in ("real", "fipo") and s.version >= TAKES_ALL_FOR_TAUGHT


rule(
    "GT501",
    "error",
    ("processes", "sequence_parallel_size"),
    "by trial",
    of=MS_SWIFT,
    title="sequences are shared by whole groups",
    text="""``sequence_parallel_size`` divides the processes, which are laid out as a mesh of data
    and sequence ranks.

    sequence_parallel/sequence_parallel.py _init_device_mesh: dp = world_size //
    sequence_parallel_size.
    """,
)(divides_the_processes("sequence_parallel_size", lambda size, _: range(size, 0, -1)))


@rule(
    "GT502",
    "error",
    (
        "given",
        "version",
        "keys",
        "use_vllm",
        "vllm_mode",
        "vllm_server_host",
        "vllm_server_base_url",
    ),
    of=MS_SWIFT,
)
def vllm_has_a_named_place(s: Setting) -> Violation | None:
    """With ``use_vllm`` there is a ``vllm_mode``, without it there is none; a server has an
    address.

    arguments/rlhf_args.py _init_rollout: "vllm_mode is required when use_vllm is true", "vllm_mode
    is not supported when use_vllm is false", and for a server an assertion without a message. In
    grposweep experiments the mode always has a value, which is written where it counts. Since
    3.11.1; before, the mode follows from the address. Megatron's back-end does not check it.
    """
    if (
        not s.given
        or s.version < PLACE_IS_CHECKED
        or s.key("per_device_train_batch_size") == "micro_batch_size"
    ):
        return None
    if s.use_vllm and not s.vllm_mode:
        what = f"{s.key('use_vllm')}=true"
        reason = f"{s.key('vllm_mode')} is not set, and has no default"
        changes: tuple[dict[str, object], ...] = ({"vllm_mode": "colocate"}, {"use_vllm": False})
    elif s.vllm_mode and not s.use_vllm:
        what = f"{s.key('vllm_mode')}={s.vllm_mode}"
        reason = f"{s.key('use_vllm')} is false, and ms-swift refuses the mode"
        changes = ({"vllm_mode": ""}, {"use_vllm": True})
    elif s.vllm_mode == "server" and not (s.vllm_server_host or s.vllm_server_base_url):
        what = f"{s.key('vllm_mode')}=server"
        reason = "the server has no address"
        changes = ({"vllm_server_host": "127.0.0.1"}, {"vllm_mode": "colocate"})
    else:
        return None
    return Violation(
        what,
        reason,
        f"Set {s.key('use_vllm')}=true and {s.key('vllm_mode')}=colocate, or leave both out.",
        ("use_vllm", "vllm_mode", "vllm_server_host"),
        changes,
    )


@rule(
    "GT503",
    "error",
    ("use_vllm", "processes", "visible_gpus", "launcher"),
    "by trial",
    of=MS_SWIFT,
    blames=("processes", "visible_gpus"),
    what="{s.visible_gpus} GPUs are visible to one process",
    why="ms-swift spreads the model over them (device_map), and refuses vLLM with that",
    instead="Set {processes}={s.visible_gpus}, or CUDA_VISIBLE_DEVICES to one of them.",
)
def vllm_has_a_process_a_gpu(s: Setting) -> bool:
    """One process that sees several GPUs spreads the model over them, which vLLM cannot share.

    arguments/rlhf_args.py _check_grpo: "GRPO with vLLM is not compatible with `device_map`. Please
    set NPROC_PER_NODE".
    """
    return s.use_vllm and (s.visible_gpus or 0) >= 2 and s.processes == 1


@rule(
    "GT504",
    "warning",
    ("use_vllm", "processes", "visible_gpus"),
    of=MS_SWIFT,
    blames=("processes", "visible_gpus"),
    what="{s.visible_gpus} GPUs are visible to one process",
    why="ms-swift spreads the layers over them, so they work one after the other, and W is 1",
    instead="Set {processes}={s.visible_gpus} for one process per GPU.",
)
def every_gpu_has_a_process(s: Setting) -> bool:
    """Without NPROC_PER_NODE `swift` starts one process and spreads the layers over its GPUs, so
    only one GPU works at a time.
    """
    return not s.use_vllm and (s.visible_gpus or 0) >= 2 and s.processes == 1
