"""Read OpenRLHF's own source in a repository: the options of its command, and its version."""

import ast
from pathlib import Path

from grporecipe.frameworks.openrlhf import recipes as openrlhf
from grporecipe.model.framework import Vendored
from grporecipe.model.recipe import Recipe
from grporecipe.reading.python.launched import read_options
from grporecipe.reading.python.source import last_name, read_file
from grporecipe.reading.python.vendored import code_of, missing_checks, nearest_release, stated_version, with_types

COMMAND = "openrlhf/cli/train_ppo_ray.py"
# The code on which a rule rests, as every release has it that the rule judges.
CHECKS = {
    "GB302": r"n_samples_per_prompt\s*>\s*1\b",
    "GB602": r"//\s*args\.(?:micro_rollout_batch_size|rollout\.micro_batch_size)",
    "GB604": r"rollout_batch_size\s*%\s*actor_world_size",
    "GT601": r"vllm[._]num_engines\s*\*\s*args\.vllm",
    "GT602": r"num_gpus_per_node\s*==\s*args\.ref",
}


def read_source(folder: Path, recipe: Recipe) -> Vendored:
    """Return the options of OpenRLHF's command in this source, and its version.

    A recipe that no launch names may be of another command, so it may set the options of all of them that train with Ray.
    """
    names = read_file(folder / COMMAND)
    own = read_options(names)[0] if names is not None else {}
    for path in sorted(folder.glob("openrlhf/cli/train_*_ray.py")) if recipe.launch is None and own else ():
        other = read_file(path)
        own = {**(read_options(other)[0] if other is not None else {}), **own}
    version = stated_version(folder, ("version.txt",))
    if version is None or version < openrlhf.releases()[0]:
        version = nearest_release(own, openrlhf.known, openrlhf.releases())
    # Some releases declare options in a loop, by names that only a running program has.
    loops = names is not None and any(isinstance(arg, ast.JoinedStr) for call, _ in names.calls for arg in call.args[:1]
                                      if last_name(call.func) == "add_argument")  # fmt: skip
    keys = with_types({**(openrlhf.known(version) if loops else {}), **own}, openrlhf.known(version))
    return Vendored(
        keys if own else None, version, unchecked=missing_checks(code_of(folder, (COMMAND,)), CHECKS, COMMAND)
    )
