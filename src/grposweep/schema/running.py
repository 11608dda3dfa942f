"""Configuration groups of how trials run: trainer, cluster, search, tracker and rules."""

from dataclasses import dataclass, field
from typing import Any

from grposweep.schema.learning import AUTO


@dataclass
class Fake:
    """The fake trainer's behaviour, for tests of search, launching and failure: a known optimum and staged faults."""

    best_lr: float = 1e-3
    noise: float = 0.0
    step_seconds: float = 0.0
    crash_at: int | None = None
    crash_above_lr: float | None = None
    hang_at: int | None = None
    oom_above: int | None = None


@dataclass
class Trainer:
    """The trainer of an attempt, and what it keeps.

    ``keep``: ``last`` keeps every trial's last checkpoint, ``best`` only the winner's model, ``all`` every checkpoint, ``none``
    none. ``sharding`` divides optimizer states (``zero1``), gradients as well (``zero2``) and weights as well (``zero3`` by
    DeepSpeed, ``fsdp`` by torch) among a trial's ranks. ``compile`` runs the model through torch.compile. ``offload`` keeps
    optimizer states (``optimizer``, ZeRO) or weights as well (``all``, ZeRO-3 and FSDP) in main memory. ``deepspeed_config`` is
    a DeepSpeed configuration file (JSON) to use instead of the built-in one. ``fsdp_config`` are options of FSDP under
    transformers' names, added to the built-in ones. ``fork`` is the hash of the checkpoint that a trial starts from; 'grposweep
    fork' sets it (null: the start of a training). ``args`` are further keys of TRL's GRPOConfig, by name
    (``trainer.args.disable_dropout=true``): those that have no key here. For a script they are further keys of its recipe, or
    options that it declares itself.

    The rest is for trainers that are external programs. ``recipe`` is a native recipe to start from (YAML, or a script
    that launches one): parameters override its keys, and all other keys stay. ``python`` is the interpreter of the program's
    environment (null: this one), ``workdir`` the folder it runs in (null: the current one), ``arguments`` come last on its
    command line, ``environment`` is added to its own. ``script`` is the training script of ``trainer=script``; ``takes``
    sets how it gets its recipe: ``config`` (``--config FILE``, as TrlParser reads it) or ``flags`` (HfArgumentParser);
    ``launcher`` is accelerate, torchrun, python, or ``auto``: accelerate if it has ``launch_arguments`` (such as
    ``--config_file``), torchrun for several processes, python for one.
    """

    kind: str = "trl"
    keep: str = "best"
    log_completions: bool = False
    sharding: str = field(default="none", metadata={"setting": "sharding"})
    compile: bool = False
    fork: str | None = None
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
    """Where attempts run: ``processes`` training ranks per trial, ``threads`` CPU threads per rank.

    An attempt without a sign of life for ``stall_min`` minutes (null: never) is ended, and tried once more. ``gpus`` of this
    machine are divided among trials that run at once. ``auto`` takes those in CUDA_VISIBLE_DEVICES, or without that variable
    those on which no other process holds memory. If nvidia-smi fails, ``auto`` reports it and trains on the CPU; a number is
    refused. ``trials_per_gpu`` of one rank share a GPU on this machine: a number, or ``auto`` for as many as fit by the memory
    estimate (``gpu`` or ``gpu_memory_gib`` must be set). Each may use its share of the memory, and is charged its share of GPU
    hours. ``gpu`` is the model of the GPUs (A100, H100, RTX 4090, ...), or ``gpu_memory_gib`` the memory of one: points that do
    not fit are then invalid. ``environment`` has variables for attempts and preparation, which must not change what is learned
    (NCCL_SOCKET_IFNAME, HF_HOME, ...), because they are not part of a trial's identity. The rest is for Slurm. ``nodes``,
    ``gpus_per_node``, ``cpus_per_gpu`` and ``mem_gb`` (GiB per node) are a job's shape; without GPUs ``tasks_per_node`` ranks run
    on each node, with ``threads`` CPUs each. ``walltime_min`` is a job's time limit in minutes, ``max_jobs`` the most jobs of a
    sweep in the queue at once. ``setup`` are shell lines run before training, ``container`` srun's flags for one, ``extra``
    sbatch's further options, ``python`` the interpreter there (null: the one that submits; several words start it in a
    container). ``gres_type`` is the type of GPU that the job asks for (--gres=gpu:TYPE:N). ``warn_seconds`` before its end a
    job is asked to stop at a rollout boundary (null: a tenth of ``walltime_min``, 60 to 600; 120 without it): a rollout, an
    optimizer step and a checkpoint must fit. ``requeue_limit`` is how often a trial may be preempted or lose its node.
    ``poll_seconds`` is the interval between readings of the queue. ``service_partition``, ``service_account``, ``service_qos``
    and ``service_mem_gb`` are for the jobs that do not train (``controller=job``, ``prepare=job``); null: as the trials' jobs.
    ``controller`` works ``here`` (in the foreground) or as a ``job`` of one CPU; ``prepare`` sets where models and data are
    looked for and downloaded; ``snapshot`` keeps a copy of the code in the sweep folder, which the jobs run; ``code`` is a
    folder whose grposweep attempts run instead (null: that copy, or on this machine the code as it is). Within ``ray_timeout``
    seconds the nodes of a job must join its Ray cluster (EasyR1 and verl on several nodes).
    """

    kind: str = "local"
    processes: int = field(default=1, metadata={"setting": "processes"})
    threads: int = 1
    warm: bool = True
    gpus: int | str = AUTO
    trials_per_gpu: int | str = 1
    gpu: str | None = None
    gpu_memory_gib: float | None = field(default=None, metadata={"setting": "gpu_memory_gib"})
    nodes: int = field(default=1, metadata={"setting": "nodes"})
    gpus_per_node: int = field(default=0, metadata={"setting": "gpus_per_node"})
    tasks_per_node: int = 1
    cpus_per_gpu: int = 1
    mem_gb: int | None = field(default=None, metadata={"setting": "host_memory_gib"})
    walltime_min: int | None = field(default=None, metadata={"setting": "walltime_min"})
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
    """How points are chosen. ``sampler`` is auto, grid, one_factor, tpe, random or gp; ``trials`` counts started trials.

    ``budget_gpu_hours`` limits the cost of all trials together: once it is spent, no trial is started (running trials
    continue). A job's GPUs count while its ranks run, those of a vLLM server too; a rank without a GPU counts as one.
    ``parallel`` bounds the trials that run at once (null: as many as fit this machine's GPUs, one without a GPU;
    ``cluster.max_jobs`` on Slurm). The objective is the mean of ``metric`` over the last ``last`` evaluations. With ``at=best``
    it is the best such mean of the training instead of the last one, less the bias of a maximum of noisy values, and the model
    of that step is kept. Lists of metrics and directions are several objectives (``gpu_hours`` is what a trial costs); all but
    the first are kept in ``further``, name to direction. ``seeds`` is the number of fresh seeds on which the best ``leaders``
    of the search are evaluated again (0: none, otherwise two or more). A leader that is clearly worse drops out early, and the
    winner is chosen on these seeds alone. Under ``one_factor`` every point runs on that many seeds, including the search's own.
    ``storage`` is the URL of a database (any that Optuna takes) that a copy of the study is kept in, under the sweep's name.
    ``enqueue`` holds points to try first, each a mapping from parameter to value. ``warm_start`` names earlier sweeps (one, or
    a list of names and paths): their best points are tried first, and their results inform the sampler if the space, the
    objective and the training are the same. ``prior`` (none, published) draws the learning rate of the first four points from a
    log-normal around published rates (1e-6, or 3e-5 with LoRA), within its interval. ``guards`` end a trial whose training has
    collapsed. ``max_template_share`` (null: off) adds a guard: at two evaluations in a row more than this share of the held-out
    completions are the same template.
    ``effort`` (above 0 to 1) is the share of the cost of finishing every trial that the sweep may spend: trials that are behind
    the others are paused, and a larger effort continues them (null: 0.6, or 1 for a list of points). ``stopping`` is the
    early-stopping policy: auto (``rank``, by effort), none, or one of Optuna's pruners (median, asha, hyperband), which end
    trials. ``screen`` samples the untrained model before the sweep, unless there is a screen that matches ('grposweep screen').
    Points with too few groups that carry a signal are then invalid.
    ``on_end`` is a shell line that runs once when the sweep ends (not on Ctrl-C), with how it ended in its environment:
    $GRPOSWEEP_SWEEP (folder), $GRPOSWEEP_STATUS (finished, failed, stopped, budget), $GRPOSWEEP_METRIC, $GRPOSWEEP_BEST_TRIAL
    and $GRPOSWEEP_OBJECTIVE. ``retry_failed`` tries every failed trial again when the sweep is resumed, from its last
    checkpoint. Without it a trial that failed by code or configuration is tried again once its files, its configuration or
    its environment changed.
    ``changed_files`` sets what a resumed sweep does if a file that trainings depend on changed after trials were trained:
    ``refuse``, continue with the copies in the sweep's folder (``recorded``), or with the files as they are (``accept``).
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
    prior: str = "none"
    storage: str | None = None
    metric: Any = "eval_reward"
    direction: Any = "maximize"
    further: dict[str, str] = field(default_factory=dict)
    last: int = 1
    at: str = "last"
    guards: bool = True
    max_template_share: float | None = None
    effort: float | None = None
    stopping: str = AUTO
    screen: bool = False
    on_end: str | None = None
    retry_failed: bool = False
    changed_files: str = "refuse"


@dataclass
class Tracker:
    """Where runs are logged besides ``metrics.jsonl``: ``none``, ``wandb``, ``trackio``, ``swanlab``, ``mlflow``, tensorboard.

    With W&B a trial is one run, its sweep the group. The others get what TRL logs (its ``report_to``). ``project``, ``entity``,
    ``mode`` (offline, online, disabled), ``tags`` and ``notes`` have W&B's meaning; the others take ``project`` and ``mode``.
    Offline all files are in the trial's folder, apart from Trackio's (``TRACKIO_DIR``); ``wandb sync`` sends those of W&B.
    """

    kind: str = "none"
    project: str = "grposweep"
    entity: str | None = None
    mode: str = "offline"
    tags: list[str] = field(default_factory=list)
    notes: str | None = None


@dataclass
class Rules:
    """Rule codes to switch off; the sweep reports them."""

    ignore: list[str] = field(default_factory=list)
