"""What only ms-swift checks, or silently reads in its own way; codes 501 and above of each family.

Source: ms-swift 4.6.0, named file by file below; rules that it shares with TRL are in their families' files.
"""

from grposweep import plan
from grposweep.rules import process_counts as counts
from grposweep.rules.batch import SIZES, judgeable
from grposweep.rules.evaluation import evaluation_group
from grposweep.rules.registry import Violation, rule
from grposweep.setting import Setting

MS_SWIFT = frozenset({"ms-swift"})
WINDOWED = ("cispo", "dapo", "fipo")  # normalised by the tokens of a whole rollout
KL = ("beta", "kl_placement", "kl_reward_coefficient")


def coefficient(s: Setting) -> float:
    """``beta``, wherever it counts."""
    return s.kl_reward_coefficient if s.kl_placement == "reward" else s.beta


def _rollout_counts(s: Setting) -> int:
    if s.generation_batch_size is None or s.steps_per_generation is None or s.data_processes is not None:
        return counts.ALL
    per = s.per_device_train_batch_size * s.steps_per_generation
    if min(per, s.generation_batch_size, s.per_device_train_batch_size) < 1:
        return counts.ALL
    whole, rest = divmod(s.generation_batch_size, per)
    return counts.NONE if rest else counts.only(whole)


@rule("GB501", "error", SIZES, _rollout_counts, of=MS_SWIFT)
def the_two_sizes_of_a_rollout_agree(s: Setting) -> Violation | None:
    """``generation_batch_size`` and ``steps_per_generation`` may both be set, if the first is B W times the second.

    rlhf_trainers/args_mixin.py: "generation_batch_size (16) must equal per_device_train_batch_size * world_size *
    steps_per_generation = 32." TRL refuses the two together in any case.
    """
    total, steps = s.generation_batch_size, s.steps_per_generation
    if total is None or steps is None or s.processes is None or s.data_processes is not None:
        return None
    made = s.per_device_train_batch_size * s.processes * steps
    if total == made or min(total, steps, s.per_device_train_batch_size, s.processes) < 1:
        return None
    return Violation(
        what=f"{s.key('generation_batch_size')}={total}",
        why=f"{s.key('steps_per_generation')}={steps} makes {made} completions a rollout "
        f"({s.processes} x {s.per_device_train_batch_size} x {steps})",
        instead="Leave one of the two out.",
        fields=("generation_batch_size", "steps_per_generation"),
        suggestions=({"generation_batch_size": None}, {"steps_per_generation": None}),
    )


@rule("GB502", "warning", ("auto_find_batch_size",), of=MS_SWIFT)
def the_batch_does_not_shrink_in_ms_swift(s: Setting) -> Violation | None:
    """``auto_find_batch_size`` halves the batch when memory runs out, after which groups are no longer whole; unchecked.

    rlhf_trainers/arguments.py skips TRL's own checks, which refuse it since 1.9.
    """
    if not s.auto_find_batch_size:
        return None
    return Violation(
        what=f"{s.key('auto_find_batch_size')}=true",
        why="a batch that shrinks on out-of-memory no longer holds whole groups, and nothing says so",
        instead=f"Set {s.key('auto_find_batch_size')}=false, and a smaller {s.key('per_device_train_batch_size')}.",
        fields=("auto_find_batch_size",),
    )


EVALUATION = ("evaluates", "eval_prompts", "per_device_eval_batch_size", "num_generations", "num_generations_eval",
              "processes", "unsolved", "version")  # fmt: skip


def _sizes_of_evaluation(s: Setting) -> tuple[int, int] | None:
    """Completions of a held-out prompt and of an evaluation batch, where all is known and possible."""
    if not s.evaluates or not s.eval_prompts or not s.processes or "per_device_eval_batch_size" in s.unsolved:
        return None
    group, batch = evaluation_group(s), s.per_device_eval_batch_size * s.processes
    return None if min(group, batch, s.eval_prompts) < 1 else (group, batch)


@rule("GE501", "error", EVALUATION, lambda s: counts.by_trial(s, held_out_prompts_fill_a_batch), of=MS_SWIFT)
def held_out_prompts_fill_a_batch(s: Setting) -> Violation | None:
    """The held-out prompts fill one evaluation batch of all processes, B_eval W // G_eval prompts.

    rlhf_trainers/grpo_trainer.py, after the model is loaded: "eval_dataset size 1 is smaller than total_eval_batch_size 4."
    """
    sizes = _sizes_of_evaluation(s)
    if sizes is None or s.eval_prompts is None or s.eval_prompts >= (needed := sizes[1] // sizes[0]):
        return None
    return Violation(
        what=f"{s.eval_prompts} held-out prompts",
        why=f"an evaluation batch takes {needed}, and ms-swift wants one at least",
        instead="Hold more out, or choose smaller evaluation batches.",
        fields=("eval_prompts", "per_device_eval_batch_size"),
    )


@rule("GE502", "warning", EVALUATION, of=MS_SWIFT)
def held_out_prompts_are_whole_batches(s: Setting) -> Violation | None:
    """The last evaluation batch is dropped where it is not full: ms-swift always sets ``dataloader_drop_last``.

    rlhf_trainers/arguments.py GRPOConfig.__post_init__.
    """
    sizes = _sizes_of_evaluation(s)
    if sizes is None or s.eval_prompts is None or not (left := s.eval_prompts * sizes[0] % sizes[1]):
        return None
    if s.eval_prompts < sizes[1] // sizes[0]:
        return None
    return Violation(
        what=f"{s.key('per_device_eval_batch_size')}={s.per_device_eval_batch_size}",
        why=f"{-(-left // sizes[0])} of {s.eval_prompts} held-out prompts do not fill a batch, and are never scored",
        instead=f"Choose a size whose product with the processes divides {s.eval_prompts * sizes[0]}.",
        fields=("per_device_eval_batch_size",),
    )


@rule("GK501", "warning", ("sync_ref_model", "lora", *KL), of=MS_SWIFT)
def syncing_has_a_reference(s: Setting) -> Violation | None:
    """``sync_ref_model`` without a reference model of its own (``beta`` 0, or a tuner such as LoRA) does nothing, silently.

    rlhf_trainers/rollout_mixin.py SyncRefModelCallback returns where there is none. TRL refuses both since 0.28.
    """
    if not s.sync_ref_model or (coefficient(s) != 0 and not s.lora):
        return None
    reason = f"{s.key('beta')}=0" if coefficient(s) == 0 else "an adapter, under which the reference is the base model,"
    return Violation(
        what=f"{s.key('sync_ref_model')}=true",
        why=f"with {reason} there is no reference model to synchronise, and ms-swift does nothing without a word",
        instead=f"Set {s.key('sync_ref_model')}=false, or train all weights with a coefficient.",
        fields=("sync_ref_model", "lora", "beta"),
    )


@rule("GK502", "warning", ("given", "lora", *KL), of=MS_SWIFT)
def the_coefficient_was_meant_in_ms_swift(s: Setting) -> Violation | None:
    """An unset ``beta`` is 0.04: there is a KL penalty, and with full training a second model in memory.

    arguments/rlhf_args.py _init_grpo. TRL takes 0 and loads none.
    """
    if not s.given or {"beta", "kl_reward_coefficient"} & s.given or coefficient(s) == 0:
        return None
    model = "" if s.lora else " and loads a second model"
    return Violation(
        what=f"{s.key('beta')} is not set",
        why=f"ms-swift takes {coefficient(s):g}{model}, where TRL takes 0",
        instead=f"Write down which is meant: {s.key('beta')}={coefficient(s):g} or {s.key('beta')}=0.",
        fields=("beta",),
    )


@rule("GK503", "warning", ("scale_rewards", *KL), of=MS_SWIFT)
def a_penalty_in_the_reward_is_not_scaled_away(s: Setting) -> Violation | None:
    """KL in the reward is divided by the group's or batch's deviation with it: where rewards are equal, KL is all that counts.

    Whatever the coefficient. Measured on verl's own function: four equally right answers have advantages 0 without KL,
    and 1.44, -0.72, -0.13, -0.58 with a coefficient of 1e-3; 1e-2 gives the same.
    """
    if s.kl_placement != "reward" or s.kl_reward_coefficient == 0 or s.scale_rewards != "group":
        return None
    return Violation(
        what=f"{s.key('kl_placement')}=true",
        why=f"with {s.key('scale_rewards')}={s.scale_rewards} a group of equal rewards is ranked by KL alone, and the "
        "coefficient cancels out",
        instead=f"Set {s.key('scale_rewards')}=none, or {s.key('kl_placement')}=false.",
        fields=("kl_placement", "scale_rewards"),
    )


@rule("GK504", "warning", ("given", *KL), of=MS_SWIFT)
def the_place_of_the_penalty_is_read(s: Setting) -> Violation | None:
    """``kl_in_reward`` says where KL counts; with ``beta`` 0 there is none, and nothing reads it."""
    if "kl_placement" not in s.given or coefficient(s) != 0:
        return None
    return Violation(
        what=f"{s.key('kl_placement')} is set",
        why=f"{s.key('beta')}=0 computes no KL, so nothing reads it",
        instead=f"Set {s.key('beta')} above 0, or leave it out.",
        fields=("kl_placement", "beta"),
    )


@rule("GL501", "warning", (*SIZES, "unsolved", "loss_type"), of=MS_SWIFT)
def the_loss_is_normalised_by_its_step(s: Setting) -> Violation | None:
    """cispo, dapo and fipo divide by the tokens of the whole rollout, S micro-steps, but a step sums A of them.

    With S = k A gradients are 1/k as large (Adam hides most of it; clipping by norm and the logged loss do not). TRL 1.16
    corrects by A / S. rlhf_trainers/grpo_trainer.py _undo_gradient_accumulation_scaling. Measured on a tiny model with dapo:
    gradient norm 1.35 with S = A = 4, 0.55 with S = 8.
    """
    if s.loss_type not in WINDOWED or not judgeable(s):
        return None
    steps, accumulation = plan.micro_steps_per_generation(s), s.gradient_accumulation_steps
    if steps <= accumulation:
        return None
    return Violation(
        what=f"{s.key('loss_type')}={s.loss_type}",
        why=f"it is divided by the tokens of a rollout of {steps} micro-steps, of which a step sums {accumulation}: "
        f"gradients are {accumulation}/{steps} as large",
        instead=f"Set {s.key('gradient_accumulation_steps')}={steps}, or {s.key('loss_type')}=grpo.",
        fields=("loss_type", "steps_per_generation", "generation_batch_size"),
    )


@rule("GL502", "warning", ("vllm_importance_sampling_correction", *KL), of=MS_SWIFT)
def the_correction_leaves_the_penalty_alone(s: Setting) -> Violation | None:
    """The weights of ``rollout_importance_sampling_mode`` multiply the KL term too; in TRL only the policy's.

    rlhf_trainers/grpo_trainer.py: per_token_loss holds both when it is weighted.
    """
    if not s.vllm_importance_sampling_correction or s.kl_placement != "loss" or s.beta == 0:
        return None
    return Violation(
        what=f"{s.key('vllm_importance_sampling_mode')}={s.vllm_importance_sampling_mode}",
        why="its weights multiply the KL term as well as the policy's, so masked tokens have no penalty either",
        instead=f"Expect a weaker penalty than {s.key('beta')}={s.beta:g} says, or set {s.key('beta')}=0.",
        fields=("vllm_importance_sampling_mode", "beta"),
    )


@rule("GL503", "error", ("loss_type",), of=MS_SWIFT)
def the_loss_survives_its_first_step(s: Setting) -> Violation | None:
    """The real and fipo losses fail at the first step of ms-swift 4.6.0, with or without a teacher.

    rlhf_trainers/rollout_mixin.py _setup_teacher takes every run without a teacher for self-distillation, and grpo_trainer.py
    then refuses these losses. Measured: "ValueError: OPD-RL (teacher) does not support loss_type='real'".
    """
    if s.loss_type not in ("real", "fipo"):
        return None
    return Violation(
        what=f"{s.key('loss_type')}={s.loss_type}",
        why="ms-swift 4.6.0 takes every run for one with a teacher, and refuses this loss at its first step",
        instead=f"Set {s.key('loss_type')}=grpo, or use another release.",
        fields=("loss_type",),
        suggestions=({"loss_type": "grpo"},),
    )


def _divides(s: Setting) -> int:
    return counts.multiples(s.sequence_parallel_size) if s.sequence_parallel_size > 1 else counts.ALL


@rule("GT501", "error", ("processes", "sequence_parallel_size"), _divides, of=MS_SWIFT)
def sequences_are_shared_by_whole_groups(s: Setting) -> Violation | None:
    """``sequence_parallel_size`` divides the processes, which are laid out as a mesh of data and sequence ranks.

    sequence_parallel/sequence_parallel.py _init_device_mesh: dp = world_size // sequence_parallel_size.
    """
    size = s.sequence_parallel_size
    if s.processes is None or s.processes < 1 or size <= 1 or s.processes % size == 0:
        return None
    return Violation(
        what=f"{s.key('sequence_parallel_size')}={size}",
        why=f"it does not divide the {s.processes} training {'process' if s.processes == 1 else 'processes'}",
        instead=f"Choose a divisor of {s.processes}.",
        fields=("sequence_parallel_size", "processes"),
        suggestions=tuple({"sequence_parallel_size": n} for n in range(size, 0, -1) if s.processes % n == 0),
    )


@rule("GT502", "error", ("given", "use_vllm", "vllm_mode", "vllm_server_host", "vllm_server_base_url"), of=MS_SWIFT)
def vllm_has_a_named_place(s: Setting) -> Violation | None:
    """With ``use_vllm`` there is a ``vllm_mode``, without it there is none; a server has an address.

    arguments/rlhf_args.py _init_rollout: "vllm_mode is required when use_vllm is true", "vllm_mode is not supported when
    use_vllm is false", and for a server an assertion without words. In experiments of ours the mode always has a value, which
    is written where it counts.
    """
    if not s.given:
        return None
    if s.use_vllm and not s.vllm_mode:
        what, why = f"{s.key('use_vllm')}=true", f"{s.key('vllm_mode')} is not set, and has no default"
        changes: tuple[dict[str, object], ...] = ({"vllm_mode": "colocate"}, {"use_vllm": False})
    elif s.vllm_mode and not s.use_vllm:
        what, why = (
            f"{s.key('vllm_mode')}={s.vllm_mode}",
            f"{s.key('use_vllm')} is false, and ms-swift refuses the mode",
        )
        changes = ({"vllm_mode": ""}, {"use_vllm": True})
    elif s.vllm_mode == "server" and not (s.vllm_server_host or s.vllm_server_base_url):
        what, why = f"{s.key('vllm_mode')}=server", "the server has no address"
        changes = ({"vllm_server_host": "127.0.0.1"}, {"vllm_mode": "colocate"})
    else:
        return None
    return Violation(
        what=what,
        why=why,
        instead=f"Set {s.key('use_vllm')}=true and {s.key('vllm_mode')}=colocate, or leave both out.",
        fields=("use_vllm", "vllm_mode", "vllm_server_host"),
        suggestions=changes,
    )


@rule(
    "GT503",
    "error",
    ("use_vllm", "processes", "visible_gpus", "launcher"),
    lambda s: counts.by_trial(s, vllm_has_a_process_a_gpu),
    of=MS_SWIFT,
)
def vllm_has_a_process_a_gpu(s: Setting) -> Violation | None:
    """One process that sees several GPUs spreads the model over them, which vLLM cannot share.

    arguments/rlhf_args.py _check_grpo: "GRPO with vLLM is not compatible with `device_map`. Please set NPROC_PER_NODE".
    """
    if not s.use_vllm or s.visible_gpus is None or s.visible_gpus < 2 or s.processes != 1:
        return None
    return Violation(
        what=f"{s.visible_gpus} GPUs are visible to one process",
        why="ms-swift spreads the model over them (device_map), and refuses vLLM beside that",
        instead=f"Set {s.key('processes')}={s.visible_gpus}, or CUDA_VISIBLE_DEVICES to one of them.",
        fields=("processes", "visible_gpus"),
    )


@rule("GT504", "warning", ("use_vllm", "processes", "visible_gpus"), of=MS_SWIFT)
def every_gpu_has_a_process(s: Setting) -> Violation | None:
    """Without NPROC_PER_NODE `swift` starts one process, over whose GPUs the layers are spread: all but one always wait."""
    if s.use_vllm or s.visible_gpus is None or s.visible_gpus < 2 or s.processes != 1:
        return None
    return Violation(
        what=f"{s.visible_gpus} GPUs are visible to one process",
        why="ms-swift spreads the layers over them, so they work one after the other, and W is 1",
        instead=f"Set {s.key('processes')}={s.visible_gpus} for one process a GPU.",
        fields=("processes", "visible_gpus"),
    )
