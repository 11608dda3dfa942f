"""Read EasyR1's own source in a repository: the dataclasses of its PPOConfig."""

from pathlib import Path

from grporecipe.frameworks import easyr1
from grporecipe.model.framework import Vendored
from grporecipe.model.recipe import Recipe
from grporecipe.reading.python.vendored import nearest_release, nested_fields, with_types


def read_source(folder: Path, _: Recipe) -> Vendored:
    """Return the keys of EasyR1 in this source, and the release with the most similar keys.

    The stated version does not count: a development version may have the keys of the release before or after it.
    """
    own = dict(nested_fields(folder / "verl/trainer/config.py", "PPOConfig"))
    version = nearest_release(own, easyr1.known, easyr1.releases())
    return Vendored(with_types(own, easyr1.known(version)) if own else None, version)
