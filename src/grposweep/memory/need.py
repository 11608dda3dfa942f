"""What decides a rank's memory, gathered from a setting; None of the setting's other fields matter."""

from dataclasses import dataclass

from grposweep.architecture import Architecture
from grposweep.memory.layers import FLOAT, Lora
from grposweep.plan import micro_steps_per_generation
from grposweep.setting import Setting

HALF = 2  # bytes of a bfloat16
ASSUMED_PROMPT_TOKENS = 512  # where nobody has counted them
READS = (  # the setting's fields behind an estimate, for rules that say what they read
    "architecture",
    "weights_dtype",
    "gradient_checkpointing",
    "lora",
    "lora_rank",
    "lora_targets",
    "autocast_dtype",
    "sharding",
    "optim",
    "processes",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_iterations",
    "evaluates",
    "per_device_eval_batch_size",
    "beta",
    "prompt_tokens",
    "max_prompt_length",
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "use_vllm",
    "vllm_mode",
    "vllm_gpu_memory_utilization",
    "vllm_enable_sleep_mode",
    "gpu_memory_gib",
    "memory_factor",
)


@dataclass(frozen=True)
class Need:
    """Sizes of one rank: ``batch`` completions a micro-step, ``rollout`` completions that it generates at once.

    ``scored`` completions pass through the model at once without gradients: a micro-batch, or an evaluation's batch.
    ``length`` is of prompt and completion, in tokens; ``width`` bytes an element of the model, ``compute`` of what its
    matrices are multiplied in (less under autocast).
    """

    model: Architecture
    width: int
    compute: int
    batch: int
    rollout: int
    scored: int
    prompt: int
    completion: int
    processes: int
    accumulates: bool
    checkpoints: bool
    has_reference: bool
    optim: str
    sharding: str
    lora: Lora | None
    engine_share: float  # of the GPU's memory that vLLM takes
    engine_sleeps: bool  # while nothing is generated
    is_filtered: bool  # the distribution that is sampled from: by a temperature or the k likeliest
    is_nucleus: bool  # by the likeliest of a mass, which sorts the vocabulary
    gpu_gib: float | None

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.prompt + self.completion

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch * self.length

    @property
    def shards(self) -> int:
        """Among how many ranks a sharded part is divided."""
        return max(self.processes, 1)

    @property
    def trained(self) -> int:
        """Parameters with a gradient."""
        model = self.model
        return model.weights if self.lora is None else model.adapters(self.lora.rank, self.lora.targets)

    @property
    def trained_width(self) -> int:
        """Bytes of one of them: peft keeps adapters in float32, but for ZeRO-3. Source: trl grpo_trainer.py:461."""
        return self.width if self.lora is None or self.sharding == "zero3" else FLOAT


def find_prompt(s: Setting) -> int | None:
    """The tokens of the longest prompt: as counted, or as the recipe cuts them; None where neither is known."""
    return s.prompt_tokens or s.max_prompt_length


def read_need(s: Setting) -> Need | None:
    """The need behind a setting; None where its model's shape is unknown, or its sizes are none."""
    model = s.architecture
    if model is None or min(s.per_device_train_batch_size, s.gradient_accumulation_steps) < 1:
        return None
    if s.generation_batch_size is not None and s.processes is None:
        return None
    micro_steps = max(micro_steps_per_generation(s), 1)
    width = FLOAT if s.weights_dtype == "float32" else HALF
    evaluated = s.per_device_eval_batch_size if s.evaluates else 0
    colocated = s.use_vllm and s.vllm_mode == "colocate"
    return Need(
        model=model,
        width=width,
        compute=HALF if s.autocast_dtype else width,
        batch=s.per_device_train_batch_size,
        rollout=0 if s.use_vllm else max(s.per_device_train_batch_size * micro_steps, evaluated),
        scored=max(s.per_device_train_batch_size, evaluated),
        prompt=find_prompt(s) or ASSUMED_PROMPT_TOKENS,
        completion=s.max_completion_length,
        processes=s.processes or 1,
        accumulates=s.gradient_accumulation_steps > 1,
        checkpoints=s.gradient_checkpointing,
        has_reference=s.beta != 0 and not s.lora,
        optim=s.optim or "adamw_torch",
        sharding=s.sharding,
        lora=Lora(s.lora_rank, s.lora_targets) if s.lora else None,
        engine_share=(s.vllm_gpu_memory_utilization or 0.3) if colocated else 0.0,
        engine_sleeps=s.vllm_enable_sleep_mode,
        is_filtered=s.temperature != 1 or bool(s.top_k),
        is_nucleus=s.top_p is not None and s.top_p < 1,
        gpu_gib=s.gpu_memory_gib,
    )
