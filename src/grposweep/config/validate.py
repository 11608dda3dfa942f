"""Check an experiment's values beyond their types: choices, ranges, and values that exclude each other."""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import parse_json, read_bytes
from grporecipe.frameworks import FRAMEWORKS
from grporecipe.registries import load
from grposweep.config.native_keys import check_args
from grposweep.config.precision import check_types
from grposweep.config.to_setting import read_gpu
from grposweep.redaction import refuse_secrets
from grposweep.registries import EXTERNAL, LAUNCHERS, POLICIES, SAMPLERS, TASKS, TRACKERS, suggest_search_key
from grposweep.schema import AUTO, OWN_TRAINERS, Cluster, Experiment, Generation, Search, Trainer, is_external, value_at

CHOICES: dict[str, tuple[str, ...]] = {
    "model.dtype": (AUTO, "float32", "bfloat16", "float16"),
    "model.quantization": ("4bit", "8bit"),
    "model.mixed_precision": ("bf16", "fp16", "none"),
    "trainer.takes": ("config", "flags"),
    "trainer.launcher": (AUTO, "accelerate", "torchrun", "python"),
    "trainer.keep": ("last", "best", "all", "none"),
    "trainer.offload": ("none", "optimizer", "all"),
    "trainer.sharding": ("none", "zero1", "zero2", "zero3", "fsdp"),
    "cluster.controller": ("here", "job"),
    "cluster.prepare": ("here", "job"),
    "generation.vllm_mode": ("colocate", "server"),
    "generation.vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    "loss.multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "search.direction": ("maximize", "minimize"),
    "search.changed_files": ("refuse", "recorded", "accept"),
    "search.at": ("last", "best"),
    "search.prior": ("none", "published"),
    "tracker.mode": ("offline", "online", "disabled"),
}
# Keys whose choices are registries, so registered names are choices at once.
REGISTERED: dict[str, Callable[[], Iterable[str]]] = {
    "task.kind": lambda: TASKS,
    "trainer.kind": lambda: (*OWN_TRAINERS, *EXTERNAL),
    "cluster.kind": lambda: LAUNCHERS,
    "search.sampler": lambda: (AUTO, *SAMPLERS),
    "search.stopping": lambda: (AUTO, *POLICIES),
    "tracker.kind": lambda: TRACKERS,
}
SIZES_OR_AUTO = (
    "batch.per_device_train_batch_size", "batch.gradient_accumulation_steps", "batch.per_device_eval_batch_size",
    "cluster.gpus", "cluster.trials_per_gpu",
)  # fmt: skip
AT_LEAST_ONE = (
    "cluster.threads", "cluster.nodes", "cluster.tasks_per_node", "cluster.cpus_per_gpu", "cluster.mem_gb",
    "cluster.walltime_min", "cluster.max_jobs", "generation.vllm_tensor_parallel_size", "generation.vllm_server_timeout",
    "search.parallel", "search.trials", "search.last", "search.leaders", "batch.max_per_device_train_batch_size",
    "cluster.service_mem_gb", "cluster.ray_timeout",
)  # fmt: skip
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LAUNCHERS_OWN = ("GRPOSWEEP_", "SLURM_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")


SHARES = ("loss.top_entropy_quantile", "generation.min_p", "search.max_template_share")
ABOVE_ZERO = (
    "loss.entropy_coef_delta", "loss.off_policy_mask_threshold", "loss.sapo_temperature_neg", "loss.sapo_temperature_pos",
    "loss.vespo_k_pos", "loss.vespo_lambda_pos", "loss.vespo_k_neg", "loss.vespo_lambda_neg", "generation.repetition_penalty",
    "generation.vllm_importance_sampling_clip_max",
)  # fmt: skip
NOT_NEGATIVE = ("loss.entropy_coef_min", "loss.entropy_coef_max", "loss.entropy_target",
                "generation.vllm_importance_sampling_clip_min")  # fmt: skip


def check_ranges(experiment: Experiment) -> None:
    """Raise UserError for an option of the loss or of generation outside its range."""
    ranges: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
        (SHARES, lambda value: 0 <= value <= 1, "a share, from 0 to 1"),
        (ABOVE_ZERO, lambda value: value > 0, "a number above 0"),
        (NOT_NEGATIVE, lambda value: value >= 0, "a number that is not negative"),
    )
    for keys, is_inside, wanted in ranges:
        for key in keys:
            value = value_at(experiment, key)
            if value is not None and not is_inside(value):
                raise UserError(f"{key}={value:g}: it takes {wanted}. Set one, or null for TRL's default.")
    low, high = experiment.loss.entropy_coef_min, experiment.loss.entropy_coef_max
    if low is not None and high is not None and low > high:
        raise UserError(
            f"loss.entropy_coef_min={low:g} is above loss.entropy_coef_max={high:g}, so no coefficient fits. Swap them."
        )


def check_filter(experiment: Experiment) -> None:
    """Raise UserError for bounds of pass rates that keep nothing, and for a trainer that reads other prompts."""
    bounds = experiment.task.keep_between
    if bounds is None:
        return
    if len(bounds) != 2 or not 0 <= bounds[0] < bounds[1] <= 1:
        raise UserError(
            f"task.keep_between={bounds}: it takes two pass rates from 0 to 1, the lower first. Set task.keep_between=[0.2,0.8]."
        )
    if experiment.trainer.kind != "trl":
        raise UserError(
            f"task.keep_between with trainer={experiment.trainer.kind}: it filters the prompts of trainer=trl only. Screen with "
            "trainer=trl, and give the program the prompts in kept.jsonl."
        )


def check_words(experiment: Experiment) -> None:
    """Raise UserError for an unknown choice, a count below one that must be at least one, or a secret."""
    refuse_secrets(asdict(experiment))
    for key in (*CHOICES, *REGISTERED):
        if value_at(experiment, key) is not None:  # null is a choice if the type allows it
            check_choice(key, value_at(experiment, key))
    for key in SIZES_OR_AUTO:
        value = value_at(experiment, key)
        if isinstance(value, str) and value != AUTO:
            raise UserError(f"{key}={value}: this is a size, so it takes a whole number or auto. Set {key}=auto.")
    budget = experiment.search.budget_gpu_hours
    if budget is not None and not budget > 0:
        raise UserError(
            f"search.budget_gpu_hours={budget}: nothing could start. Set a number of hours above 0, or null for no limit."
        )
    check_effort(experiment.search)
    if experiment.search.seeds == 1 or experiment.search.seeds < 0:
        raise UserError(
            f"search.seeds={experiment.search.seeds}: an interval needs at least two seeds. Set search.seeds=5 (2 at "
            "least), or 0 to train no leader again."
        )
    size = read_gpu(experiment.cluster)  # raises for an unknown name
    if size is not None and not size > 0:
        raise UserError(
            f"cluster.gpu_memory_gib={size:g}: it must be above 0. Set the memory of one GPU in GiB, or null to skip "
            "the memory rules."
        )
    check_filter(experiment)
    if experiment.search.further:
        check_objectives(experiment.search)
    for key in AT_LEAST_ONE:
        value = value_at(experiment, key)
        if value is not None and value < 1:
            raise UserError(f"{key}={value}: it must be at least 1. Set {key}=1 or more.")
    if experiment.task.kind == "arithmetic" and experiment.task.path is not None:
        raise UserError(
            f"task.path={experiment.task.path}: task=arithmetic makes its own prompts, so nothing would read it. "
            "Set task=jsonl or task=gsm8k as well."
        )
    name = experiment.name
    if name is not None and ("/" in name or name.strip(".") == ""):
        raise UserError(f"name={name}: it names a folder under outputs={experiment.outputs}. Set one without slashes.")
    if experiment.task.kind == "jsonl" and experiment.task.path is None:
        raise UserError("task=jsonl: task.path is not set, so there are no prompts. Set task.path=prompts.jsonl.")
    check_ranges(experiment)
    check_args(experiment.trainer)
    check_types(experiment)
    check_sharding_options(experiment.trainer)
    check_fsdp_options(experiment)
    check_server(experiment.generation)
    check_environment(experiment.cluster)
    launcher = load(LAUNCHERS[experiment.cluster.kind])
    launcher.check_gpu_share(experiment)
    launcher.validate(experiment)
    check_program(experiment.trainer, experiment.cluster)
    if experiment.search.last > max(experiment.schedule.evaluations, 1) and not is_external(experiment.trainer.kind):
        raise UserError(
            f"search.last={experiment.search.last}: the objective averages over that many evaluations, and there are "
            f"{experiment.schedule.evaluations}. Set schedule.evaluations={experiment.search.last}, or a smaller search.last."
        )


def choices(key: str) -> tuple[str, ...]:
    """Return the choices of a key; empty if its type alone defines them."""
    return tuple(REGISTERED[key]()) if key in REGISTERED else CHOICES.get(key, ())


def check_choice(key: str, value: Any) -> None:
    """Raise UserError for a value that is not one of its key's choices."""
    if value is not None and value not in choices(key):
        name = key.rpartition(".")[2]
        what = {"kind": key.partition(".")[0]}.get(name, name.replace("_", " "))
        raise UserError(
            f"{key}={value}: this is not a {what}. Set one of {', '.join(choices(key))}.{suggest_search_key(key, value)}"
        )


def check_installed(experiment: Experiment) -> None:
    """Raise UserError if trials would train with TRL here, and only linting and planning are installed."""
    if experiment.trainer.kind == "trl" and find_spec("trl") is None:
        raise UserError(
            "trainer=trl: TRL is not installed here. Run pip install '.[train]' in a checkout of grposweep, or set "
            "trainer=fake to try a sweep without training."
        )


REPORT_TO = {  # by tracker.kind that TRL writes itself: modules of which one is needed
    "tensorboard": ("tensorboard", "tensorboardX"), "trackio": ("trackio",), "swanlab": ("swanlab",), "mlflow": ("mlflow",),
}  # fmt: skip


def check_tracker(experiment: Experiment) -> None:
    """Raise UserError if a tracker is not installed, or if TRL would have to write it and another program trains."""
    kind = experiment.tracker.kind
    if experiment.tracker.mode == "disabled" or kind == "none":
        return
    if kind in REPORT_TO and experiment.trainer.kind != "trl":
        raise UserError(
            f"tracker={kind}: TRL writes it, and trainer={experiment.trainer.kind} is another program. "
            "Set report_to in its own recipe, or tracker=none."
        )
    if experiment.cluster.python is None and not any(map(find_spec, REPORT_TO.get(kind, (kind,)))):
        # transformers' callback fails with SwanLab 0.10
        package = {"swanlab": "'swanlab<0.8'"}.get(kind, kind)
        raise UserError(f"tracker={kind}: it is not installed here. Run pip install {package}, or set tracker=none.")


def check_effort(search: Search) -> None:
    """Raise UserError for an effort outside 0 to 1, or one that no policy of the sweep follows."""
    effort, stopping = search.effort, search.stopping
    if effort is not None and not 0 < effort <= 1:
        raise UserError(
            f"search.effort={effort}: it is a share of the cost of finishing every trial. Set a number above 0, at most 1."
        )
    if effort is not None and effort < 1 and stopping not in (AUTO, "rank"):
        raise UserError(
            f"search.effort={effort} with search.stopping={stopping}: only the policy rank follows an effort. Leave one of the "
            "two out."
        )


def check_objectives(search: Search) -> None:
    """Raise UserError if a setting needs one order of all trials, which several objectives do not give."""
    wanted = {
        f"search.seeds={search.seeds}": search.seeds > 0,
        f"search.stopping={search.stopping}": search.stopping not in ("auto", "none"),
        f"search.effort={search.effort}": search.effort is not None and search.effort < 1,
        f"search={search.sampler}": not (search.sampler == AUTO or SAMPLERS[search.sampler].several_objectives),
    }
    if broken := next((key for key, is_wanted in wanted.items() if is_wanted), None):
        raise UserError(
            f"{broken}: it needs a single ranking of all trials, but this sweep has {1 + len(search.further)} objectives "
            f"({', '.join([search.metric, *search.further])}). Leave it out, or set a single search.metric."
        )


def check_environment(cluster: Cluster) -> None:
    """Raise UserError for an environment variable of attempts that a shell cannot set, or that the launcher sets."""
    for name in cluster.environment:
        if not _VARIABLE.fullmatch(name) or name.startswith(_LAUNCHERS_OWN):
            raise UserError(
                f"cluster.environment has {name}: no shell can set that, or the launcher sets it itself. Set names of letters, "
                "digits and underscores, such as +cluster.environment.NCCL_DEBUG=INFO."
            )


def check_server(generation: Generation) -> None:
    """Raise UserError if GPUs are reserved for a vLLM server that is not used, or that runs elsewhere."""
    gpus, url = generation.vllm_gpus, generation.vllm_server_base_url
    if gpus and not (generation.use_vllm and generation.vllm_mode == "server"):
        raise UserError(
            f"generation.vllm_gpus={gpus}: these GPUs are for a vLLM server, and none generates. "
            "Set generation=vllm_server, or generation.vllm_gpus=0."
        )
    if (args := generation.vllm_server_args) and (not gpus or generation.vllm_server_command is not None):
        raise UserError(
            f"generation.vllm_server_args={args}: only TRL's server in the trial reads them. Set generation.vllm_gpus to how "
            "many GPUs it gets and generation.vllm_server_command=null, or leave them out."
        )
    if gpus and url is not None:
        raise UserError(
            f"generation.vllm_gpus={gpus} and generation.vllm_server_base_url={url}: a server of the job's own, or one "
            "that runs already. Set generation.vllm_gpus=0, or generation.vllm_server_base_url=null."
        )


def check_ray(trainer: Trainer, cluster: Cluster, cpus: int) -> None:
    """Raise UserError if a program in a Ray cluster would wait forever, or expects another shape than the job's."""
    shape = {"trainer.nnodes": cluster.nodes, "trainer.n_gpus_per_node": cluster.processes // cluster.nodes}
    for word in trainer.arguments:
        key, _, value = word.lstrip("+").partition("=")
        if key in shape and value != str(shape[key]):
            raise UserError(
                f"trainer.arguments has {word}, and the trial has {key}={shape[key]}: the program would wait for nodes or GPUs "
                "that are not there. Leave it out, and set cluster.nodes and cluster.gpus_per_node."
            )
    if cluster.nodes == 1:
        return
    if cluster.kind == "local":
        raise UserError(
            f"cluster.nodes={cluster.nodes} with cluster=local: this machine is one node, and the job of several starts Ray on "
            "each. Set cluster=slurm, or cluster.nodes=1."
        )
    if cluster.gpus_per_node and cluster.cpus_per_gpu < cpus:
        raise UserError(
            f"cluster.cpus_per_gpu={cluster.cpus_per_gpu}: trainer={trainer.kind} reserves up to {cpus} CPUs a GPU in the job's "
            f"Ray cluster, and would wait for them forever. Set cluster.cpus_per_gpu={cpus} or more."
        )


OFFLOADS = {"optimizer": ("zero1", "zero2", "zero3"), "all": ("zero3", "fsdp")}  # trainer.offload -> kinds of sharding
FSDP_KEYS = (  # transformers 5.23 training_args.py, fsdp_config
    "reshard_after_forward", "cpu_offload", "activation_checkpointing", "cpu_ram_efficient_loading", "state_dict_type",
    "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params",
)  # fmt: skip


def check_sharding_options(trainer: Trainer) -> None:
    """Raise UserError for options that this kind of sharding lacks, and for a DeepSpeed file that does not fit."""
    sharding, offload = trainer.sharding, trainer.offload
    if offload != "none" and sharding not in OFFLOADS[offload]:
        raise UserError(
            f"trainer.offload={offload} and trainer.sharding={sharding}: it moves sharded states to main memory. Set "
            f"trainer.sharding to one of {', '.join(OFFLOADS[offload])}, or trainer.offload=none."
        )
    if trainer.fsdp_config and sharding != "fsdp":
        raise UserError(
            f"trainer.fsdp_config and trainer.sharding={sharding}: nothing would read it. Set trainer.sharding=fsdp, or leave "
            "it out."
        )
    if unknown := sorted(set(trainer.fsdp_config) - set(FSDP_KEYS)):
        raise UserError(
            f"trainer.fsdp_config has {', '.join(unknown)}: transformers does not know that. Set any of {', '.join(FSDP_KEYS)}."
        )
    if trainer.deepspeed_config is not None:
        check_deepspeed_file(trainer)


def check_fsdp_options(experiment: Experiment) -> None:
    """Raise UserError for FSDP options that contradict those of the model or the reference.

    Sources: to_setting.loads_once; transformers 5.23 trainer.py, create_accelerator_and_postprocess.
    """
    options, model, beta = experiment.trainer.fsdp_config, experiment.model, experiment.kl.beta
    if options.get("cpu_ram_efficient_loading") and beta != 0 and not model.lora.enabled:
        raise UserError(
            f"trainer.fsdp_config.cpu_ram_efficient_loading=true and kl.beta={beta:g}: only one rank of a node would load the "
            "reference model, and the others would compare with arbitrary weights. Leave it out, or set kl=none."
        )
    if options.get("activation_checkpointing") and model.gradient_checkpointing:
        raise UserError(
            "trainer.fsdp_config.activation_checkpointing=true and model.gradient_checkpointing=true: transformers takes one of "
            "them. Set model.gradient_checkpointing=false."
        )


OF_THE_TRIAL = (
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
    "gradient_clipping",
)


def check_deepspeed_file(trainer: Trainer) -> None:
    """Raise UserError if the file is unreadable, has another stage than ``trainer.sharding``, or sets options twice."""
    named = f"trainer.deepspeed_config={trainer.deepspeed_config}"
    if trainer.offload != "none":
        raise UserError(
            f"{named} and trainer.offload={trainer.offload}: the file says what is offloaded. Leave one out."
        )
    try:
        content = parse_json(read_bytes(Path(str(trainer.deepspeed_config))))
        stage = content["zero_optimization"]["stage"]
    except OSError as error:
        raise UserError(
            f"{named}: it cannot be read ({error.strerror}). Name a file of DeepSpeed's configuration."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{named}: it is not JSON with zero_optimization.stage. Name a file of DeepSpeed's configuration."
        ) from error
    if fixed := [name for name in OF_THE_TRIAL if content.get(name, AUTO) != AUTO]:
        raise UserError(
            f"{named} sets {', '.join(fixed)}, and every trial has its own. Write auto for them in the file."
        )
    if trainer.sharding != f"zero{stage}":
        raise UserError(
            f"{named} has stage {stage}, and trainer.sharding={trainer.sharding}: plan and memory would be judged wrongly. "
            f"Set trainer.sharding=zero{stage}."
        )


def check_program(trainer: Trainer, cluster: Cluster) -> None:
    """Raise UserError if a program lacks its script, or if files that it needs do not exist."""
    external = EXTERNAL.get(trainer.kind)
    if external is None:
        return
    if external.needs_script and trainer.script is None:
        raise UserError(
            f"trainer={trainer.kind}: trainer.script is not set, so nothing would train. Set trainer.script=train.py."
        )
    if trainer.launcher == "python" and cluster.processes > 1:
        raise UserError(
            f"trainer.launcher=python starts one process, and cluster.processes={cluster.processes}. "
            "Set trainer.launcher=torchrun or accelerate."
        )
    if external.ray_cpus:
        check_ray(trainer, cluster, external.ray_cpus)
    folder = Path(trainer.workdir or ".")
    if not folder.is_dir():
        raise UserError(f"trainer.workdir={folder}: there is no such folder. Name the one that the program runs in.")
    for key, name, start in (("script", trainer.script, folder), ("recipe", trainer.recipe, Path())):
        if name is not None and not (start / name).is_file():
            raise UserError(f"trainer.{key}={name}: there is no such file in {start.resolve()}. Name one that exists.")
    if FRAMEWORKS[external.framework].traits.follows_trl and trainer.script is not None:
        check_script(trainer.script, folder / trainer.script)


def check_script(name: str, path: Path) -> None:
    """Raise UserError if a script builds its GRPOConfig from constants, so that no trial could change it."""
    from grporecipe.frameworks.parsing.python_configs import hard_coded  # only a script needs it

    line = hard_coded(path)
    if line is not None:
        raise UserError(
            f"trainer.script={name}: line {line} makes GRPOConfig(...) of constants and the script reads no arguments, so all "
            "trials would train the same. Make it with TrlParser((GRPOConfig,)).parse_args_and_config(), as in "
            "docs/guides/own_script.md."
        )
