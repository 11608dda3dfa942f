"""What common GPUs hold, in GiB as their driver reports it (``nvidia-smi --query-gpu=memory.total``).

The memory side of a native recipe: a model that is known by its name, and the keys that decide its memory.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grposweep.errors import UserError
from grposweep.setting import Architecture, Setting

GPUS = {
    "T4": 15.0,
    "V100-16GB": 16.0,
    "V100": 32.0,
    "L4": 22.5,
    "A10": 22.5,
    "A10G": 22.5,
    "RTX 3090": 24.0,
    "RTX 4090": 24.0,
    "RTX 5090": 31.8,
    "A100-40GB": 40.0,
    "L40S": 45.0,
    "A6000": 48.0,
    "A100": 80.0,
    "H100": 79.6,
    "GH200": 95.6,
    "H200": 140.4,
    "B200": 179.1,
    "MI250X": 64.0,
    "MI300X": 192.0,
}
ALIASES = {
    "a10040": "A100-40GB",
    "a10080": "A100",
    "a10080gb": "A100",
    "h10080gb": "H100",
    "v10016": "V100-16GB",
    "v10032gb": "V100",
}


def memory_of(name: str, key: str) -> float:
    """A GPU's memory in GiB, however its name is written (``rtx4090``, ``a100-40gb``).

    Raises UserError for one that is not known; ``key`` is where it was named.
    """
    by_name = {_plain(known): gib for known, gib in GPUS.items()}
    gib = by_name.get(_plain(ALIASES.get(_plain(name), name)))
    if gib is None:
        raise UserError(
            f"{key}={name}: the memory of this GPU is not known. Name one of {', '.join(GPUS)}, or say it in GiB "
            "(cluster.gpu_memory_gib, --gpu-memory-gib)."
        )
    return gib


def has_bfloat16(name: str) -> bool:
    """Return whether a GPU multiplies in bfloat16: NVIDIA's do since Ampere (compute capability 8.0).

    Unknown ones count as new.
    """
    return not _plain(ALIASES.get(_plain(name), name)).startswith(("t4", "v100"))


def _plain(name: str) -> str:
    """Lower case, without what people put between the parts, and without the maker's name."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    return letters.removeprefix("nvidia").removeprefix("amd").removeprefix("geforce").removeprefix("tesla")


# From the published config.json files. Instruct, Base and Math variants have the same shape.
MODELS = {
    "qwen2.5-0.5b": Architecture(24, 896, 4864, 14, 2, 64, 151_936, True, "qwen2", 494_032_768),
    "qwen2.5-1.5b": Architecture(28, 1536, 8960, 12, 2, 128, 151_936, True, "qwen2", 1_543_714_304),
    "qwen2.5-3b": Architecture(36, 2048, 11_008, 16, 2, 128, 151_936, True, "qwen2", 3_085_938_688),
    "qwen2.5-7b": Architecture(28, 3584, 18_944, 28, 4, 128, 152_064, False, "qwen2", 7_615_616_512),
    "qwen2.5-14b": Architecture(48, 5120, 13_824, 40, 8, 128, 152_064, False, "qwen2", 14_770_033_664),
    "qwen2.5-32b": Architecture(64, 5120, 27_648, 40, 8, 128, 152_064, False, "qwen2", 32_763_876_352),
    "qwen3-0.6b": Architecture(28, 1024, 3072, 16, 8, 128, 151_936, True, "qwen3", 596_049_920),
    "qwen3-1.7b": Architecture(28, 2048, 6144, 16, 8, 128, 151_936, True, "qwen3", 1_720_574_976),
    "qwen3-4b": Architecture(36, 2560, 9728, 32, 8, 128, 151_936, True, "qwen3", 4_022_468_096),
    "qwen3-8b": Architecture(36, 4096, 12_288, 32, 8, 128, 151_936, False, "qwen3", 8_190_735_360),
    "llama-3.2-1b": Architecture(16, 2048, 8192, 32, 8, 64, 128_256, True, "llama", 1_235_814_400),
    "llama-3.2-3b": Architecture(28, 3072, 8192, 24, 8, 128, 128_256, True, "llama", 3_212_749_824),
    "llama-3.1-8b": Architecture(32, 4096, 14_336, 32, 8, 128, 128_256, False, "llama", 8_030_261_248),
    "mistral-7b": Architecture(32, 4096, 14_336, 32, 8, 128, 32_768, False, "mistral", 7_248_023_552),
    "gemma-2b": Architecture(18, 2048, 16_384, 8, 1, 256, 256_000, True, "gemma", 2_506_172_416),
    "gemma-3-1b": Architecture(26, 1152, 6912, 4, 1, 256, 262_144, True, "gemma3_text", 999_885_952),
}
# max_position_embeddings of the same files, by the beginning of the name.
POSITIONS = {"qwen2.5-math": 4096, "qwen2.5": 32_768, "qwen3": 40_960, "llama": 131_072, "mistral": 32_768,
             "gemma-2b": 8192, "gemma-3": 32_768}  # fmt: skip
HALF = frozenset({"bfloat16", "float16", "auto"})


def known_model(s: Setting, config: Mapping[str, Any]) -> Setting:
    """The setting with what its memory depends on, where a recipe of TRL's family names a model that is known.

    Weights are float32 unless the recipe says otherwise, as TRL loads them. Source: trl model_config.py, base_config.py;
    gradient checkpointing is on from 0.22, and ``bf16`` from 0.19, where nothing else is said.
    """
    model = find_model(str(s.model_name_or_path or ""))
    if not s.framework.follows_trl or model is None:
        return s
    is_half = str(config.get("dtype") or config.get("torch_dtype") or "float32") in HALF
    computes_in_half = config.get("fp16") is True or config.get("bf16", s.version >= (0, 19, 0)) is not False
    rank = config.get("lora_r")
    return s.replace(
        {
            "architecture": model,
            "weights_dtype": "bfloat16" if is_half else "float32",
            "autocast_dtype": "bfloat16" if computes_in_half and not is_half else None,
            "gradient_checkpointing": config.get("gradient_checkpointing", s.version >= (0, 22, 0)) is True,
            "lora_rank": rank if isinstance(rank, int) and rank > 0 else s.lora_rank,
            "lora_targets": _targets(config.get("lora_target_modules")),
            "keys": {**s.keys, "weights_dtype": "torch_dtype" if "torch_dtype" in config else "dtype"},
        }
    )


def _targets(modules: Any) -> tuple[str, ...]:
    """The modules that adapters are put on; where none are named, peft's own choice for these models.

    Source: peft utils/constants.py TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.
    """
    named = [modules] if isinstance(modules, str) else modules
    if named == ["all-linear"]:
        return ("all-linear",)
    return tuple(map(str, named)) if isinstance(named, list) and named else ("q_proj", "v_proj")


def find_model(name: str) -> Architecture | None:
    """The architecture behind a hub id or a folder's name; None for one that is not known."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower().removeprefix("meta-")
    for known, model in MODELS.items():
        if last == known or last.startswith((f"{known}-", known.replace("-", "-math-", 1))):
            return replace(model, positions=_positions(last))
    return None


def _positions(name: str) -> int:
    """The tokens of the longest sequence that a known model reads, at the least where its variants differ."""
    if name.startswith("qwen3") and name.endswith("-base"):
        return 32_768
    return next(tokens for start, tokens in POSITIONS.items() if name.startswith(start))
