"""Check an experiment's values beyond their types: choices, ranges, and values that exclude each
other.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from math import inf, ulp
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.files import parse_json, read_bytes
from grporecipe.frameworks.trl import keys
from grporecipe.model.releases import closest_keys
from grporecipe.registries import load_entry
from grposweep.config.precision import check_generation, check_precision, check_quantization
from grposweep.config.search_budget import Budget
from grposweep.config.to_setting import base_setting, read_gpu
from grposweep.config.trl_args import check_args
from grposweep.process.redaction import refuse_secrets
from grposweep.schema import (
    AUTO,
    Cluster,
    Experiment,
    ThisMachine,
    Trainer,
    default_of,
    keys_of,
    keys_with,
    sizes,
    value_at,
)
from grposweep.schema.registries import (
    CHECK_KEYS,
    CHECK_PROGRAM,
    EXTERNAL,
    LAUNCHERS,
    OWN_TRAINERS,
    POLICIES,
    SAMPLERS,
    TASKS,
    TRACKERS,
    follows_effort,
    is_external,
    runs_trl,
    suggest_search_key,
)

# Keys whose choices are registries, so registered names are choices at once.
REGISTERED: dict[str, Callable[[], Iterable[str]]] = {
    "task.kind": lambda: TASKS,
    "trainer.kind": lambda: (*OWN_TRAINERS, *EXTERNAL),
    "cluster.kind": lambda: LAUNCHERS,
    "search.sampler": lambda: (AUTO, *SAMPLERS),
    "search.stopping": lambda: (AUTO, *POLICIES),
    "tracker.kind": lambda: TRACKERS,
}
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_LAUNCHERS_OWN = (
    "GRPOSWEEP_",
    "SLURM_",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
    "PYTHONPATH",
)


# the smallest number
ABOVE_0 = ulp(0)
# Ranges that a key may name: what it takes, and its ends.
RANGES: dict[str, tuple[str, float, float]] = {
    "count": ("a whole number of at least 1", 1, inf),
    "share": ("a share, from 0 to 1", 0, 1),
    "part": ("a share above 0, at most 1", ABOVE_0, 1),
    "positive": ("a number above 0", ABOVE_0, inf),
    "not negative": ("a number that is not negative", 0, inf),
    # numpy's
    "seed": ("a whole number from 0 to 4294967295", 0, 4294967295),
}


def find_mistakes(experiment: Experiment) -> list[str]:
    """Return a message for every mistake of a configuration: what is set, why it cannot work, what
    to set instead.
    """
    secrets = list(collect_messages(refuse_secrets, asdict(experiment)))
    if secrets:
        # another message would print the secret
        return secrets
    wrong = _wrong_values(experiment)
    mistakes = list(wrong.values())
    for check, reads in CHECKS.items():
        # A check of several keys has no answer if one of them has no meaning.
        if not any(key.startswith(reads) for key in wrong):
            mistakes += collect_messages(check, experiment)
    return mistakes


def _wrong_values(experiment: Experiment) -> dict[str, str]:
    """Return a message for each key whose value is wrong by itself."""
    wrong = {}
    for key, _ in keys_of():
        for message in check_value(key, value_at(experiment, key)):
            wrong[key] = message
    return wrong


def find_base_mistakes(base: Experiment, names: Collection[str], trains: bool) -> list[str]:
    """Return the mistakes of a sweep's base, with the keys in ``names`` that nothing reads.

    ``trains``: its trials start from this machine, so what they import has to be installed.
    """
    problems = find_mistakes(base)
    is_unknown = any(
        key.startswith(("cluster", "trainer.kind", "tracker.kind")) for key in _wrong_values(base)
    )
    if is_unknown or any(collect_messages(refuse_secrets, asdict(base))):
        return problems
    problems += check_place(base.cluster, names)
    if is_external(base.trainer):
        problems += collect_messages(CHECK_KEYS, base.trainer, names)
    return [*problems, *check_installed(base), *check_tracker(base)] if trains else problems


def collect_messages(check: Callable[..., Iterable[str] | None], *arguments: Any) -> Iterator[str]:
    """Yield the messages of a check that yields or raises them."""
    try:
        yield from check(*arguments) or ()
    except UserError as error:
        yield str(error)


def check_value(key: str, value: Any) -> Iterator[str]:
    """Say if a key has an unknown choice, a word that is no size, or a number outside its range."""
    if key in (ranges := keys_with("range")) and value is not None:
        wanted, low, high = RANGES[ranges[key]]
        if not low <= value <= high:
            unset = ", or null for the default" if default_of(key) is None else ""
            yield f"{key}={value:g}: it takes {wanted}. Set one{unset}."
    elif key in sizes():
        if isinstance(value, str) and value != AUTO:
            yield (
                f"{key}={value}: this is a size, so it takes a whole number or auto. Set "
                f"{key}=auto."
            )
    elif choices(key):
        yield from _choice(key, value)


def check_search(experiment: Experiment) -> Iterator[str]:
    """Name numbers of seeds and evaluations with which nothing could be compared."""
    search = experiment.search
    evaluations = experiment.schedule.evaluations
    if search.seeds == 1 or search.seeds < 0:
        none = "" if search.sampler == "one_factor" else ", or 0 to train no leader again"
        yield (
            f"search.seeds={search.seeds}: an interval needs at least two seeds. Set "
            f"search.seeds=5 (2 at least){none}."
        )
    if search.last > max(evaluations, 1) and not is_external(experiment.trainer):
        yield (
            f"search.last={search.last}: the objective averages over that many evaluations, and "
            "there are "
            f"{evaluations}. Set schedule.evaluations={search.last}, or a smaller search.last."
        )


def check_gpu(experiment: Experiment) -> None:
    """Raise UserError for a GPU that is not in the catalog."""
    read_gpu(experiment.cluster)


def check_prompts(experiment: Experiment) -> Iterator[str]:
    """Say if a task lacks its file of prompts, or would not read it."""
    task = experiment.task
    if TASKS[task.kind].path == "unread" and task.path is not None:
        yield (
            f"task.path={task.path}: task={task.kind} makes its own prompts, so nothing would read "
            "it. Set task=jsonl or task=gsm8k as well."
        )
    if TASKS[task.kind].path == "needed" and task.path is None:
        yield (
            f"task={task.kind}: task.path is not set, so there are no prompts. Set "
            "task.path=prompts.jsonl."
        )


def check_name(experiment: Experiment) -> Iterator[str]:
    """Say if the name is not that of a folder."""
    name = experiment.name
    if name is not None and ("/" in name or name.strip(".") == ""):
        yield (
            f"name={name}: it names a folder under outputs={experiment.outputs}. Set one "
            "without slashes."
        )


def check_optimizer(experiment: Experiment) -> Iterator[str]:
    """Name an optimizer or a schedule that transformers lacks. Other trainers have their own."""
    for name in ("optim", "lr_scheduler_type"):
        value = getattr(experiment.optimizer, name)
        choices = keys.choices(name)
        if value not in choices and base_setting(experiment).framework.follows_trl:
            near = " or ".join(closest_keys(value, choices) or choices)
            yield f"optimizer.{name}={value}: transformers has no such choice. Set {near}."


def check_types(experiment: Experiment) -> Iterator[str]:
    """Name numeric types that TRL cannot train. Other trainers' types are set by their recipes."""
    if runs_trl(experiment.trainer):
        yield from collect_messages(check_precision, experiment.model, experiment.cluster)
        yield from collect_messages(check_generation, experiment)
        yield from collect_messages(check_quantization, experiment)


def check_launcher(experiment: Experiment) -> Iterator[str]:
    """Name what cannot work with the launcher."""
    launcher = load_entry(LAUNCHERS[experiment.cluster.kind])
    yield from collect_messages(launcher.check_gpu_share, experiment)
    yield from collect_messages(launcher.validate, experiment)


def choices(key: str) -> tuple[str, ...]:
    """Return the choices of a key; empty if its type alone defines them."""
    return tuple(REGISTERED[key]()) if key in REGISTERED else keys_with("choices").get(key, ())


def check_choice(key: str, value: Any) -> None:
    """Raise UserError for a value that is not one of its key's choices."""
    refuse_mistakes(_choice(key, value))


def _choice(key: str, value: Any) -> Iterator[str]:
    if value is not None and value not in choices(key):
        name = key.rpartition(".")[2]
        what = {"kind": key.partition(".")[0]}.get(name, name.replace("_", " "))
        yield (
            f"{key}={value}: this is not a {what}. Set one of "
            f"{', '.join(choices(key))}.{suggest_search_key(key, value)}"
        )


def check_installed(experiment: Experiment) -> Iterator[str]:
    """Say if trials would train with TRL here, and only linting and planning are installed."""
    trainer = experiment.trainer
    if runs_trl(trainer) and find_spec("trl") is None:
        yield (
            f"trainer={trainer.kind}: TRL is not installed here. Run pip install '.[train]' in a "
            "checkout of grposweep, or set trainer=fake to try a sweep without training."
        )


# key and value ("*": any) -> module and package that it needs
PACKAGES = {
    ("model.quantization", "*"): ("bitsandbytes", "bitsandbytes"),
    ("model.attn_implementation", "flash_attention_2"): ("flash_attn", "flash-attn"),
    ("model.use_kernels", "*"): ("kernels", "kernels"),
    ("generation.use_vllm", "*"): ("vllm", "'trl[vllm]'"),
}


def check_packages(experiment: Experiment) -> Iterator[str]:
    """Name packages that options of TRL's trainer need and that are not installed here."""
    for (key, wanted), (module, package) in PACKAGES.items():
        value = value_at(experiment, key)
        if value and wanted in ("*", value) and find_spec(module) is None:
            yield (
                f"{key}={str(value).lower()}: {module} is not installed here. Run pip install "
                f"{package}, or leave {key} out."
            )


def check_tracker(experiment: Experiment) -> Iterator[str]:
    """Say if a tracker is not installed, or if TRL would have to write it and another program
    trains.
    """
    kind = experiment.tracker.kind
    tracker = TRACKERS[experiment.tracker.kind]
    if experiment.tracker.mode == "disabled" or not tracker.modules:
        return
    if tracker.is_trls and not runs_trl(experiment.trainer):
        yield (
            f"tracker={kind}: TRL writes it, and trainer={experiment.trainer.kind} is another "
            "program. Set report_to in its own recipe, or tracker=none."
        )
    if experiment.cluster.python is None and not any(map(find_spec, tracker.modules)):
        yield (
            f"tracker={kind}: it is not installed here. Run pip install {tracker.package}, or "
            "set tracker=none."
        )


def check_effort(experiment: Experiment) -> Iterator[str]:
    """Name an effort that no policy of the sweep follows."""
    effort = experiment.search.effort
    stopping = experiment.search.stopping
    followers = " or ".join(name for name, policy in POLICIES.items() if policy.follows_effort)
    if effort is not None and effort < 1 and not follows_effort(stopping):
        yield (
            f"search.effort={effort} with search.stopping={stopping}: only the policy {followers} "
            "follows an effort. Leave one of the two out."
        )
    budget = experiment.search.budget
    if budget is not None:
        is_limit = Budget.parse(budget).hours is not None and not (
            effort is not None and effort < 1
        )
        if not is_limit and (effort is not None or not follows_effort(stopping)):
            other = (
                f"search.effort={effort}" if effort is not None else f"search.stopping={stopping}"
            )
            yield (
                f"search.budget={budget} with {other}: the budget decides which trials "
                "finish. Leave one of the two out."
            )


def check_environment(experiment: Experiment) -> Iterator[str]:
    """Name an environment variable of attempts that a shell cannot set, or that the launcher
    sets.
    """
    for name in experiment.cluster.environment:
        if not re.fullmatch(_VARIABLE, name) or name.startswith(_LAUNCHERS_OWN):
            yield (
                f"cluster.environment has {name}: no shell can set that, or the launcher sets "
                "it itself. Set names of letters, "
                "digits and underscores, such as +cluster.environment.NCCL_DEBUG=INFO."
            )


def check_server(experiment: Experiment) -> Iterator[str]:
    """Say if GPUs are reserved for a vLLM server that is not used, or that runs elsewhere."""
    generation = experiment.generation
    gpus = generation.vllm_gpus
    url = generation.vllm_server_base_url
    for name in ("vllm_gpus", "vllm_server_base_url", "vllm_server_command"):
        value = getattr(generation, name)
        if value and not generation.is_served:
            yield (
                f"generation.{name}={value}: it is of a vLLM server, and none generates. Set "
                f"generation=vllm_server, or leave it out."
            )
    served = gpus or generation.vllm_shared_gpus
    args = generation.vllm_server_args
    if args and (not served or generation.vllm_server_command is not None):
        yield (
            f"generation.vllm_server_args={args}: only TRL's server in the trial reads them. "
            "Set generation.vllm_gpus to how "
            "many GPUs it gets and generation.vllm_server_command=null, or leave them out."
        )
    if gpus and url is not None:
        yield (
            f"generation.vllm_gpus={gpus} and generation.vllm_server_base_url={url}: a server of "
            "the job's own, or one that runs already. Set generation.vllm_gpus=0, or "
            "generation.vllm_server_base_url=null."
        )


# vllm 0.31 config/lora.py, max_lora_rank
LARGEST_RANK = 512


def check_shared_server(experiment: Experiment) -> Iterator[str]:
    """Say if a trial cannot use the vLLM server that all trials share: it holds one base model, and
    adapters.
    """
    generation, lora, gpus = (
        experiment.generation,
        experiment.model.lora,
        experiment.generation.vllm_shared_gpus,
    )
    if not gpus:
        most = generation.vllm_max_loras
        if most is not None:
            yield (
                f"generation.vllm_max_loras={most}: only a shared vLLM server reads it. Set "
                "generation=vllm_shared, or leave it out."
            )
        return
    named = f"generation.vllm_shared_gpus={gpus}"
    if not generation.is_served:
        yield (
            f"{named}: these GPUs are for a vLLM server, and none generates. Set "
            "generation=vllm_shared, or leave it out."
        )
    if not lora.enabled:
        yield (
            f"{named} with model.lora.r=0: trials share the server's base weights, which full "
            "fine-tuning changes. Set model.lora.r=16, or generation=vllm_server, which gives each "
            "trial a server of its own."
        )
    if lora.r > LARGEST_RANK:
        yield (
            f"model.lora.r={lora.r} and {named}: vLLM serves adapters up to rank "
            f"{LARGEST_RANK}. Set a smaller rank."
        )
    layers = [name for name in lora.target_modules if "lm_head" in name or "embed_tokens" in name]
    if layers:
        yield (
            f"model.lora.target_modules has {', '.join(layers)}, and {named}: vLLM applies no "
            "adapter to the output layer or to "
            "embeddings. Take them out, or set generation=vllm_server, which merges the adapter."
        )
    for name in ("vllm_gpus", "vllm_server_base_url", "vllm_server_command"):
        value = getattr(generation, name)
        if value:
            yield (
                f"{named} and generation.{name}={value}: the sweep's server, or another one. "
                "Leave one of them out."
            )
    if gpus != (size := generation.vllm_tensor_parallel_size):
        yield (
            f"{named} and generation.vllm_tensor_parallel_size={size}: a server with several "
            "engines would load an adapter into "
            f"one of them only. Set generation.vllm_tensor_parallel_size={gpus}."
        )
    if is_external(experiment.trainer):
        yield (
            f"{named} with trainer={experiment.trainer.kind}: that program sends no adapters to "
            "it. Set generation=transformers."
        )
    share = experiment.cluster.trials_per_gpu
    used = generation.vllm_gpu_memory_utilization
    if isinstance(share, int) and share > 1 and gpus > 1:
        yield (
            f"{named} and cluster.trials_per_gpu={share}: a server that shares has one. Set "
            "generation.vllm_shared_gpus=1."
        )
    elif isinstance(share, int) and share > 1 and used * share > 1:
        yield (
            f"generation.vllm_gpu_memory_utilization={used} and cluster.trials_per_gpu={share}: "
            f"the server takes the place of one of {share} trials on a GPU. Set "
            f"generation.vllm_gpu_memory_utilization={100 // share / 100}."
        )


# trainer.offload -> kinds of sharding
OFFLOADS = {"optimizer": ("zero1", "zero2", "zero3"), "all": ("zero3", "fsdp")}
# transformers 5.23 training_args.py, fsdp_config
FSDP_KEYS = (
    "reshard_after_forward",
    "cpu_offload",
    "activation_checkpointing",
    "cpu_ram_efficient_loading",
    "state_dict_type",
    "auto_wrap_policy",
    "transformer_layer_cls_to_wrap",
    "min_num_params",
)


def check_sharding_options(experiment: Experiment) -> Iterator[str]:
    """Name options that this kind of sharding lacks, and a DeepSpeed file that does not fit."""
    trainer = experiment.trainer
    sharding = trainer.sharding
    offload = trainer.offload
    if offload != "none" and sharding not in OFFLOADS[offload]:
        yield (
            f"trainer.offload={offload} and trainer.sharding={sharding}: it moves sharded "
            "states to main memory. Set "
            f"trainer.sharding to one of {', '.join(OFFLOADS[offload])}, or trainer.offload=none."
        )
    if trainer.fsdp_config and sharding != "fsdp":
        yield (
            f"trainer.fsdp_config and trainer.sharding={sharding}: nothing would read it. Set "
            "trainer.sharding=fsdp, or leave it out."
        )
    unknown = sorted(set(trainer.fsdp_config) - set(FSDP_KEYS))
    if unknown:
        yield (
            f"trainer.fsdp_config has {', '.join(unknown)}: transformers does not know that. "
            f"Set any of {', '.join(FSDP_KEYS)}."
        )
    if trainer.deepspeed_config is not None:
        yield from check_deepspeed_file(trainer)


def check_fsdp_options(experiment: Experiment) -> Iterator[str]:
    """Name FSDP options that contradict those of the model or the reference.

    Sources: to_setting.loads_once; transformers 5.23 trainer.py,
    create_accelerator_and_postprocess.
    """
    options, model, beta = experiment.trainer.fsdp_config, experiment.model, experiment.kl.beta
    if options.get("cpu_ram_efficient_loading") and beta != 0 and not model.lora.enabled:
        yield (
            f"trainer.fsdp_config.cpu_ram_efficient_loading=true and kl.beta={beta:g}: only one "
            "rank of a node would load the reference model, and the others would compare with "
            "arbitrary weights. Leave it out, or set kl=none."
        )
    if options.get("activation_checkpointing") and model.gradient_checkpointing:
        yield (
            "trainer.fsdp_config.activation_checkpointing=true and "
            "model.gradient_checkpointing=true: transformers takes one of "
            "them. Set model.gradient_checkpointing=false."
        )


OF_THE_TRIAL = (
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
    "gradient_clipping",
)


def check_deepspeed_file(trainer: Trainer) -> Iterator[str]:
    """Say if the file is unreadable, has another stage than ``trainer.sharding``, or sets options
    twice.
    """
    named = f"trainer.deepspeed_config={trainer.deepspeed_config}"
    if trainer.offload != "none":
        yield (
            f"{named} and trainer.offload={trainer.offload}: the file says what is offloaded. "
            "Leave one out."
        )
    try:
        content = parse_json(read_bytes(Path(str(trainer.deepspeed_config))))
        stage = content["zero_optimization"]["stage"]
    except OSError as error:
        yield (
            f"{named}: it cannot be read ({error.strerror}). Name a file of DeepSpeed's "
            "configuration."
        )
        return
    except (ValueError, KeyError, TypeError):
        yield (
            f"{named}: it is not JSON with zero_optimization.stage. Name a file of DeepSpeed's "
            "configuration."
        )
        return
    fixed = [name for name in OF_THE_TRIAL if content.get(name, AUTO) != AUTO]
    if fixed:
        yield (
            f"{named} sets {', '.join(fixed)}, and every trial has its own. Write auto for them "
            "in the file."
        )
    if trainer.sharding != f"zero{stage}":
        yield (
            f"{named} has stage {stage}, and trainer.sharding={trainer.sharding}: plan and memory "
            f"would be judged wrongly. Set trainer.sharding=zero{stage}."
        )


# Checks of several keys, each with the choices and counts that it reads (or the sections that hold
# them).
CHECKS: dict[Callable[[Experiment], Iterable[str] | None], tuple[str, ...]] = {
    check_name: (),
    check_environment: (),
    check_effort: ("search.stopping",),
    check_search: ("search.last", "trainer.kind"),
    check_gpu: (),
    check_prompts: ("task.kind",),
    check_args: ("trainer.kind",),
    check_optimizer: ("trainer.kind",),
    check_types: ("model", "trainer.kind", "trainer.sharding"),
    check_sharding_options: ("trainer.sharding", "trainer.offload"),
    check_fsdp_options: (),
    check_server: ("generation.vllm_mode",),
    check_shared_server: ("generation.vllm_shared_gpus", "trainer.kind"),
    check_launcher: ("cluster", "generation", "trainer.kind"),
    CHECK_PROGRAM: ("cluster", "trainer.kind"),
}


def check_place(cluster: Cluster, names: Collection[str]) -> Iterator[str]:
    """Say if a command sets keys that the launcher does not read, and chooses no cluster.

    ``names`` are the keys and groups of the command. Keys in a file are no mistake: a study for
    Slurm may be run with ``cluster=local``, and exported.
    """
    launcher = load_entry(LAUNCHERS[cluster.kind])
    unread = launcher.unread_keys() if {"cluster", "cluster.kind"}.isdisjoint(names) else ()
    set_here = [
        key
        for key in unread
        if key in names and value_at(Experiment(cluster=cluster), key) != default_of(key)
    ]
    if set_here and launcher.section is not ThisMachine:
        yield f"cluster={cluster.kind} does not read {' and '.join(set_here)}. Leave it out."
    elif set_here:
        yield (
            f"only cluster=slurm reads {' and '.join(set_here)}, and these trials would train on "
            "this machine. Set cluster=slurm, or cluster=local to train here."
        )
