"""GPUs and models by name: memory in GiB as the driver reports it (``nvidia-smi
--query-gpu=memory.total``), and shapes.

``models.json`` holds sizes of published config.json files and the parameters that the hub counts.
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.files import parse_json, read_json, read_own_yaml
from grporecipe.model.architecture import Architecture, read_config

_FILE = read_own_yaml(__file__, "gpus.yaml")
GPUS: dict[str, float] = _FILE["gpus"]
ALIASES: dict[str, str] = _FILE["aliases"]
SIZE = r"(?i)(\d+(?:\.\d+)?) ?GiB"
# beyond any GPU
MOST_GIB = 10_000


def memory_of(name: str, key: str) -> float:
    """Return a GPU's memory in GiB, for any spelling of its name (``rtx4090``, ``4090``,
    ``a100-40gb``) or as stated (``24GiB``).

    Raises UserError for an unknown GPU; ``key`` is the key that names it.
    """
    stated = re.fullmatch(SIZE, name.strip())
    if stated and 0 < float(stated[1]) < MOST_GIB:
        return float(stated[1])
    by_name = {_plain(model): gib for model, gib in GPUS.items()}
    gib = by_name.get(_plain(ALIASES.get(_plain(name), name)))
    if gib is None:
        raise UserError(
            f"{key}={name}: the memory of this GPU is not known. Name one of {', '.join(GPUS)}, or "
            "its memory, such as 24GiB."
        )
    return gib


def has_bfloat16(name: str) -> bool:
    """Return whether a GPU multiplies in bfloat16: NVIDIA's do since Ampere (compute capability
    8.0).

    Unknown GPUs count as new.
    """
    return not _plain(ALIASES.get(_plain(name), name)).startswith(("t4", "v100"))


def _plain(name: str) -> str:
    """Return a name in lower case without separators, maker and "RTX"."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    for maker in ("nvidia", "amd", "geforce", "tesla", "rtx"):
        letters = letters.removeprefix(maker)
    return letters


WORDS = r"[-_.](?:bnb[-_.]?)?(?:nf4|int4|4bit|awq|gptq|int8|8bit|fp8)"


@cache
def known_models() -> dict[str, Architecture]:
    """Return the known shapes by prefix of a model's name, in lower case."""
    rows = parse_json(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))
    models: dict[str, Architecture] = {}
    for row in rows:
        shape = read_config(row["config"])
        if shape is not None:
            models |= dict.fromkeys(row["names"], shape)
    return models


def find_model(name: str) -> Architecture | None:
    """Return the architecture from a local folder's config.json, or by hub id or folder name; None
    if unknown.

    The longest known prefix of the hub id's last part is used, because variants share a shape.
    """
    last = (
        name.rstrip("/")
        .rsplit("/", 1)[-1]
        .lower()
        .removeprefix("meta-")
        .replace("llama-3_", "llama-3.")
    )
    model = _read_folder(Path(name)) if name else None
    return model or _by_name(last)


@cache
def _by_name(last: str) -> Architecture | None:
    table = known_models()
    fitting = [model for model in table if last == model or last.startswith(f"{model}-")]
    if not fitting:
        return None
    entry = table[max(fitting, key=len)]
    # trained on less data
    if last.startswith("qwen3") and last.endswith("-base"):
        return replace(entry, positions=32_768)
    return entry


def _read_folder(folder: Path) -> Architecture | None:
    """Return the shape in a folder's config.json; None if it cannot be read."""
    try:
        return read_config(read_json(folder / "config.json") or {})
    except OSError:
        return None


def find_bits(name: str) -> int:
    """Return the bits of a model's quantized weights by its name; 0 if the name does not state
    them.
    """
    words = "".join(re.findall(WORDS, name.lower()))
    if not words:
        return 0
    return 8 if "8" in words else 4
