"""Read the version of ms-swift from its own source in a repository."""

from pathlib import Path

from grporecipe.model.framework import Vendored
from grporecipe.model.recipe import Recipe
from grporecipe.reading.python.vendored import stated_version


def read_source(folder: Path, _: Recipe) -> Vendored:
    """Return the version of ms-swift in this source. Its keys are those of the release."""
    return Vendored(None, stated_version(folder, ("swift/version.py",)))
