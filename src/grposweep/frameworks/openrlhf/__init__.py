"""OpenRLHF: its options by release, how its launches are read and written. It is no external trainer of a sweep."""

import re

from grposweep.frameworks.base import Framework
from grposweep.frameworks.openrlhf import keys
from grposweep.frameworks.openrlhf.recipes import DERIVED, SPECIAL, render
from grposweep.frameworks.openrlhf.renamed import RENAMED

FRAMEWORK = Framework(
    traits=keys.TRAITS,
    version=keys.VERSION,
    fields=keys.FIELDS,
    takes=keys.known,
    keys=frozenset(["micro_rollout_batch_size", "init_kl_coef", "rollout.n_samples_per_prompt", "algo.advantage.estimator",
                    "algo.kl.init_coef"]),
    programs=re.compile(r"\bopenrlhf[./]cli[./]train_ppo_ray"),
    renamed=RENAMED,
    releases=keys.releases,
    derived=DERIVED,
    render=render,
    special=SPECIAL,
    counts_itself=True,
    packages=("openrlhf",),
)  # fmt: skip
