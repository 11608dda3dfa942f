"""Determine the numeric types of a training: of the stored weights, and of matrix products.

``model.dtype`` is the type of the weights, ``model.mixed_precision`` accelerate's autocast. Float16
has too little range for the weights that are trained: torch refuses to unscale their gradients
(torch amp/grad_scaler.py).
"""

from dataclasses import dataclass

from grporecipe.errors import UserError
from grporecipe.memory.catalog import has_bfloat16
from grposweep.schema import AUTO, Cluster, Experiment, Model

# by type of weights, if mixed precision is not set
IMPLIED = {"float32": "none", "bfloat16": "bf16", "float16": "fp16"}
COMPUTED = {"bf16": "bfloat16", "fp16": "float16", "none": "float32"}


@dataclass(frozen=True)
class Precision:
    """The numeric types: ``weights`` is a torch dtype, ``mixed`` is accelerate's mixed precision
    (bf16, fp16 or none).
    """

    weights: str
    mixed: str

    @property
    def autocast(self) -> str | None:
        """Return the type of matrix products if autocast makes it differ from the weights' type."""
        computed = COMPUTED.get(self.mixed, self.weights)
        return None if self.mixed == "none" or computed == self.weights else computed

    @property
    def computed(self) -> str:
        """Return the type of matrix products."""
        return self.autocast or self.weights


def read_precision(model: Model) -> Precision:
    """Return the precision of a training on GPUs. ``auto`` weights are float32 if trained, half
    precision under an adapter.
    """
    if model.dtype != AUTO:
        return Precision(model.dtype, model.mixed_precision or IMPLIED.get(model.dtype, "none"))
    mixed = model.mixed_precision or "bf16"
    if not model.lora.enabled:
        return Precision("float32", mixed)
    return Precision(COMPUTED.get(mixed, "float32"), mixed)


def check_precision(model: Model, cluster: Cluster | None = None) -> None:
    """Raise UserError for types that cannot be trained together, or that ``cluster.gpu`` cannot
    compute in.
    """
    if model.dtype not in (AUTO, *IMPLIED):
        raise UserError(
            f"model.dtype={model.dtype} is not a type that a model can be trained in. Set one "
            f"of: {', '.join((AUTO, *IMPLIED))}."
        )
    precision = read_precision(model)
    if precision.weights == "float16" and not (model.lora.enabled and precision.mixed == "fp16"):
        raise UserError(
            "model.dtype=float16: float16 weights cannot be trained, because their gradients "
            "cannot be unscaled. Set model.dtype=float32 with model.mixed_precision=fp16, or add "
            "an adapter (model.lora.r=16)."
        )
    if precision.weights == "bfloat16" and precision.mixed == "fp16":
        raise UserError(
            "model.dtype=bfloat16 and model.mixed_precision=fp16: bfloat16 needs GPUs from "
            "Ampere on, and fp16 is for "
            "older ones. Set model.dtype=auto, which chooses the weights by the mixed precision."
        )
    if precision.computed == "float32" and (model.attn_implementation or "").startswith(
        "flash_attention"
    ):
        raise UserError(
            f"model.attn_implementation={model.attn_implementation}: flash attention computes "
            "in bfloat16 or float16, and this "
            "model in float32. Set model.dtype=auto, or model.attn_implementation=sdpa."
        )
    gpu = cluster.gpu if cluster else None
    if (
        gpu is not None
        and "bfloat16" in (precision.weights, precision.computed)
        and not has_bfloat16(gpu)
    ):
        raise UserError(no_bfloat16(f"cluster.gpu={gpu}"))


def check_generation(experiment: Experiment) -> None:
    """Raise UserError if TRL would cast the trained weights to half precision to generate.

    Continuous batching calls ``to()`` on the trained model. Source: trl 1.16 grpo_trainer.py,
    _generate_single_turn.
    """
    model, precision, name = (
        experiment.model,
        read_precision(experiment.model),
        "use_transformers_continuous_batching",
    )
    # peft keeps adapters in float32
    is_float = precision.weights == "float32" or model.lora.enabled
    if experiment.trainer.args.get(name) and precision.mixed != "none" and is_float:
        raise UserError(
            f"trainer.args.{name}=true: TRL casts the trained weights to "
            f"{COMPUTED[precision.mixed]} for it, so they would no longer be float32. Set "
            "generation.use_vllm=true instead, or model.dtype=bfloat16 without an adapter."
        )


def check_quantization(experiment: Experiment) -> None:
    """Raise UserError if quantized weights would have to be trained, sharded, or sent to vLLM.

    TRL merges the adapter into the base, sends ``param.data`` and unmerges. With bitsandbytes that
    is the packed integers without their scales, and each merge and unmerge rounds the base again.
    Sources: trl 1.16 generation/vllm_generation.py, _iter_named_params; peft tuners/lora/bnb.py;
    https://github.com/huggingface/trl/issues/4973 (open: vLLM refuses the shapes).
    """
    model, generation, sharding = (
        experiment.model,
        experiment.generation,
        experiment.trainer.sharding,
    )
    named = f"model.quantization={model.quantization}"
    if model.quantization is None:
        return
    if not model.lora.enabled:
        raise UserError(
            f"{named}: quantized weights cannot be trained. Set model.lora.r=16 (QLoRA), "
            "or model.quantization=null."
        )
    if sharding in ("zero3", "fsdp"):
        raise UserError(
            f"{named} and trainer.sharding={sharding}: quantized weights cannot be divided among "
            "ranks here. Set trainer.sharding=zero2."
        )
    if generation.use_vllm:
        raise UserError(
            f"{named} and generation.use_vllm=true: TRL sends vLLM the packed integers of the "
            "weights without their scales, and rounds the frozen weights again each time. Set "
            "generation.use_vllm=false, or model.quantization=null."
        )


def no_bfloat16(gpu: str) -> str:
    """Return the message for a GPU older than NVIDIA's Ampere."""
    return (
        f"{gpu}: this GPU has no bfloat16 arithmetic and emulates it slowly, and model.dtype and "
        "model.mixed_precision compute in it. Set model.dtype=auto model.mixed_precision=fp16."
    )
