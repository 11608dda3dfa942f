"""Read EasyR1's own source in a repository: the dataclasses of its PPOConfig."""

from pathlib import Path

from grporecipe.frameworks.easyr1 import recipes as easyr1
from grporecipe.model.framework import Vendored
from grporecipe.model.recipe import Recipe
from grporecipe.reading.python.vendored import (
    code_of,
    missing_checks,
    nearest_release,
    nested_fields,
    with_types,
)

# The code on which a rule rests, as every release has it, and the files that hold it.
CHECKS = {
    "GB302": r"\brollout\.n\s*==\s*1\b",
    "GB303": r"\brollout_batch_size\s*%\s*[\w.]*global_batch_size",
    "GB304": r"%\s*[\w.]*micro_batch_size_per_device_for_experience",
    "GB305": r"\bglobal_batch_size_per_device\s*==\s*0",
    "GB306": r"\bglobal_batch_size_per_device\s*%",
    "GT303": r"\bmax_num_batched_tokens\s*<\s*[\w.]*prompt_length",
}
CHECKED_IN = (
    "verl/trainer/*.py",
    "verl/trainer/*/*.py",
    "verl/workers/*.py",
    "verl/workers/rollout/*.py",
    "verl/workers/rollout/*/*.py",
)


def read_source(folder: Path, _: Recipe) -> Vendored:
    """Return the keys of EasyR1 in this source, and the release with the most similar keys.

    The stated version does not count: a development version may have the keys of the release before
    or after it.
    """
    own = dict(nested_fields(folder / "verl/trainer/config.py", "PPOConfig"))
    version = nearest_release(own, easyr1.known, easyr1.releases())
    unchecked = missing_checks(code_of(folder, CHECKED_IN), CHECKS, "ray_trainer.py")
    keys = with_types(own, easyr1.known(version)) if own else None
    return Vendored(keys, version, unchecked=unchecked)
