"""GT: processes, parallelism, the place of vLLM, and the launcher.

Sources: trl 0.18-1.16 trainer/grpo_config.py, trainer/grpo_trainer.py,
generation/vllm_generation.py, cli/.
"""

from grporecipe.model.effect import find_lack
from grporecipe.model.setting import ROWS, TRL, TRL_LIKE, Setting
from grporecipe.rules.batch import SIZES, whole_groups
from grporecipe.rules.helpers import (
    divides_the_processes,
    each,
    every_count,
    it_or_them,
    named,
    nearest_first,
    no_field,
)
from grporecipe.rules.registry import Change, Finding, Violation, rule

VLLM_MODES, COLOCATED, MODE_CHECKED = ("colocate", "server"), (0, 18), (0, 18)
SINGLE_GPU_CHECKED = (1, 15)
# options of a vLLM in one place
PLACED = tuple(name for name, known in ROWS.items() if "vllm_mode" in known.needs)
# trl 0.15 trainer/grpo_trainer.py starts vLLM itself, on a separate GPU
VLLM_HAS_A_PLACE = (0, 16)
# the first release with the error; `make trl-release` says if its code changed since
UNMERGES_EARLY = (1, 11, 0)
# the first TRL whose command builds the configuration itself
LAUNCHER_CHECKS = (1, 0, 0)


rule(
    "GT101",
    "error",
    ("sequence_parallel_size", "context_parallel_size"),
    title="sequences are whole",
    text="""GRPO builds its inputs after generating, so a sequence cannot be shared between
    processes.

    TRL since 1.4: "GRPOTrainer does not support sequence-dim parallelism
    (`parallelism_config.cp_size > 1` or `parallelism_config.sp_size > 1`) yet." Before, nothing is
    checked and nothing is sharded either.
    """,
)(
    no_field(
        ("sequence_parallel_size", "context_parallel_size"),
        lambda _s, _, value: value > 1,
        "TRL generates inside the trainer and cannot share a sequence between processes",
        "Set {}=1.",
        lambda name: ({name: 1},),
    )
)


@rule(
    "GT102",
    "error",
    ("tensor_parallel_size",),
    blames=("tensor_parallel_size",),
    why=(
        "TRL counts tensor parallel processes as if each had data of its own, so prompts are "
        "silently left out"
    ),
    instead="Set {tensor_parallel_size}=1; to shard the model, use FSDP or DeepSpeed ZeRO.",
    to=({"tensor_parallel_size": 1},),
)
def every_process_has_its_own_data(s: Setting) -> bool:
    """Tensor parallel processes share their data, but TRL treats each as if it had its own.

    With 2 of them and an even number of micro-steps, TRL never generates for half of the prompts.
    Otherwise a rollout holds half as many prompts as configured. There is no message. Simulated
    with trl 1.16 (W reports 2, one process reads data).
    """
    return s.tensor_parallel_size > 1


def _colocates(s: Setting) -> bool:
    return (
        s.use_vllm
        and s.vllm_mode == "colocate"
        and s.version >= COLOCATED
        and s.vllm_tensor_parallel_size > 1
    )


rule(
    "GT103",
    "error",
    ("version", "processes", "use_vllm", "vllm_mode", "vllm_tensor_parallel_size"),
    "by trial",
    of=TRL_LIKE,
    title="vLLM shares all processes",
    text="""Colocated vLLM splits the processes into groups of ``vllm_tensor_parallel_size``, which
    must be whole.

    TRL 1.16, after the model is loaded: "tensor_parallel_size (3) must divide world size (8)
    evenly."
    """,
)(
    divides_the_processes(
        "vllm_tensor_parallel_size",
        is_checked=_colocates,
        suggest=lambda size, processes: nearest_first(range(1, processes + 1), size),
    )
)


@rule(
    "GT104",
    "error",
    ("version", "use_vllm", "vllm_mode"),
    blames=("vllm_mode",),
    why="vLLM runs in a server or colocated with training",
    instead="Set {vllm_mode}=colocate or server.",
    to=each("vllm_mode", VLLM_MODES),
)
def vllm_has_a_place(s: Setting) -> bool:
    """vLLM runs in a separate server or colocated with training.

    TRL 1.16, after the model is loaded: "vllm_mode must be either 'server' or 'colocate', got
    'foo'."
    """
    return s.use_vllm and s.vllm_mode not in VLLM_MODES and s.version >= MODE_CHECKED


def _shares_a_process(s: Setting) -> bool:
    """Return whether a single process sees several GPUs."""
    return s.launcher == "python" and (s.visible_gpus or 0) > 1 and (s.processes or 1) == 1


@rule(
    "GT105",
    "error",
    ("version", "visible_gpus", "launcher", "processes"),
    every_count,
    blames=("visible_gpus", "launcher"),
    why="a single process sees all of them, and TRL refuses it",
    instead="Launch with accelerate launch or torchrun, or set CUDA_VISIBLE_DEVICES=0.",
)
def several_gpus_have_a_launcher(s: Setting) -> bool:
    """A single process that sees several GPUs uses DataParallel, which GRPO does not support:
    launch one process per GPU.

    TRL since 1.15: "GRPOTrainer does not support `nn.DataParallel`, which `Trainer` uses when
    several GPUs are visible to a single process." GT204 speaks of older releases.
    """
    return s.version >= SINGLE_GPU_CHECKED and _shares_a_process(s)


@rule(
    "GT204",
    "warning",
    ("version", "visible_gpus", "launcher", "processes"),
    blames=("visible_gpus", "launcher"),
    why=(
        "a single process sees all of them, so this TRL silently multiplies the batch by "
        "{s.visible_gpus} (DataParallel)"
    ),
    instead="Launch with accelerate launch or torchrun, or set CUDA_VISIBLE_DEVICES=0.",
)
def several_gpus_do_not_multiply_the_batch(s: Setting) -> bool:
    """Before TRL 1.15 a single process that sees several GPUs trains:
    ``per_device_train_batch_size`` applies to each of them.

    transformers training_args.py ``train_batch_size``: B times ``n_gpu``. The group and batch rules
    of TRL do not count it.
    """
    return s.version < SINGLE_GPU_CHECKED and _shares_a_process(s)


@rule(
    "GT106",
    "error",
    ("server_gpus", "nodes", "gpus_per_node", "vllm_tensor_parallel_size"),
    of=TRL_LIKE,
    blames=("server_gpus", "nodes", "gpus_per_node"),
    why="{reason}",
    instead="{advice}",
)
def a_vllm_server_has_its_gpus(s: Setting) -> Finding:
    """A job's own vLLM server takes GPUs from training: some of a single node, or all GPUs of the
    last of several nodes.

    Ranks are distributed evenly over the training nodes, so a node belongs either to the server or
    to training. A server on two nodes would need Ray. It splits its GPUs into groups of
    ``vllm_tensor_parallel_size``. Source: slurm/trial.sbatch.j2; Open-R1's slurm/train.slurm gives
    the server the last node.
    """
    if not s.server_gpus or s.nodes is None or not s.gpus_per_node:
        return None
    size = s.vllm_tensor_parallel_size
    places = [s.gpus_per_node] if s.nodes > 1 else range(1, s.gpus_per_node)
    fitting = [n for n in places if n > 0 and size > 0 and n % size == 0]
    if s.server_gpus in fitting:
        return None
    reason = f"the server splits them into groups of {s.key('vllm_tensor_parallel_size')}={size}"
    if s.nodes > 1 and s.server_gpus != s.gpus_per_node:
        reason = (
            f"of {s.nodes} nodes the server takes the last one whole, which has "
            f"{s.gpus_per_node} GPUs"
        )
    elif s.server_gpus >= s.gpus_per_node:
        reason = f"the job has {s.gpus_per_node} GPUs, so none is left to train"
    advice = "Give the job other GPUs."
    if fitting:
        advice = f"Set {s.key('server_gpus')}={' or '.join(map(str, fitting))}."
    return {"reason": reason, "advice": advice}


@rule(
    "GT107",
    "error",
    ("version", "given", "use_vllm", "vllm_mode", "lora"),
    blames=("vllm_mode", "lora"),
    what="{vllm_mode}=server with {lora}",
    to=({"vllm_mode": "colocate"},),
    why=(
        "this TRL sends the weights of an adapter unmerged, so the server samples from the base "
        "model and nothing fails"
    ),
    instead="Set {vllm_mode}=colocate, train all weights, or use a TRL before 1.11.",
)
def a_vllm_server_gets_the_adapter(s: Setting) -> bool:
    """TRL since 1.11 sends a vLLM server the base model's weights while an adapter is trained. No
    message.

    It yields views of the merged weights and unmerges them before vLLM copies its last buffer of 1
    GiB: of a model below that size all weights, of a larger one the last layers. Measured with trl
    1.16 and vllm 0.31: ``sampling/sampling_logp_difference/mean`` grows from 5e-7 to 3e-2 in the
    first four steps. Our own TRL trainer copies the weights in time. Source: trl 1.16
    generation/vllm_generation.py, _iter_named_params.
    """
    # a newer release was not read
    has_the_error = UNMERGES_EARLY <= s.version <= TRL
    return bool(s.given) and s.lora and s.use_vllm and s.vllm_mode == "server" and has_the_error


def _head_divisors(s: Setting) -> tuple[Change, ...]:
    heads = s.architecture.heads if s.architecture else 1
    return each("vllm_tensor_parallel_size", (n for n in range(1, 17) if heads % n == 0))


@rule(
    "GT108",
    "error",
    ("use_vllm", "vllm_mode", "server_gpus", "vllm_tensor_parallel_size", "architecture"),
    blames=("vllm_tensor_parallel_size",),
    why="vLLM splits the model's {heads} attention heads, which {size} does not divide",
    instead="Set {vllm_tensor_parallel_size} to one of {divisors}.",
    to=_head_divisors,
)
def vllm_splits_whole_heads(s: Setting) -> Finding:
    """vLLM's tensor parallel ranks take whole attention heads each; 14 of them (Qwen2.5-0.5B)
    cannot be split among 4.

    vLLM 0.31 at its start: "Total number of attention heads (14) must be divisible by tensor
    parallel size (4)." Key-value heads are copied if there are fewer.
    """
    size = s.vllm_tensor_parallel_size
    has_engine = s.use_vllm and (s.vllm_mode == "colocate" or s.server_gpus > 0)
    if not has_engine or s.architecture is None or size < 1 or s.architecture.heads % size == 0:
        return None
    divisors = ", ".join(str(change["vllm_tensor_parallel_size"]) for change in _head_divisors(s))
    return {"heads": s.architecture.heads, "size": size, "divisors": divisors}


@rule(
    "GT109",
    "error",
    (
        "use_vllm",
        "vllm_mode",
        "server_gpus",
        "server_command",
        "vllm_tensor_parallel_size",
        "architecture",
    ),
    blames=("server_gpus", "vllm_tensor_parallel_size"),
    why=(
        "the server would run {engines} engines next to each other, which TRL supports for "
        "mixtures of experts only"
    ),
    instead="Set {server_gpus}={s.vllm_tensor_parallel_size}, and train on the others.",
    to=lambda s: (
        {"vllm_tensor_parallel_size": s.server_gpus},
        {"server_gpus": s.vllm_tensor_parallel_size},
    ),
)
def a_dense_model_has_one_engine(s: Setting) -> Finding:
    """A job's own vLLM server for a dense model has exactly one engine: as many GPUs as
    ``vllm_tensor_parallel_size``.

    TRL 1.16 scripts/vllm_serve.py: "For dense models, keep this [data_parallel_size] at 1. Setting
    this above 1 for dense models is not supported/useful and will error out (see vLLM PR #30739)."
    """
    size = s.vllm_tensor_parallel_size
    if (
        not s.use_vllm
        or s.vllm_mode != "server"
        or s.architecture is None
        or s.server_command is not None
        or size < 1
    ):
        return None
    if s.server_gpus > size:
        return {"engines": s.server_gpus // size}
    return None


@rule(
    "GT202",
    "warning",
    ("given", "unknown", "use_vllm", "version", "vllm_mode", *PLACED),
    of=TRL_LIKE,
)
def vllm_reads_its_options(s: Setting) -> Violation | None:
    """A colocated vLLM ignores ``vllm_server_*``; a server has its own memory, tensor parallel size
    and model length. Before TRL 0.16 vLLM is in the trainer's process, and reads all of its
    options. 0.16 and 0.17 have a server only, and accept options for a colocated one.
    """
    names = [name for name in PLACED if name in s.given and find_lack(s, name)]
    has_place = s.use_vllm and s.vllm_mode in VLLM_MODES and s.version >= VLLM_HAS_A_PLACE
    if not names or not has_place:
        return None
    it = it_or_them(names)
    reason = f"{s.key('vllm_mode')}={s.vllm_mode} does not read {it}"
    if s.version < MODE_CHECKED:
        reason = f"TRL 0.16 and 0.17 generate on a vLLM server alone, and do not read {it}"
    instead = "Leave it out."
    if s.vllm_mode == "server":
        instead = "Give it to the server's own command, trl vllm-serve."
    return Violation(named(s, names), reason, instead, ("vllm_mode", *names))


@rule(
    "GT203",
    "warning",
    (*SIZES, "unsolved", "num_generations", "launcher"),
    blames=("num_generations", "processes"),
    why=(
        "correct for {s.processes} processes, but the trl command checks it with one process "
        "before it starts them"
    ),
    instead=(
        "Launch with accelerate launch -m trl.scripts.grpo, or choose sizes that fit one "
        "process too."
    ),
)
def the_launcher_accepts_it(s: Setting) -> bool:
    """``trl grpo`` builds the configuration once in its launcher, with one process, before it
    starts the others.

    So B S must hold whole groups by itself. Measured with trl 1.16: B 1, G 8 meant for 8 processes
    is refused ("generation_batch_size (1) must be divisible by num_generations (8)."), and runs
    under torchrun. Before 1.0 the command's launcher builds no configuration.
    """
    if s.launcher != "trl" or not s.processes or s.processes < 2 or s.version < LAUNCHER_CHECKS:
        return False
    return whole_groups(s) is None and whole_groups(s.replace({"processes": 1})) is not None
