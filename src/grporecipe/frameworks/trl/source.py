"""Read TRL's own source in a repository: the fields of its GRPOConfig, and its version."""

from pathlib import Path

from grporecipe.frameworks.trl import keys
from grporecipe.model.framework import Vendored
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import KeyTable
from grporecipe.reading.python.vendored import (
    code_of,
    fields_of_file,
    missing_checks,
    stated_version,
    with_types,
)

CONFIG = "trl/trainer/grpo_config.py"
TRAINER = "trl/trainer/grpo_trainer.py"
# The code on which a rule rests, as every release has it that the rule judges: in the
# configuration, or in the trainer.
CHECKS = {
    "GB101": r"%\s*(?:self\.)?num_generations\b|\bpossible_values\b",
    "GB102": r"\bnum_generations\s*<\s*2\b|\bpossible_values\b",
}
# Files that state a version; the first match is used.
STATED = (
    "VERSION",
    "trl/VERSION",
    "trl/version.py",
    "trl/__init__.py",
    "setup.py",
    "pyproject.toml",
)


def read_source(folder: Path, _: Recipe) -> Vendored:
    """Return the keys of TRL in this source. Keys of transformers and of TRL's scripts are those of
    the release.

    A source without a version gets that of the newest release that knows most of its fields.
    """
    own = {
        key: spec
        for key, spec in fields_of_file(folder / CONFIG, "GRPOConfig").items()
        if not key.startswith("_")
    }
    version = stated_version(folder, STATED) or max(
        keys.releases(), key=lambda release: (len(own.keys() & keys.known(release).keys()), release)
    )
    known = keys.known(version)
    unchecked = missing_checks(code_of(folder, (CONFIG, TRAINER)), CHECKS, TRAINER)
    table = KeyTable({**known, **with_types(own, known)}) if own else None
    return Vendored(table, version, unchecked=unchecked)
