"""Read the fields for the memory estimate by framework: the model's shape, types, sharding,
offload, and logits.

Sources: trl 1.16 trainer/model_config.py, base_config.py; verl 0.9 workers/config,
workers/actor/dp_actor.py; EasyR1 0.3.3 verl/workers/config.py, workers/actor/dp_actor.py,
fsdp_workers.py; ms-swift 4.6 arguments, rlhf_trainers/grpo_trainer.py.
"""

from dataclasses import replace
from typing import Any, Literal

from grporecipe.fields.lora import PEFT_TARGETS
from grporecipe.fields.reading import values_of
from grporecipe.files import Config
from grporecipe.memory.catalog import find_bits, find_model
from grporecipe.model.framework import FRAMEWORKS, Values
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Runtime, Setting
from grporecipe.model.values import Fields, read_mapping

HALF = frozenset({"bfloat16", "float16", "bf16", "fp16", "auto", "torch.bfloat16", "torch.float16"})
# TRL's first release that does not hold all logits
TILES = (1, 15, 0)
# verl's first release with lora_rank; entropy is no longer computed if its coefficient is 0
VERL_LORA = (0, 4, 0)
STAGES = ("zero3", "zero2", "zero1")
# of one image token of Qwen2-VL and Qwen2.5-VL
PIXELS = 28 * 28

Head = Literal["tiles", "whole", "packed"]

# the key of TRL and ms-swift for the type of the weights, in some release
DTYPES = ("dtype", "torch_dtype")


def describe(recipe: Recipe, s: Setting) -> Setting:
    """Return the setting with the fields for the memory estimate, unchanged if model or trainer is
    unknown.
    """
    name = str(s.model_name_or_path or "")
    model = find_model(name)
    read = FRAMEWORKS[s.framework.name].memory
    if model is None or read is None:
        return s
    fields = read(values_of(recipe), s)
    if fields is None:
        return s
    if not fields["runtime"].weight_bits and s.lora:
        fields["runtime"] = replace(fields["runtime"], weight_bits=find_bits(name))
    return s.replace(
        {"architecture": model, "lora_targets": s.lora_targets or PEFT_TARGETS, **fields}
    )


def describe_types(recipe: Recipe, s: Setting) -> Setting:
    """Return the setting with the type of the weights, who steps them, and the model's shape if it
    is known.

    Megatron steps float32 copies (its distributed optimizer), also that of ms-swift.
    """
    is_megatron = "megatron" in recipe.launch.program
    read = FRAMEWORKS[s.framework.name].memory
    fields = None
    if read is not None and not is_megatron:
        fields = read(values_of(recipe), s)
    types: Fields = {"architecture": find_model(str(s.model_name_or_path or ""))}
    for name in ("weights_dtype", "sharding", "runtime", "keys"):
        if fields and name in fields:
            types[name] = fields[name]
    return s.replace(types)


def read_trl(values: Values, s: Setting, is_unsloth: bool = False) -> Fields:
    """Read TRL, Open-R1 and Unsloth: weights are float32 unless the recipe sets another type.

    Gradient checkpointing is on by default since 0.22, and ``bf16`` since 0.19.
    """
    config = values.recipe.config
    stated = {**read_mapping(config.get("model_init_kwargs")), **config}
    weights = next((stated[key] for key in DTYPES if stated.get(key)), "float32")
    key = "dtype"
    if "torch_dtype" in config:
        key = "torch_dtype"
    has_bf16 = config.get("bf16", s.version >= (0, 19, 0)) is not False
    has_tiles = s.version >= TILES or s.use_liger_kernel or is_unsloth
    checkpoints = config.get("gradient_checkpointing", s.version >= (0, 22, 0))
    bits = 0
    if s.lora:
        bits = _bits(config, is_unsloth)
    fields: Fields = {
        "weights_dtype": "float32",
        "autocast_dtype": None,
        "gradient_checkpointing": checkpoints is True or checkpoints == "unsloth",
        "keys": {**s.keys, "weights_dtype": key},
        "sharding": _sharding(config.get("deepspeed"), s),
        "runtime": Runtime(
            head=_head(has_tiles),
            flash="flash" in str(config.get("attn_implementation")),
            **_offload(config.get("deepspeed")),
            weight_bits=bits,
        ),
    }
    if str(weights) in HALF:
        fields["weights_dtype"] = "bfloat16"
    elif has_bf16 or config.get("fp16") is True:
        fields["autocast_dtype"] = "bfloat16"
    return fields


def read_ms_swift(values: Values, s: Setting) -> Fields:
    """Read ms-swift: the model's own type (bfloat16), LoRA of rank 8 on all linear modules, all
    logits as in TRL 0.x.
    """
    stage = values.word("deepspeed")
    bits = 0
    if s.lora and str(values.get("quant_bits")) in ("4", "8"):
        bits = int(values.get("quant_bits"))
    offload = _offload(stage)
    if not offload:
        names = {"weights": "offload_model", "optimizer": "offload_optimizer"}
        offload = {"offloads": _named(values, **names)}
    types: Fields = {"weights_dtype": "bfloat16", "autocast_dtype": None}
    if values.word("torch_dtype") in ("float32", "fp32"):
        types = {"weights_dtype": "float32", "autocast_dtype": "bfloat16"}
    return {
        **types,
        "gradient_checkpointing": values.flag("gradient_checkpointing", True),
        "keys": {**s.keys, "weights_dtype": "torch_dtype"},
        "sharding": _sharding(stage, s),
        "runtime": Runtime(
            head=_head(values.flag("use_liger_kernel")),
            flash="flash" in values.word("attn_impl"),
            packs=values.flag("padding_free"),
            weight_bits=bits,
            **offload,
        ),
    }


def read_verl(values: Values, s: Setting) -> Fields | None:
    """Read verl with FSDP: float32 shards, half precision in between, sequences without padding."""
    actor = "actor_rollout_ref.actor"
    model = "actor_rollout_ref.model"
    if s.engine not in (None, "dp", "fsdp", "fsdp2"):
        return None
    tokens = None
    if s.dynamic_batching:
        tokens = values.get(f"{actor}.ppo_max_token_len_per_gpu", "int")
    return {
        **_fsdp(s, values.word(f"{actor}.fsdp_config.model_dtype")),
        "keys": {**s.keys, "weights_dtype": f"{actor}.fsdp_config.model_dtype"},
        "gradient_checkpointing": values.flag(f"{model}.enable_gradient_checkpointing", True),
        "vllm_enable_sleep_mode": values.flag("actor_rollout_ref.rollout.free_cache_engine", True),
        "runtime": Runtime(
            head=_head(values.flag(f"{model}.use_fused_kernels"), "packed"),
            flash=True,
            packs=s.removes_padding,
            upcasts=False,
            has_entropy_loss=s.version < VERL_LORA or bool(s.entropy_coef),
            tokens_per_batch=tokens,
            saved_hidden=1 + int(s.lora),
            wakes_whole=s.version < VERL_LORA,
            eager=values.flag("actor_rollout_ref.rollout.enforce_eager"),
            offloads=_named(
                values,
                weights=f"{actor}.fsdp_config.param_offload",
                optimizer=f"{actor}.fsdp_config.optimizer_offload",
                reference="actor_rollout_ref.ref.fsdp_config.param_offload",
            ),
        ),
    }


def read_easyr1(values: Values, s: Setting) -> Fields:
    """Read EasyR1, which is like verl. A dynamic micro-batch is filled up to the maximal tokens of
    its sequences.
    """
    actor = "worker.actor"
    pixels = values.whole("data.max_pixels")
    return {
        **_fsdp(s, values.word(f"{actor}.fsdp.torch_dtype")),
        "gradient_checkpointing": values.flag(f"{actor}.model.enable_gradient_checkpointing", True),
        "vllm_enable_sleep_mode": True,
        "runtime": Runtime(
            head="packed",
            flash=True,
            packs=values.flag(f"{actor}.padding_free", True),
            upcasts=False,
            fills=s.dynamic_batching,
            saved_hidden=1 + int(s.lora),
            image_tokens=pixels // PIXELS,
            eager=values.flag("worker.rollout.enforce_eager"),
            offloads=_named(
                values,
                weights=f"{actor}.offload.offload_params",
                optimizer=f"{actor}.offload.offload_optimizer",
                reference="worker.ref.fsdp.enable_cpu_offload",
            ),
        ),
    }


def _fsdp(s: Setting, dtype: str) -> Fields:
    """Return the fields of a trainer that shards by FSDP with mixed precision; its shards have the
    type of the model.
    """
    fields: Fields = {
        "sharding": "fsdp",
        "weights_dtype": "float32",
        "autocast_dtype": "bfloat16",
        "evaluates": s.evaluates,
    }
    if dtype in HALF:
        fields |= {"weights_dtype": "bfloat16", "autocast_dtype": None}
    return fields


def _head(has_tiles: bool, other: Head = "whole") -> Head:
    """Return how the logits are computed: in tiles, or in another way."""
    if has_tiles:
        return "tiles"
    return other


def _sharding(named: Any, s: Setting) -> str:
    """Return a recipe's sharding: from accelerate's file, or from the stage in the name of
    DeepSpeed's file.
    """
    word = str(named or "").lower().replace("_", "").replace("stage", "zero")
    if s.sharding != "none":
        return s.sharding
    return next((stage for stage in STAGES if stage in word), "none")


def _offload(deepspeed: Any) -> Fields:
    """Return the parts that DeepSpeed keeps or steps in main memory, by the name of its
    configuration.
    """
    if "offload" not in str(deepspeed or ""):
        return {}
    return {"offloads": frozenset({"weights", "optimizer"}), "computes_offloaded": True}


def _named(values: Values, **keys: str) -> frozenset[str]:
    """Return the names of the parts whose key is true."""
    return frozenset(part for part, key in keys.items() if values.flag(key))


def _bits(config: Config, default: bool) -> int:
    """Return the bits of bitsandbytes' weights; 0 without quantization."""
    if config.get("load_in_8bit") is True:
        return 8
    if config.get("load_in_4bit", default) is True:
        return 4
    return 0
