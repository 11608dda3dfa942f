"""What common GPUs hold, in GiB as their driver reports it (``nvidia-smi --query-gpu=memory.total``)."""

from grposweep.errors import BadInput

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

    Raises BadInput for one that is not known; ``key`` is where it was named.
    """
    by_name = {_plain(known): gib for known, gib in GPUS.items()}
    gib = by_name.get(_plain(ALIASES.get(_plain(name), name)))
    if gib is None:
        raise BadInput(
            f"{key}={name}: nobody here knows how much memory it has. Name one of {', '.join(GPUS)}, or say it in GiB "
            "(cluster.gpu_memory_gib, --gpu-memory-gib)."
        )
    return gib


def _plain(name: str) -> str:
    """Lower case, without what people put between the parts, and without the maker's name."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    return letters.removeprefix("nvidia").removeprefix("amd").removeprefix("geforce")
