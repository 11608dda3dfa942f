"""Configuration groups of how trials run: trainer, cluster, search, tracker and rules."""

from dataclasses import dataclass
from typing import Any

from grposweep.schema._learning import AUTO, key

# of trainer.keep: the winner's model,
KEEPS_MODEL = ("best", "best_checkpoint")
# and the last checkpoint of a finished trial
KEEPS_LAST = ("last", "all", "best_checkpoint")
SHARDING = ("none", "zero1", "zero2", "zero3", "fsdp")


@dataclass
class Fake:
    """What ``trainer=fake`` reads of ``trainer.args``, for tests: a known optimum and staged
    faults.
    """

    best_lr: float = 1e-3
    """Learning rate with the best reward."""
    noise: float = 0.0
    """Standard deviation of an evaluation."""
    step_seconds: float = 0.0
    """Seconds of an optimizer step."""
    crash_at: int | None = None
    """Optimizer step that raises an error."""
    crash_above_lr: float | None = None
    """Learning rate above which every step raises an error."""
    hang_at: int | None = None
    """Optimizer step that never ends."""
    oom_above: int | None = None
    """Completions per device above which memory runs out."""


@dataclass
class Training:
    """What grposweep's own training reads. ``kind``, ``keep``, ``fork`` and ``args`` are for every
    trainer.
    """

    kind: str = "trl"
    """The trainer."""
    keep: str = key(
        "best",
        native="save_total_limit",
        choices=("last", "best", "best_checkpoint", "all", "none"),
    )
    """``last`` keeps every trial's last checkpoint, ``best`` only the winner's model,
    ``best_checkpoint`` also the winner's last checkpoint (for 'grposweep continue'), ``all`` every
    checkpoint, ``none`` none. The folder of a winner that your own script trained stays as the
    script left it, with all checkpoints.
    """
    fork: str | None = None
    """Hash of the checkpoint that a trial starts from; 'grposweep continue' sets it (null: the
    start of a training).
    """
    args: dict[str, Any] = key({})
    """Further keys of TRL's GRPOConfig, by name (``trainer.args.disable_dropout=true``): those that
    have no key here. For the user's own command also its options: ``{NAME}`` in it, or appended as
    ``--NAME value``. For a launch of verl, EasyR1 or ms-swift the framework's own keys
    (``trainer.args.trainer.total_epochs=2``).
    """
    log_completions: bool = key(False, trl="log_completions", native="num_completions_to_print")
    """Keep all training completions, as Parquet files in the trial's folder."""
    sharding: str = key("none", setting="sharding", native="deepspeed fsdp", choices=SHARDING)
    """Divide optimizer states (``zero1``), gradients as well (``zero2``) and weights as well
    (``zero3`` by DeepSpeed, ``fsdp`` by torch) among a trial's ranks.
    """
    compile: bool = key(False, trl="torch_compile")
    """Run the model through torch.compile."""
    offload: str = key("none", choices=("none", "optimizer", "all"))
    """Keep optimizer states (``optimizer``, ZeRO) or weights as well (``all``, ZeRO-3 and FSDP) in
    main memory.
    """
    deepspeed_config: str | None = None
    """A DeepSpeed configuration file (JSON) to use instead of the built-in one."""
    fsdp_config: dict[str, Any] = key({})
    """Options of FSDP under transformers' names, added to the built-in ones."""


@dataclass
class Command:
    """What only ``trainer=command`` reads."""

    python: str | None = None
    """Interpreter that has Ray, for a launch of verl or EasyR1 on several nodes (null:
    ``python3``).
    """
    workdir: str | None = None
    """Folder that the command runs in (null: the current one)."""
    environment: dict[str, str] = key({})
    """Variables added to its environment."""
    command: str | None = None
    """The user's own launch command, run as it is written (``bash launch.sh``). ``-- COMMAND`` at
    the end of a command line sets it. A trial's values enter where the program builds its
    GRPOConfig, or at the command line of verl, EasyR1 or ms-swift. With ``metrics`` it is any
    program's, with a place such as ``{lr}`` for each value.
    """
    metrics: str | None = None
    """Where a program of another kind writes its metrics (null: it trains with TRL, verl, EasyR1 or
    ms-swift). A file of JSON lines, CSV, TensorBoard or W&B (``{output}/log.jsonl``; a pattern or
    folder stands for its newest log), or ``re:`` and an expression for its output, with the groups
    ``step`` and metrics.
    """
    step_key: str = "step"
    """The name of the step in ``metrics``."""
    resume: str | None = None
    """With ``metrics``: words that make the program resume (``--resume {checkpoint}``), at
    ``{resume}`` in the command or its end (null: it cannot, and an interrupted trial starts over).
    """
    checkpoints: str = "checkpoint-*"
    """With ``metrics``: pattern of its checkpoints below ``{output}``; the last number in a name is
    the step.
    """


@dataclass
class Trainer(Command, Training):
    """The trainer of an attempt, and what it keeps. Keys from ``python`` on are for ``command``."""


@dataclass
class Place:
    """What every launcher reads."""

    kind: str = "local"
    """The launcher."""
    processes: int = key(1, setting="processes", native="ddp_backend ddp_find_unused_parameters")
    """Training ranks of a trial."""
    threads: int = key(1, range="count")
    """CPU threads of a rank."""
    gpu: str | None = None
    """Model of the GPUs (A100, H100, RTX 4090, ...): points that do not fit are then invalid."""
    gpu_memory_gib: float | None = key(None, setting="gpu_memory_gib", range="positive")
    """Memory of a GPU in GiB, instead of its model."""
    mem_gb: int | None = key(None, setting="host_memory_gib", range="count")
    """Main memory of each node in GiB (null: the partition's default)."""
    environment: dict[str, str] = key({})
    """Variables for attempts and preparation. They must not change what is learned
    (NCCL_SOCKET_IFNAME, HF_HOME, ...), because they are not part of a trial's identity.
    """
    requeue_limit: int = key(20, range="not negative")
    """How often a trial may be preempted or lose its node."""
    controller: str = key("here", choices=("here", "job"))
    """Where the controller works: in the foreground, or as a job of one CPU."""
    prepare: str = key("here", choices=("here", "job"))
    """Where models and data are looked for and downloaded."""
    code: str | None = None
    """A folder whose grposweep attempts run instead (null: that copy, or on this machine the code
    as it is).
    """
    poll_seconds: float = 30.0
    """Seconds between readings of the queue."""
    stall_min: float | None = key(30.0, range="positive")
    """Minutes without a sign of life after which an attempt is ended, and tried once more (null:
    never).
    """


@dataclass
class ThisMachine(Place):
    """What the launcher of this machine reads."""

    warm: bool = True
    """Keep a process with the imported libraries, from which trials on the CPU start."""
    gpus: int | str = key(AUTO, native="use_cpu")
    """GPUs of this machine, divided among trials that run at once. ``auto`` takes those in
    CUDA_VISIBLE_DEVICES, or without that variable those on which no other process holds memory. If
    nvidia-smi fails, ``auto`` reports it and trains on the CPU; a number is refused.
    """
    trials_per_gpu: int | str = 1
    """Trials of one rank that share a GPU of this machine: a number, or ``auto`` for as many as fit
    by the memory estimate (``gpu`` or ``gpu_memory_gib`` must be set). Each may use its share of
    the memory, and is charged its share of GPU hours. Fewer start while processes of others hold
    the memory.
    """


@dataclass
class Jobs(Place):
    """What a launcher of jobs reads."""

    nodes: int = key(1, setting="nodes", range="count")
    """Nodes of a job."""
    gpus_per_node: int = key(0, setting="gpus_per_node", range="not negative")
    """GPUs of each node."""
    tasks_per_node: int = key(1, range="count")
    """Ranks of each node without GPUs, with ``threads`` CPUs each."""
    cpus_per_gpu: int = key(1, range="count")
    """CPUs for each GPU."""
    walltime_min: int | None = key(None, range="count")
    """Time limit of a job in minutes (null: the partition's default)."""
    partition: str | None = None
    """Partition of the jobs."""
    account: str | None = None
    """Account of the jobs."""
    qos: str | None = None
    """Quality of service of the jobs."""
    constraint: str | None = None
    """Features that nodes must have."""
    exclude: str | None = None
    """Nodes to avoid."""
    max_jobs: int = key(8, range="count")
    """The most jobs of a sweep in the queue at once."""
    setup: list[str] = key([])
    """Shell lines that run before the training."""
    container: list[str] = key([])
    """Options of srun for a container."""
    extra: list[str] = key([])
    """Further options of sbatch."""
    python: str | None = None
    """Interpreter of the jobs (null: the one that submits; several words start it in a container).
    """
    gres_type: str | None = None
    """Type of GPU that a job asks for (--gres=gpu:TYPE:N)."""
    service_partition: str | None = None
    """Partition of jobs that do not train: ``controller=job``, ``prepare=job`` (null: as the
    trials' jobs).
    """
    service_account: str | None = None
    """Account of jobs that do not train (null: as the trials' jobs)."""
    service_qos: str | None = None
    """Quality of service of jobs that do not train (null: as the trials' jobs)."""
    service_mem_gb: int | None = key(None, range="count")
    """Main memory in GiB of jobs that do not train (null: as the trials' jobs)."""
    warn_seconds: int | None = key(None, range="count")
    """Seconds before its end at which a job is asked to stop at a rollout boundary (null: a tenth
    of ``walltime_min``, 60 to 600; 120 without it): a rollout, an optimizer step and a checkpoint
    must fit.
    """
    snapshot: bool = True
    """Keep a copy of the code in the sweep's folder, which the jobs run."""
    ray_timeout: int = key(300, range="count")
    """Seconds within which the nodes of a job must join its Ray cluster (EasyR1 and verl on several
    nodes).
    """


@dataclass
class Cluster(Jobs, ThisMachine):
    """Where attempts run: the keys of every launcher, then those of this machine only, then those
    of Slurm only.
    """


@dataclass
class Search:
    """How points are chosen and compared."""

    sampler: str = AUTO
    """What proposes points."""
    trials: int | None = key(None, range="count")
    """The most trials that are started (null: what the sampler needs)."""
    budget: str | None = None
    """What the sweep may cost: ``20x`` (what twenty trainings cost), ``12h`` (GPU hours), or
    completions. It gives an adaptive search its number of trials, and ``trials`` is then the most
    that start (null: ``trials`` and ``effort`` decide). Hours limit every sweep: once they are
    spent, nothing starts and running trials stop at a rollout boundary. A job's GPUs count while
    its ranks run, those of a vLLM server too; a rank without a GPU counts as one.
    """
    parallel: int | None = key(None, range="count")
    """The most trials that run at once (null: as many as fit this machine's GPUs, one without a
    GPU; ``cluster.max_jobs`` on Slurm).
    """
    seed: int = key(0, range="seed")
    """Seed of the sampler."""
    seeds: int = 0
    """Fresh seeds on which the best points are evaluated again (0: none, otherwise two or more). A
    leader that is clearly worse drops out early, and the winner is chosen on these seeds alone.
    Under ``one_factor`` every point runs on that many seeds, including the search's own.
    """
    leaders: int = key(4, range="count")
    """Best points that are evaluated on fresh seeds."""
    enqueue: list[dict[str, Any]] = key([])
    """Points to try first, each a mapping from parameter to value."""
    points: Any = None
    """All points of the sweep, instead of parameters with several values:
    ``{lr:1e-3,batch:small},{lr:1e-4,batch:medium}``, or a CSV file with a header of keys and a
    point a row. A longer list extends the sweep.
    """
    warm_start: Any = None
    """Earlier sweeps of the same objective (a name or path, or a list): their best three points are
    tried first. Their results inform the sampler where the model, the task and the training are the
    same too. ``auto`` is the newest sweep of the same model, objective and space in the folders
    that ``grposweep list`` knows.
    """
    storage: str | None = None
    """URL of a database (any that Optuna takes) that a copy of the study is kept in, under the
    sweep's name.
    """
    metric: str = "eval_reward"
    """The objective, a metric of the evaluations."""
    direction: str = key("maximize", choices=("maximize", "minimize"))
    """Which values of it are better."""
    last: int = key(1, range="count")
    """Evaluations at the end of a trial whose mean is the objective."""
    at: str = key("last", choices=("last", "best"))
    """``best`` takes the best such mean of the training instead of the last one, less the bias of a
    maximum of noisy values, and keeps the model of that step.
    """
    guards: bool = True
    """End a trial whose training has collapsed."""
    max_template_share: float | None = key(None, range="share")
    """Another guard (null: off): at two evaluations in a row more than this share of the held-out
    completions are the same template.
    """
    effort: float | None = key(None, range="part")
    """Largest share (above 0 to 1) of the cost of finishing every trial that the sweep may spend:
    trials that are behind pause, and a larger effort continues them (null: 0.6, or 1 for a list of
    points). One trial always finishes.
    """
    stopping: str = AUTO
    """The early-stopping policy: ``auto`` is ``rank``, by effort; Optuna's pruners (median,
    halving, asha, hyperband) end trials.
    """
    on_end: str | None = None
    """Shell line that runs once when the sweep ends (not on Ctrl-C), with how it ended in its
    environment: $GRPOSWEEP_SWEEP (folder), $GRPOSWEEP_STATUS (finished, failed, stopped, budget),
    $GRPOSWEEP_METRIC, $GRPOSWEEP_BEST_TRIAL and $GRPOSWEEP_OBJECTIVE.
    """
    changed_files: str = key("refuse", choices=("refuse", "recorded", "accept"))
    """What a resumed sweep does if a file that trainings depend on changed after trials were
    trained: refuse, continue with the copies in the sweep's folder (``recorded``), or with the
    files as they are (``accept``).
    """


@dataclass
class Tracker:
    """Where runs are logged besides ``metrics.jsonl``. With W&B a trial is one run, its sweep the
    group.

    The others get what TRL logs (its ``report_to``), and take ``project`` and ``mode``. Offline all
    files are in the trial's folder, apart from Trackio's (``TRACKIO_DIR``); ``wandb sync`` sends
    those of W&B.
    """

    kind: str = key("none", native="logging_steps report_to")
    """The tracker."""
    project: str = key("grposweep", native="project")
    """Project of the runs."""
    entity: str | None = None
    """W&B's entity: a user or team (null: the account's default)."""
    mode: str = key("offline", choices=("offline", "online", "disabled"))
    """Write files, send them, or do nothing."""
    tags: list[str] = key([])
    """W&B's tags of the runs."""
    notes: str | None = None
    """W&B's notes of the runs."""


@dataclass
class Rules:
    """Which rules are applied."""

    ignore: list[str] = key([])
    """Rule codes to switch off; the sweep reports them."""
