"""The framework-neutral setting that plan and rules read. Needs neither Hydra nor Optuna nor torch.

Batch sizes count completions, as in TRL. ``None`` means unknown or unset, never a default in
disguise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from grporecipe.files import Config
from grporecipe.model.architecture import Architecture
from grporecipe.registries import NEWEST

Version = tuple[int, int, int]
# also the version that our trainer runs
TRL: Version = NEWEST["trl"]


@dataclass(frozen=True)
class FrameworkTraits:
    """The properties of a framework for plan and rules. `grporecipe.model.framework.Framework`
    holds the rest.

    ``name`` is its name in recipes and command lines, ``display_name`` that of its trainer.
    ``unit`` is the unit in which a rollout and a step are sized in; with prompts, lengths and
    frequencies count rollouts. ``syntax`` is that of a recipe's keys; dotted ones are overridden as
    ``a.b=c`` on a command line. ``follows_trl``: TRL itself trains, so its versions, keys and
    checks hold. ``extends_trl``: the trainer is built on TRL's, with its sampler and most of its
    checks.
    """

    name: str
    display_name: str
    unit: Literal["completions", "prompts"] = "completions"
    syntax: Literal["flat", "dotted"] = "flat"
    follows_trl: bool = False
    extends_trl: bool = False

    def name_of(self, release: str) -> str:
        """Return a release as users call it: ``TRL 0.18.0``, ``verl 0.5.0``, ``Unsloth on TRL
        0.24.0``.
        """
        on_trl = self.follows_trl and self.display_name != "TRL"
        return f"{self.display_name} {'on TRL ' * on_trl}{release}"

    @cached_property
    def labels(self) -> frozenset[str]:
        """The name and the traits, which the ``of`` of a rule names one or more of."""
        labels = {"every", self.name, self.unit, self.syntax}
        if self.follows_trl:
            labels.add("follows TRL")
        if self.follows_trl or self.extends_trl:
            labels.add("extends TRL")
        return frozenset(labels)


TRL_FRAMEWORK = FrameworkTraits("trl", "TRL", follows_trl=True)
# Traits that the ``of`` of a rule may name besides frameworks.
EVERY = frozenset({"every"})
TRL_FAMILY = frozenset({"follows TRL"})
TRL_LIKE = frozenset({"extends TRL"})
IN_PROMPTS = frozenset({"prompts"})
DOTTED = frozenset({"dotted"})


@dataclass(frozen=True)
class Runtime:
    """How a trainer holds its model, a micro-batch and vLLM in memory. The defaults are those of
    TRL 1.16.

    ``head`` is how logits are held in a backward pass: in "tiles", "whole" (float32 copies of those
    of completions), or "packed" (of all tokens, in half precision). ``packs``: sequences are
    concatenated without padding. Then a micro-batch has ``mean_tokens`` per sequence (None: the
    maximum), or is filled up to ``tokens_per_batch``, or (``fills``) up to the maximum of its
    sequences.
    ``flash``: attention without a mask and without repeated keys.

    ``offloads`` names what is kept in main memory while it is not used: "weights", "optimizer",
    "reference". It returns to the GPU for use unless ``computes_offloaded`` (DeepSpeed steps on the
    CPU). ``weight_bits`` are of quantized frozen weights (0: not quantized). ``upcasts``: FSDP
    keeps float32 shards of all trained weights (accelerate). ``saved_hidden`` counts the hidden
    states that checkpointing saves per layer. ``wakes_whole``: vLLM takes its whole share before it
    receives weights.
    ``eager``: vLLM captures no CUDA graphs. ``image_tokens`` are those of a sequence's images.
    """

    head: Literal["tiles", "whole", "packed"] = "tiles"
    has_entropy_loss: bool = False
    packs: bool = False
    fills: bool = False
    mean_tokens: int | None = None
    tokens_per_batch: int | None = None
    flash: bool = False
    offloads: frozenset[str] = frozenset()
    computes_offloaded: bool = False
    weight_bits: int = 0
    upcasts: bool = True
    saved_hidden: int = 1
    wakes_whole: bool = False
    eager: bool = False
    image_tokens: int = 0


OF_TRL = Runtime()


@dataclass(frozen=True)
class Row:
    """What is known of a field of the setting apart from its value.

    Args:
        native: a recipe may have a key for it. Otherwise it belongs to this project, or to the
            command that starts the recipe.
        option: null leaves it at TRL's value.
        judged: a rule reads it.
        needs: what it has no effect without (`grporecipe.model.effect`): ``use_vllm``,
            ``loss_type=sapo|vespo``, ``kl_controller!=fixed``, ``delta<1``; several; or one
            alternative or the other. ``moves`` is computed.
        of_trl: only trainers that are built on TRL's have these needs.

    """

    native: bool = True
    option: bool = False
    judged: bool = True
    needs: str = ""
    of_trl: bool = False


# needs: the loss that bounds the ratio itself, and those that clip it
CISPO, CLIPS = "loss_type=cispo", "loss_type!=cispo|sapo|vespo|real"
# which weighs by the ratio to vLLM's policy too
VESPO = "loss_type=vespo use_vllm or loss_type=vespo moves"


def row(default: Any = None, **metadata: Any) -> Any:
    """Declare a field of the setting with its default, and with what is known of it (`Row`)."""
    return field(default=default, metadata={"row": Row(**metadata)})


def internal(default: Any = None, **metadata: Any) -> Any:
    """Declare a field of this project, or of the command that starts the recipe."""
    return row(default, **{"native": False, **metadata})


def option(default: Any = None, **metadata: Any) -> Any:
    """Declare a field whose key in the sweep leaves it to TRL unless it is set."""
    return row(default, option=True, **metadata)


def provenance() -> Any:
    """Declare a mapping that describes where values come from; settings with other ones are
    equal.
    """
    return field(
        default_factory=dict, compare=False, hash=False, metadata={"row": Row(native=False)}
    )


@dataclass(frozen=True)
class Setting:
    """One recipe in TRL's terms, with the defaults of its version; each field is a row of the table
    `ROWS`.

    Sizes count completions unless the name says prompts.

    Frameworks that size a rollout and a step in prompts (EasyR1, verl) set ``prompts_per_rollout``
    and ``prompts_per_step``; ``plan.resize`` derives B, A, S and the completions of a rollout from
    these. Steps and frequencies are optimizer steps even if a framework counts rollouts.

    ``given`` names the fields that the user set (empty for a grposweep experiment, where every
    field is set). ``keys`` maps a field to the native key to edit, and ``lines`` to its line, for
    messages and fixes.
    """

    framework: FrameworkTraits = internal(TRL_FRAMEWORK)
    # of TRL, or of the framework
    version: Version = internal(TRL)
    given: frozenset[str] = internal(frozenset())
    # fields that only a run knows; no rule that reads one is judged
    unknown: frozenset[str] = frozenset()
    # topology
    processes: int | None = internal()
    tensor_parallel_size: int = 1
    sequence_parallel_size: int = 1
    context_parallel_size: int = 1
    # trl (its own command), accelerate, torchrun, python; None: not stated
    launcher: str | None = internal()
    # that one process sees, if known
    visible_gpus: int | None = internal()
    # ranks that a batch is split over, if fewer than the processes
    data_processes: int | None = None
    pipeline_parallel_size: int = 1
    # of a job of ours; None: not known
    nodes: int | None = internal()
    gpus_per_node: int | None = internal()
    # of the job's GPUs, those of a vLLM server: no training processes
    server_gpus: int = internal(0, needs="use_vllm")
    # of a vLLM server for several jobs
    shared_server_gpus: int = internal(0, needs="use_vllm")
    # a shell line that starts another server than TRL's
    server_command: str | None = internal(needs="use_vllm")
    # of a job on each node
    host_memory_gib: int | None = internal()
    # the batch
    num_generations: int = 8
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    # micro-steps; None: the accumulation
    steps_per_generation: int | None = None
    # Completions per rollout, global; None: follows from the others.
    generation_batch_size: int | None = None
    num_iterations: int = 1
    # as the user set it
    prompts_per_step: int | None = internal()
    # the same; None if the framework has no such key
    prompts_per_rollout: int | None = None
    # a rollout is generated in portions of this many prompts
    prompts_per_generation: int | None = None
    # completions a data rank and forward pass for log-probabilities
    experience_batch_size: int | None = None
    # the same for the reference
    reference_batch_size: int | None = None
    # FSDP keeps the weights in main memory
    offloads_parameters: bool = False
    # groups without variety are replaced by further ones
    filters_groups: bool = False
    # what shards the model, if a framework has several: fsdp, megatron
    engine: str | None = None
    # sequences are packed, as sequence parallelism needs them
    removes_padding: bool = True
    # Micro-batches are filled up to a number of tokens: B is an upper bound at best.
    dynamic_batching: bool = False
    # sizes left to the planner
    auto: frozenset[str] = internal(frozenset())
    # those of them that no value fits
    unsolved: frozenset[str] = internal(frozenset())
    # the planner's bound
    max_per_device_train_batch_size: int | None = internal()
    auto_find_batch_size: bool = False
    split_batches: bool = False
    # evaluation
    evaluates: bool = True
    do_eval: bool = False
    # no, steps, epoch; None: not stated
    eval_strategy: str | None = None
    # optimizer steps; below 1: a share
    eval_steps: float | None = None
    per_device_eval_batch_size: int = 8
    # None: num_generations
    num_generations_eval: int | None = None
    eval_prompts: int | None = internal()
    dataloader_drop_last: bool = False
    # data and schedule
    train_prompts: int | None = internal()
    # optimizer steps
    max_steps: int | None = None
    # the epochs bound max_steps; in TRL max_steps overrides them
    ends_with_epochs: bool = False
    # passes over the training prompts
    epochs: float | None = None
    budget_completions: int | None = internal()
    evaluations: int = internal(0)
    # one evaluation more, before the first step
    eval_at_start: bool = internal(False)
    checkpoints: int = internal(0)
    # optimizer steps; below 1: a share
    save_steps: float | None = None
    # no, steps, epoch, best; None: not stated
    save_strategy: str | None = None
    load_best_model_at_end: bool = False
    # KL

    # None if a framework has no such key
    kl_enabled: bool | None = internal()
    beta: float = 0.0
    use_bias_correction_kl: bool | None = row(needs="beta")
    sync_ref_model: bool = False
    ref_model_sync_steps: int = row(512, needs="sync_ref_model")
    ref_model_mixup_alpha: float = row(0.6, needs="sync_ref_model")
    # Loss, reward, both, none; beta is the coefficient in the loss.
    kl_placement: str = "loss"
    # In the loss: k1, abs, k2, k3, k1+, k3+, full; None: TRL's k3.
    kl_estimator: str | None = row(needs="beta")
    kl_reward_coefficient: float = 0.0
    kl_reward_estimator: str | None = row(needs="kl_reward_coefficient")
    # or adaptive, of the coefficient in the reward
    kl_controller: str = row("fixed", needs="kl_reward_coefficient")
    kl_horizon: float | None = row(needs="kl_controller!=fixed kl_reward_coefficient")
    kl_target: float | None = row(needs="kl_controller!=fixed kl_reward_coefficient")
    # None: loaded if beta is not 0, as in TRL
    loads_reference: bool | None = None
    # a teacher model gives all or part of the signal
    distils: bool = False
    # loss
    advantage_estimator: str = "grpo"
    loss_type: str = "dapo"
    # Over what the loss is averaged, if a framework sets this apart from the loss.
    loss_average: str | None = None
    epsilon: float = row(0.2, of_trl=True, needs=f"{CISPO} epsilon_high=None or {CLIPS} moves")
    epsilon_high: float | None = row(
        of_trl=True, needs=f"{CISPO} epsilon_high<1 or {CISPO} moves or {CLIPS} moves"
    )
    # TRL's two-sided clip, which is the dual clip of EasyR1 and verl
    delta: float | None = row(of_trl=True, needs=f"{CLIPS} delta<1 or {CLIPS} moves")
    scale_rewards: str = "group"
    importance_sampling_level: str = "token"
    mask_truncated_completions: bool = False
    # of a bonus in the loss for the entropy of tokens
    entropy_coef: float | None = option(judged=False)
    use_adaptive_entropy: bool | None = option(judged=False)
    entropy_coef_min: float | None = option(judged=False, needs="use_adaptive_entropy")
    entropy_coef_max: float | None = option(judged=False, needs="use_adaptive_entropy")
    entropy_coef_delta: float | None = option(judged=False, needs="use_adaptive_entropy")
    # nats per token
    entropy_target: float | None = option(judged=False, needs="use_adaptive_entropy")
    # The share of tokens that count, highest entropy first.
    top_entropy_quantile: float | None = option(judged=False)
    off_policy_mask_threshold: float | None = option(judged=False)
    sapo_temperature_neg: float | None = option(judged=False, needs="loss_type=sapo moves")
    sapo_temperature_pos: float | None = option(judged=False, needs="loss_type=sapo moves")
    vespo_k_pos: float | None = option(judged=False, needs=VESPO)
    vespo_lambda_pos: float | None = option(judged=False, needs=VESPO)
    vespo_k_neg: float | None = option(judged=False, needs=VESPO)
    vespo_lambda_neg: float | None = option(judged=False, needs=VESPO)
    multi_objective_aggregation: str = option("sum_then_normalize")
    # number of reward functions
    rewards: int | None = None
    # number of weights
    reward_weights: int | None = None
    use_liger_kernel: bool = False
    # optimizer
    learning_rate: float = 1e-6
    lr_scheduler_type: str = "linear"
    # below 1: a share of all optimizer steps
    warmup_steps: float = row(
        0.0, of_trl=True, needs="lr_scheduler_type!=constant|reduce_lr_on_plateau|greedy"
    )
    # of the peak, where the schedule ends
    minimum_learning_rate_ratio: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    optim: str | None = None
    adam_beta1: float | None = None
    adam_beta2: float | None = None
    adam_epsilon: float | None = None
    seed: int | None = None
    # model and data
    model_name_or_path: str | None = None
    # a hub id or a path
    dataset_name: str | None = None
    # The same for held-out data, if named separately.
    eval_dataset_name: str | None = internal()
    # weights of the model, if known
    parameters: int | None = None
    lora: bool = False
    lora_rank: int = row(16, needs="lora")
    # updates are scaled by alpha / rank
    lora_alpha: float = row(32.0, needs="lora")
    # the share of an adapter's inputs that is dropped
    lora_dropout: float = row(0.0, needs="lora")
    # Modules; none: PEFT chooses by the model.
    lora_targets: tuple[str, ...] = row(("all-linear",), needs="lora")
    # While they are stored between steps; float32 masters of ZeRO and FSDP do not count.
    weights_dtype: str = internal("float32")
    # of matrix products, where autocast makes it another than the weights'
    autocast_dtype: str | None = internal()
    # if its shape is known
    architecture: Architecture | None = internal()
    # of its tokenizer, once preparation has looked
    has_chat_template: bool | None = internal()
    # whether prompts are conversations; None: not known
    chat: bool | None = internal()
    # of the longest prompt, if counted
    prompt_tokens: int | None = internal()
    gradient_checkpointing: bool = False
    # the GPU

    # none, zero1, zero2, zero3, fsdp
    sharding: str = internal("none")
    # FSDP's whole model in main memory; None: only with a reference model.
    loads_on_every_rank: bool | None = internal(True)
    # the GPUs' name
    gpu: str | None = internal()
    # that a trial may use of each GPU
    gpu_memory_gib: float | None = internal()
    # that share a GPU
    gpu_trials: int = 1
    # how memory is used
    runtime: Runtime = internal(OF_TRL)
    # By which measured peaks correct the estimate of a phase.
    memory_factors: tuple[tuple[str, float], ...] = internal(())
    # generation
    temperature: float = 1.0
    top_p: float | None = None
    # 0: all
    top_k: int | None = None
    min_p: float | None = option()
    repetition_penalty: float | None = option()
    # JSON
    generation_kwargs: str | None = option()
    # tokens
    max_prompt_length: int | None = None
    # tokens
    max_completion_length: int = 256
    use_vllm: bool = False
    vllm_mode: str = row("colocate", needs="use_vllm")
    vllm_tensor_parallel_size: int = row(1, needs="use_vllm vllm_mode!=server")
    # that vLLM takes at once
    max_batched_tokens: int | None = None
    # None: TRL's default
    vllm_gpu_memory_utilization: float | None = row(needs="use_vllm vllm_mode!=server")
    vllm_max_model_length: int | None = row(needs="use_vllm vllm_mode!=server")
    # vLLM frees its memory while nothing is generated
    vllm_enable_sleep_mode: bool = option(False, needs="use_vllm")
    vllm_server_base_url: str | None = row(needs="use_vllm vllm_mode=server")
    vllm_server_host: str | None = row(needs="use_vllm vllm_mode=server")
    vllm_server_port: int | None = row(needs="use_vllm vllm_mode=server")
    vllm_importance_sampling_correction: bool = option(True, needs="use_vllm")
    vllm_importance_sampling_mode: str = option(
        "sequence_mask", needs="use_vllm vllm_importance_sampling_correction"
    )
    vllm_importance_sampling_clip_min: float | None = option(
        needs="use_vllm vllm_importance_sampling_correction"
    )
    vllm_importance_sampling_clip_max: float | None = option(
        3.0, needs="use_vllm vllm_importance_sampling_correction"
    )
    # logging
    log_completions: bool = False
    log_completions_hub_repo: str | None = None
    keys: Mapping[str, str] = provenance()
    lines: Mapping[str, int] = provenance()

    @property
    def trainer(self) -> str:
        """The trainer's name; Open-R1's is TRL's."""
        return self.framework.display_name

    def key(self, name: str) -> str:
        """Return the native key of a field, or the field's name if the recipe has no key for it."""
        return self.keys.get(name, name)

    def replace(self, changes: Config) -> "Setting":
        """Return a copy with other values; ten times faster than ``dataclasses.replace``: spaces
        have thousands of points.
        """
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(changes)
        return copy


# The table of fields, in the order of the setting.
ROWS: Mapping[str, Row] = {each.name: each.metadata.get("row", Row()) for each in fields(Setting)}
OPTIONS = tuple(name for name, known in ROWS.items() if known.option)
