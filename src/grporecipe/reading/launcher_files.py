"""Read files next to a recipe that affect its training: accelerate's configuration
(``--config_file``) and DeepSpeed's.

Sources: accelerate commands/config/config_args.py and utils/dataclasses.py (DeepSpeedPlugin,
FullyShardedDataParallelPlugin, their YAML keys); deepspeed runtime/zero/config.py
(``zero_optimization.stage``); transformers training_args.py (``deepspeed``, ``fsdp``); ms-swift
swift/config/zero*.json (``--deepspeed zero2``).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Config, Json, parse_json, whole_or_none
from grporecipe.reading.yaml_text import parse_yaml

# bytes; real files have one or two kilobytes
LARGEST = 2**18
# accelerate's configurations in TRL: their processes, and how they shard the model
SHIPPED = {
    "fsdp1": (8, "fsdp"),
    "fsdp2": (8, "fsdp"),
    "multi_gpu": (8, "none"),
    "single_gpu": (1, "none"),
    "zero1": (8, "zero1"),
    "zero2": (8, "zero2"),
    "zero3": (8, "zero3"),
}
STAGES = {"0": "none", "1": "zero1", "2": "zero2", "3": "zero3"}
WORDS = {
    **{f"zero{stage}": f"zero{stage}" for stage in (1, 2, 3)},
    "zero0": "none",
    "zero2_offload": "zero2",
    "zero3_offload": "zero3",
}
FSDP = {"NO_SHARD": "none", "3": "none", "SHARD_GRAD_OP": "zero2", "2": "zero2"}
# of transformers' own key; full_shard is the default
FSDP_WORDS = {"no_shard": "none", "shard_grad_op": "zero2"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_STAGE = r"zero[-_]?([0-3])(?![0-9])"


@dataclass
class LauncherFile:
    """The training processes and fields of the setting in such a file. ``trouble``: why it has
    neither.
    """

    processes: int | None = None
    fields: Json = field(default_factory=dict)
    trouble: str = ""


# returns a file by its name in a script or recipe
Find = Callable[[str], Path | None]


def read_accelerate(name: str, find: Find) -> LauncherFile:
    """Read an accelerate configuration: one of TRL's by its name, or a file."""
    if name in SHIPPED:
        processes, sharding = SHIPPED[name]
        return LauncherFile(processes, {"sharding": sharding})
    config = _mapping(find(name))
    trouble = f"{name} (the accelerate configuration was not found, or states none)"
    if config is None:
        # the file is missing, but its name has the stage
        return LauncherFile(None, _sharding(_named_stage(name)), trouble)
    fields = _fields_of_accelerate(config, find)
    count = whole_or_none(config.get("num_processes"))
    if count is not None and count > 0:
        return LauncherFile(count, fields)
    return LauncherFile(None, fields, trouble)


def _sharding(name: str) -> Json:
    """Return the field of the setting; none for an empty name."""
    if not name:
        return {}
    return {"sharding": name}


def _named_stage(name: str) -> str:
    """Return the sharding that a file's name states; empty if it states none."""
    stage = re.search(_STAGE, Path(name).name)
    if stage is None:
        return ""
    return STAGES[stage[1]]


def _fields_of_accelerate(config: Config, find: Find) -> Json:
    kind = str(config.get("distributed_type", "NO")).upper()
    sharding = "none"
    inside = config.get(f"{kind.lower()}_config")
    if not isinstance(inside, Mapping):
        inside = {}
    if kind == "DEEPSPEED":
        sharding = STAGES.get(str(inside.get("zero_stage", ""))) or _read_deepspeed(
            inside.get("deepspeed_config_file"), find
        )
    elif kind == "FSDP":
        strategy = str(inside.get("fsdp_sharding_strategy", "FULL_SHARD")).upper()
        sharding = FSDP.get(strategy, "fsdp")
    fields = _sharding(sharding)
    dtype = DTYPES.get(str(config.get("mixed_precision", "no")))
    if dtype:
        fields["autocast_dtype"] = dtype
    return fields


def _read_deepspeed(value: Any, find: Find) -> str:
    """Return the sharding behind a ``deepspeed`` key: a name of ms-swift's, a JSON object, or a
    file. Empty if it states none.
    """
    config = value
    if isinstance(value, str):
        if value in WORDS:
            return WORDS[value]
        config = _parsed(value) if value.lstrip().startswith("{") else _mapping(find(value))
        if config is None:
            return _named_stage(value)
    if not isinstance(config, Mapping):
        return ""
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping):
        return "none"
    return STAGES.get(str(zero.get("stage", 0)), "")


def read_keys(config: Config, find: Find) -> Json:
    """Return the fields of the setting that a recipe's own ``deepspeed`` or ``fsdp`` key states."""
    if config.get("deepspeed"):
        return _sharding(_read_deepspeed(config["deepspeed"], find))
    words = config.get("fsdp")
    if not words:
        return {}
    if isinstance(words, list):
        words = " ".join(map(str, words))
    for word in str(words).split():
        if word in FSDP_WORDS:
            return _sharding(FSDP_WORDS[word])
    return _sharding("fsdp")


def _mapping(path: Path | None) -> Config | None:
    """Return the YAML or JSON mapping in a file; None if it is neither, or too large."""
    try:
        if path is None or path.stat().st_size > LARGEST:
            return None
        return _parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _parsed(text: str) -> Config | None:
    try:
        if not text.lstrip().startswith("{"):
            return parse_yaml(text).config
        content = parse_json(text)
    except (UserError, ValueError):
        return None
    if isinstance(content, dict):
        return content
    return None
