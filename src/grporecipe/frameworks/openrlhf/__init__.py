"""OpenRLHF: its options by release, and how its launches are read and written. A sweep cannot train with it."""

from grporecipe.frameworks.openrlhf import recipes
from grporecipe.model.framework import Framework, Vendor
from grporecipe.registries import Lazy

FRAMEWORK = Framework(
    traits=recipes.TRAITS,
    version=recipes.VERSION,
    fields=recipes.FIELDS,
    takes=recipes.known,
    keys=frozenset(["micro_rollout_batch_size", "init_kl_coef", "rollout.n_samples_per_prompt", "algo.advantage.estimator",
                    "algo.kl.init_coef"]),
    programs=recipes.OWN_PROGRAM,
    renamed=recipes.RENAMED,
    releases=recipes.releases,
    derived=recipes.DERIVED,
    special=recipes.SPECIAL,
    counts_itself=True,
    packages=("openrlhf",),
    vendor=Vendor("openrlhf/cli/train_ppo_ray.py", Lazy("grporecipe.frameworks.openrlhf.source:read_source")),
)  # fmt: skip
