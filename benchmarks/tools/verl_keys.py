"""Writes src/grposweep/frameworks/verl/keys.json from verl's wheel: ``pip download --no-deps verl==0.9.1``, then this.

The wheel holds the composed configuration of its Hydra entry point, once for FSDP and once for Megatron.
"""

import json
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

TARGET = Path(__file__).parents[2] / "src" / "grposweep" / "frameworks" / "verl" / "keys.json"
COMPOSED = {"dp": "_generated_ppo_trainer.yaml", "megatron": "_generated_ppo_megatron_trainer.yaml"}


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of a nested mapping; an empty mapping is a key whose own keys are free."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        inner = value if isinstance(value, dict) and value else None
        found |= flatten(inner, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found


def main(wheel: Path) -> None:
    """Write the table: every key and default with FSDP, and what Megatron adds, changes (both in full) and lacks."""
    with ZipFile(wheel) as archive:
        dp, megatron = (
            flatten(yaml.safe_load(archive.read(f"verl/trainer/config/{name}"))) for name in COMPOSED.values()
        )
    table = {
        "version": wheel.name.split("-")[1],
        "dp": dp,
        "megatron": {name: value for name, value in megatron.items() if dp.get(name, ...) != value},
        "megatron_lacks": sorted(dp.keys() - megatron.keys()),
    }
    TARGET.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    print(f"{len(dp)} keys, {len(megatron)} with Megatron, in {TARGET}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
