"""Every key a person may set, with its type, unit and default; one dataclass a Hydra group.

Batch words are TRL's and count completions, unless the name says prompts.
"""

from dataclasses import dataclass, field
from typing import Any

# Hydra's ConfigStore needs plain (unfrozen) dataclasses: frozen ones fail as schemas in Hydra 1.3.

AUTO = "auto"
# Keys of a section that a trial's identity and its config.yaml leave out while they are not set (null, or empty): they came
# later than sweeps that are recorded, and earlier versions do not know them.
UNSET = {
    "loss": (
        "entropy_coef", "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta",
        "entropy_target", "top_entropy_quantile", "off_policy_mask_threshold", "sapo_temperature_neg", "sapo_temperature_pos",
        "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "multi_objective_aggregation",
    ),
    "generation": (
        "min_p", "repetition_penalty", "generation_kwargs", "vllm_enable_sleep_mode", "vllm_importance_sampling_correction",
        "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max",
    ),
    "trainer": ("args",),
}  # fmt: skip
AUTO_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size")  # of Batch
OWN_TRAINERS = ("trl", "fake")  # values of trainer.kind; all others are external programs
GPU_HOURS = "gpu_hours"  # the objective that is what a trial cost; all others are metrics of its evaluations
# A value has one key, which all code reads. An alias is a shorter key at the root that users type; the group refers to it.
ALIASES = {"optimizer.learning_rate": "lr"}


@dataclass
class Shape:
    """The model's architecture, so that lint and plan need no download. ``parameters`` counts all weights.

    ``head_dim`` is the width of an attention head (0: hidden / heads), ``model_type`` transformers' word for how its layers
    are built: llama, mistral, qwen2, qwen3, gemma, gemma3_text.
    """

    parameters: int = 0
    layers: int = 0
    hidden: int = 0
    intermediate: int = 0
    heads: int = 0
    kv_heads: int = 0
    vocabulary: int = 0
    tied_embeddings: bool = True
    head_dim: int = 0
    model_type: str = "llama"


@dataclass
class Lora:
    """Low-rank adapters (peft); ``target_modules`` as peft takes it, ``all-linear`` for every linear layer."""

    enabled: bool = False
    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])


@dataclass
class Model:
    """What is trained: ``path`` is a hub id, a local folder, or ``embedded`` for the tiny model made on the spot.

    ``dtype`` is the type of the weights: float32, bfloat16, float16 (with LoRA and fp16 only), or auto: float32 for weights that
    are trained, the type of the mixed precision for those under an adapter. ``mixed_precision`` is bf16, fp16 (GPUs older than
    Ampere) or none; null is what ``dtype`` implies (bfloat16: bf16, float32: none, auto: bf16). Without a GPU all is float32.
    ``tf32`` lets float32 products use TensorFloat-32 (null: as torch is set). ``quantization`` (4bit, 8bit) is bitsandbytes' of
    the frozen weights under LoRA (QLoRA).

    ``attn_implementation`` (null: transformers chooses), ``trust_remote_code`` and ``use_kernels`` (kernels of the hub) are
    from_pretrained's, ``chat_template_kwargs`` variables of the tokenizer's chat template.
    """

    path: str = "embedded"
    revision: str | None = None
    dtype: str = "float32"
    mixed_precision: str | None = None
    tf32: bool | None = None
    quantization: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    use_kernels: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    gradient_checkpointing: bool = False
    lora: Lora = field(default_factory=Lora)
    shape: Shape = field(default_factory=Shape)


@dataclass
class Task:
    """Prompts, their answers, and what a completion earns.

    ``rewards`` are names of built-in rewards, ``package.module:function`` or ``path/to/file.py:function``.
    ``train_prompts`` limits the training prompts (null: all); ``eval_prompts`` are held out, never trained on. The options of
    batch take ``eval_generations`` as ``batch.num_generations_eval``: how often an evaluation answers each of them.
    """

    kind: str = "arithmetic"
    path: str | None = None
    subset: str | None = None
    train_split: str = "train"
    eval_split: str | None = None
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    system_prompt: str | None = None
    chat: bool = False
    rewards: list[str] = field(default_factory=lambda: ["exact"])
    reward_weights: list[float] | None = None
    train_prompts: int | None = None
    eval_prompts: int = 256
    eval_generations: int = 8
    max_completion_length: int = 256


@dataclass
class Batch:
    """TRL's batch fields in completions; sizes the hardware sees may be ``auto`` where ``prompts_per_step`` is given.

    ``steps_per_generation`` counts micro-steps and defaults to the accumulation, as in TRL.
    ``max_per_device_train_batch_size`` bounds what ``auto`` may choose. ``num_generations_eval`` is the same for all points, so
    that their objectives are measured alike (null: TRL's default, ``num_generations``).
    """

    num_generations: int = 8
    prompts_per_step: int | None = None
    per_device_train_batch_size: int | str = AUTO
    gradient_accumulation_steps: int | str = AUTO
    steps_per_generation: int | None = None
    num_iterations: int = 1
    max_per_device_train_batch_size: int = 64
    per_device_eval_batch_size: int | str = AUTO
    num_generations_eval: int | None = 8


@dataclass
class Kl:
    """The KL penalty against a reference model; ``enabled`` says what was meant, ``beta`` what TRL is told."""

    enabled: bool = False
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    sync_ref_model: bool = False
    ref_model_sync_steps: int = 512
    ref_model_mixup_alpha: float = 0.6


@dataclass
class Optimizer:
    """AdamW and its schedule; ``warmup_steps`` below 1 is a share of all optimizer steps, otherwise a count."""

    learning_rate: float = 1e-6
    optim: str = "adamw_torch"
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "constant"
    warmup_steps: float = 0.0


@dataclass
class Loss:
    """TRL's GRPO loss and its options, under TRL's names. Null leaves an option to TRL, and out of a trial's identity.

    ``entropy_coef`` weighs a bonus for the mean entropy of a token. With ``use_adaptive_entropy`` it moves each optimizer step
    by ``entropy_coef_delta``, between ``entropy_coef_min`` and ``entropy_coef_max``, towards ``entropy_target`` (nats a token).
    ``top_entropy_quantile`` is the share of tokens, highest entropy first, that the loss counts (0 to 1).
    ``off_policy_mask_threshold`` leaves out sequences with a negative advantage that are further off-policy (nats a token).
    The sapo loss has two temperatures, vespo two exponents and two decays, for tokens or sequences with a positive and a
    negative advantage. The cispo loss clips its weights at ``epsilon_high``. ``multi_objective_aggregation`` says whether
    several rewards are summed before they are normalised (``sum_then_normalize``) or after (``normalize_then_sum``).
    """

    loss_type: str = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    scale_rewards: str = "group"
    importance_sampling_level: str = "token"
    mask_truncated_completions: bool = False
    entropy_coef: float | None = None
    use_adaptive_entropy: bool | None = None
    entropy_coef_min: float | None = None
    entropy_coef_max: float | None = None
    entropy_coef_delta: float | None = None
    entropy_target: float | None = None
    top_entropy_quantile: float | None = None
    off_policy_mask_threshold: float | None = None
    sapo_temperature_neg: float | None = None
    sapo_temperature_pos: float | None = None
    vespo_k_pos: float | None = None
    vespo_lambda_pos: float | None = None
    vespo_k_neg: float | None = None
    vespo_lambda_neg: float | None = None
    multi_objective_aggregation: str | None = None


@dataclass
class Schedule:
    """How long a trial trains: exactly one of a budget in generated completions, optimizer steps, or epochs.

    ``evaluations`` and ``checkpoints`` are counts, spread evenly over the run and placed on optimizer steps
    (checkpoints on rollout boundaries, where TRL can resume exactly). Besides these there is a checkpoint at the first
    boundary after ``checkpoint_minutes`` without one (null: none; with ``trainer.keep=all``, which keeps every one, none).
    """

    budget_completions: int | None = None
    max_steps: int | None = None
    epochs: float | None = None
    evaluations: int = 4
    eval_at_start: bool = True
    checkpoints: int = 2
    checkpoint_minutes: float | None = 30.0


@dataclass
class Generation:
    """How completions are sampled, and by whom; the length is the task's unless set here (tokens).

    ``vllm_max_model_length`` bounds a sequence in tokens (null: the longest prompt that preparation found, and a completion).
    ``min_p`` (0 to 1) is the least probability of a token, relative to the likeliest; ``generation_kwargs`` are handed on to
    transformers' GenerationConfig, or to vLLM's SamplingParams. ``vllm_importance_sampling_correction`` weighs tokens by how
    far the trainer's probabilities are from vLLM's; its ``mode`` cuts ratios (or leaves tokens or sequences out) outside of
    ``clip_min`` and ``clip_max`` (``inf``: no upper bound). ``vllm_enable_sleep_mode`` has a colocated engine give its memory
    back during optimizer steps. Null leaves each of these to TRL, and out of a trial's identity.
    With ``use_vllm`` vLLM generates: ``colocate`` in the training processes, ``server`` apart from them. ``vllm_gpus`` of a
    Slurm job's GPUs run a server of its own (of several nodes the last one whole), or on this machine as many more than the
    trial's ranks; they are no training ranks. ``vllm_server_base_url`` is a server that runs already,
    ``vllm_server_command`` a shell line that starts another one than TRL's, on port $GRPOSWEEP_VLLM_PORT.
    ``vllm_server_args`` are further options of TRL's (``vllm serve``). It has ``vllm_server_timeout`` seconds to answer.
    """

    max_completion_length: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float | None = None
    generation_kwargs: dict[str, Any] = field(default_factory=dict)
    use_vllm: bool = False
    vllm_mode: str = "colocate"
    vllm_tensor_parallel_size: int = 1
    vllm_gpu_memory_utilization: float = 0.3
    vllm_max_model_length: int | None = None
    vllm_enable_sleep_mode: bool | None = None
    vllm_importance_sampling_correction: bool | None = None
    vllm_importance_sampling_mode: str | None = None
    vllm_importance_sampling_clip_min: float | None = None
    vllm_importance_sampling_clip_max: float | None = None
    vllm_gpus: int = 0
    vllm_server_base_url: str | None = None
    vllm_server_command: str | None = None
    vllm_server_args: list[str] = field(default_factory=list)
    vllm_server_timeout: int = 600


@dataclass
class Fake:
    """The fake trainer's script, for tests of search, launching and failure: a known optimum and staged faults."""

    best_lr: float = 1e-3
    noise: float = 0.0
    step_seconds: float = 0.0
    crash_at: int | None = None
    crash_above_lr: float | None = None
    hang_at: int | None = None
    oom_above: int | None = None


@dataclass
class Trainer:
    """Which trainer runs an attempt and what it keeps.

    ``keep``: ``last`` every trial's last checkpoint, ``best`` only the winner's model, ``all`` every checkpoint, ``none``.
    ``sharding`` divides optimizer states (``zero1``), gradients as well (``zero2``) and weights as well (``zero3`` by
    DeepSpeed, ``fsdp`` by torch) among a trial's ranks. ``compile`` runs the model through torch.compile.
    ``offload`` keeps optimizer states (``optimizer``, ZeRO) or weights as well (``all``, ZeRO-3 and FSDP) in main memory.
    ``deepspeed_config`` is a file of DeepSpeed's own configuration (JSON) to use instead of ours, ``fsdp_config`` are options of
    FSDP under transformers' names, on top of ours.
    ``args`` are further keys of TRL's GRPOConfig, by name (``trainer.args.disable_dropout=true``): those that have no key here.

    The rest is for trainers that are programs of their own. ``recipe`` is a native recipe to start from (YAML, or a script
    that launches one): parameters override it, what no parameter touches stays. ``python`` is the interpreter of the program's
    environment (null: this one), ``workdir`` the folder it runs in (null: this one), ``arguments`` come last on its
    command line, ``environment`` is added to its own. ``script`` is the training script of ``trainer=script``; ``takes``
    says how it gets its recipe: ``config`` (``--config FILE``, as TrlParser reads it) or ``flags`` (HfArgumentParser);
    ``launcher`` is accelerate, torchrun, python, or ``auto``: accelerate where it has ``launch_arguments`` (such as
    ``--config_file``), torchrun for several processes, python for one.
    """

    kind: str = "trl"
    keep: str = "best"
    log_completions: bool = False
    sharding: str = "none"
    compile: bool = False
    args: dict[str, Any] = field(default_factory=dict)
    offload: str = "none"
    deepspeed_config: str | None = None
    fsdp_config: dict[str, Any] = field(default_factory=dict)
    fake: Fake = field(default_factory=Fake)
    recipe: str | None = None
    python: str | None = None
    workdir: str | None = None
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    script: str | None = None
    takes: str = "config"
    launcher: str = AUTO
    launch_arguments: list[str] = field(default_factory=list)


@dataclass
class Cluster:
    """Where attempts run: ``processes`` training ranks a trial, ``threads`` CPU threads a rank.

    An attempt that shows no sign of life for ``stall_min`` minutes (null: never) is ended, and tried once more.
    ``gpus`` are this machine's to divide among trials that run at once. ``auto`` takes those in CUDA_VISIBLE_DEVICES, or
    without that variable those on which no other process holds memory.
    ``gpu`` names what GPUs are (A100, H100, RTX 4090, ...), or ``gpu_memory_gib`` says how much memory one has: points
    that do not fit are then pruned. ``environment`` has variables for attempts and preparation, which must not change what
    is learned (NCCL_SOCKET_IFNAME, HF_HOME, ...): they are no part of a trial's identity.
    The rest is for Slurm. ``nodes``, ``gpus_per_node``, ``cpus_per_gpu`` and ``mem_gb`` (GiB a node) are a job's shape;
    without GPUs ``tasks_per_node`` ranks run on each node, with ``threads`` CPUs each. ``walltime_min`` is a job's time
    limit in minutes, ``max_jobs`` how many of a sweep's are in the queue at once. ``setup`` are shell lines run before
    training, ``container`` srun's flags for one, ``extra`` sbatch's further options, ``python`` the interpreter there
    (null: the one that submits; several words start it in a container). ``gres_type`` is the type of GPU that the job asks
    for (--gres=gpu:TYPE:N). ``warn_seconds`` before its end a job is asked to stop at a rollout boundary (null: a tenth of
    ``walltime_min``, 60 to 600; 120 without it): a rollout, an optimizer step and a checkpoint must fit.
    ``requeue_limit`` is how often a trial may be taken away; ``poll_seconds`` is how often the queue is read.
    ``service_partition``, ``service_account``, ``service_qos`` and ``service_mem_gb`` are for the jobs that do not train
    (``controller=job``, ``prepare=job``); null: as the trials' jobs.
    ``controller`` works ``here`` (in the foreground) or as a ``job`` of one CPU; ``prepare`` says where models and data are
    looked for and downloaded; ``snapshot`` keeps a copy of the code in the sweep folder, which the jobs run; ``code`` is
    a folder whose grposweep attempts run instead (null: that copy, or on this machine the code as it is).
    ``ray_timeout`` seconds are what the nodes of a job have to join its Ray cluster (EasyR1 and verl on several nodes).
    """

    kind: str = "local"
    processes: int = 1
    threads: int = 1
    warm: bool = True
    gpus: int | str = AUTO
    gpu: str | None = None
    gpu_memory_gib: float | None = None
    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int = 1
    cpus_per_gpu: int = 1
    mem_gb: int | None = None
    walltime_min: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    max_jobs: int = 8
    setup: list[str] = field(default_factory=list)
    container: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    python: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    gres_type: str | None = None
    service_partition: str | None = None
    service_account: str | None = None
    service_qos: str | None = None
    service_mem_gb: int | None = None
    warn_seconds: int | None = None
    requeue_limit: int = 20
    controller: str = "here"
    prepare: str = "here"
    snapshot: bool = True
    code: str | None = None
    poll_seconds: float = 30.0
    stall_min: float | None = 30.0
    ray_timeout: int = 300


@dataclass
class Search:
    """How points are chosen: ``sampler`` auto|grid|one_factor|tpe|random|gp, ``trials`` counts started trials.

    ``budget_gpu_hours`` is what all trials together may cost: once it is spent, none is started (what runs goes on). A
    job's GPUs count while its ranks run, those of a vLLM server too; a rank without a GPU counts as one.
    ``parallel`` bounds the trials that run at once (null: as many as this machine's GPUs suffice for, one
    without a GPU; ``cluster.max_jobs`` on Slurm).
    The objective is the mean of ``metric`` over the last ``last`` evaluations. Lists of metrics and directions are several
    objectives (``gpu_hours`` is what a trial costs); all but the first are kept in ``further``, name to direction.
    ``seeds`` is on how many fresh seeds the best ``leaders`` of the search are evaluated again (0: none, otherwise two or
    more); who is clearly worse drops out on the way, and the winner is chosen on these seeds alone. Under
    ``one_factor`` every point runs on that many seeds, the search's own among them.
    ``storage`` is the URL of a database (any that Optuna takes) that a copy of the study is kept in, under the sweep's name.
    ``enqueue`` holds points to try first, each a mapping from parameter to value.
    ``warm_start`` names earlier sweeps (one, or a list of names and paths): their best points are tried first, and their
    results tell the sampler where the space, the objective and the training are the same.
    ``guards`` end a trial whose training has collapsed. ``stopping`` none|median|asha|hyperband|curve ends or pauses trials that
    promise less than others; ``auto`` decides by the sampler (a grid's trials all run to their end).
    ``on_end`` is a shell line that is run once when the sweep ends (not on Ctrl-C), with how it ended in its environment:
    $GRPOSWEEP_SWEEP (folder), $GRPOSWEEP_STATUS (finished, failed, stopped, budget), $GRPOSWEEP_METRIC, $GRPOSWEEP_BEST_TRIAL
    and $GRPOSWEEP_OBJECTIVE.
    """

    sampler: str = AUTO
    trials: int | None = None
    budget_gpu_hours: float | None = None
    parallel: int | None = None
    seed: int = 0
    seeds: int = 0
    leaders: int = 4
    enqueue: list[dict[str, Any]] = field(default_factory=list)
    warm_start: Any = None
    storage: str | None = None
    metric: Any = "eval_reward"
    direction: Any = "maximize"
    further: dict[str, str] = field(default_factory=dict)
    last: int = 1
    guards: bool = True
    stopping: str = AUTO
    on_end: str | None = None


@dataclass
class Tracker:
    """Where runs are logged besides ``metrics.jsonl``: ``none``, ``wandb`` or ``tensorboard`` (TRL's own files).

    W&B has one run a trial, the sweep as its group; ``project``, ``entity``, ``mode`` (offline, online, disabled) and ``tags``
    are W&B's words. ``grposweep sync`` sends what was kept offline.
    """

    kind: str = "none"
    project: str = "grposweep"
    entity: str | None = None
    mode: str = "offline"
    tags: list[str] = field(default_factory=list)


@dataclass
class Rules:
    """Rule codes to switch off, visibly."""

    ignore: list[str] = field(default_factory=list)


@dataclass
class Experiment:
    """One resolved configuration: the parameters at the root, then one section a group.

    ``lr`` is the learning rate (``optimizer.learning_rate`` refers to it), ``seed`` that of data, model and sampling. ``name`` is
    the folder below ``outputs`` (null: a readable identity of its own); ``force`` runs a recorded single run again.
    ``verbose`` (or the flag ``-v``) also shows the controller's log on the terminal.
    """

    lr: float = 3e-4
    seed: int = 0
    name: str | None = None
    force: bool = False
    verbose: bool = False
    outputs: str = "outputs"
    model: Model = field(default_factory=Model)
    task: Task = field(default_factory=Task)
    batch: Batch = field(default_factory=Batch)
    optimizer: Optimizer = field(default_factory=Optimizer)
    kl: Kl = field(default_factory=Kl)
    loss: Loss = field(default_factory=Loss)
    schedule: Schedule = field(default_factory=Schedule)
    generation: Generation = field(default_factory=Generation)
    trainer: Trainer = field(default_factory=Trainer)
    cluster: Cluster = field(default_factory=Cluster)
    search: Search = field(default_factory=Search)
    tracker: Tracker = field(default_factory=Tracker)
    rules: Rules = field(default_factory=Rules)


GROUPS = (
    "model", "task", "batch", "optimizer", "kl", "loss", "schedule",
    "generation", "trainer", "cluster", "search", "tracker", "debug",
)  # fmt: skip


def is_external(kind: str) -> bool:
    """Return whether a ``trainer.kind`` is an external program, which starts its own ranks."""
    return kind not in OWN_TRAINERS


def value_at(experiment: Experiment, key: str) -> Any:
    """Return the value of a dotted key."""
    value: Any = experiment
    for part in key.split("."):
        value = getattr(value, part)
    return value


def drop_unset(content: dict[str, Any]) -> None:
    """Remove keys of `UNSET` that are not set from the sections of an experiment."""
    for section, names in UNSET.items():
        for name in names:
            if content[section][name] in (None, {}):
                del content[section][name]
