"""What the readers of EasyR1 and verl share: typed values of dotted keys, estimators by one name, rollouts as steps.

Both size a rollout and an optimizer step in prompts, and count steps, frequencies and warmup in rollouts.
"""

import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import ceil
from typing import Any

from grposweep import plan
from grposweep.frameworks.dotted_keys import KeyTable
from grposweep.frameworks.keys import KeySpec
from grposweep.frameworks.parsing.overrides import resolve
from grposweep.frameworks.parsing.values import convert
from grposweep.frameworks.trl.reader import ParsedRecipe
from grposweep.recipe import Recipe
from grposweep.setting import FrameworkTraits, Setting

# One name for each estimator: Schulman's k1, k2, k3, a plus where the gradient is that of k2 instead.
ESTIMATORS = {
    "kl": "k1",
    "mse": "k2",
    "low_var_kl": "k3",
    "kl+": "k1+",
    "mse+": "k2",
    "low_var_kl+": "k3+",
    "k2+": "k2",
}
NEVER_CLIPPED = 1e6  # a dual clip that never acts
WORDS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
TYPES = {field.name: str(field.type if isinstance(field.type, str) else getattr(field.type, "__name__", field.type))
         for field in fields(Setting)}  # fmt: skip
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Values:
    """The values behind a recipe's keys, defaults filled in; ``given`` are keys that it sets, ``bad`` unreadable ones."""

    values: Mapping[str, Any]
    given: frozenset[str]
    bad: frozenset[str]

    def get(self, key: str, kind: str = "any", default: Any = None) -> Any:
        """A key's value as a type, references followed; the default where it has none or cannot be read."""
        found = convert(resolve(self.values, key), f"{kind}?")
        return default if found.value is None or found.trouble == "type" else found.value

    def whole(self, key: str, default: int = 0) -> int:
        """A count."""
        return int(self.get(key, "int", default))

    def number(self, key: str, default: float = 0.0) -> float:
        """A number."""
        return float(self.get(key, "float", default))

    def flag(self, key: str, default: bool = False) -> bool:
        """A switch."""
        return bool(self.get(key, "bool", default))

    def word(self, key: str, default: str = "") -> str:
        """A word."""
        return str(self.get(key, "any", default))


def collect(recipe: Recipe, takes: KeyTable, renamed: Mapping[str, str]) -> Values:
    """The values of a recipe under today's names, whatever sign an override has; what is deleted has its default no more."""
    given: dict[str, Any] = {}
    for written, value in recipe.config.items():
        key = written.lstrip("+")
        if key.startswith("~"):
            given[key[1:]] = None
            continue
        name = renamed.get(key, key) if key not in takes else key
        if name != key and name in recipe.config:
            continue  # the newer word counts
        given[name] = value
    unresolved = frozenset(renamed.get(key.lstrip("+"), key.lstrip("+")) for key in recipe.unresolved)
    said = {name: value for name, value in given.items() if name not in unresolved}
    bad = unresolved | {name for name, value in given.items() if name in takes and not _fits(value, takes[name])}
    return Values(ChainMap(said, takes.defaults), frozenset(given), bad)


def _fits(value: Any, key: KeySpec) -> bool:
    """Whether a key can hold a value."""
    kind = key.type.removeprefix("auto ")
    if isinstance(value, str) and "${" in value:
        return True
    return convert(value, kind).trouble != "type"


def build(
    framework: FrameworkTraits,
    recipe: Recipe,
    found: Values,
    changes: Mapping[str, Any],
    keys: Mapping[str, str],
    rollouts: Mapping[str, Any],
) -> ParsedRecipe:
    """The setting of these fields, its derived sizes made and what is said in rollouts turned into optimizer steps."""
    given = {name for name, key in keys.items() if key in found.given}
    lines = {name: recipe.lines[key] for name, key in keys.items() if key in recipe.lines}
    setting = plan.resize(
        Setting(
            framework=framework,
            version=recipe.version,
            train_prompts=recipe.train_prompts,
            launcher=recipe.launch.launcher if recipe.launch else None,
            given=frozenset({"framework", *given}),  # never empty: that would be an experiment of ours
            keys=dict(keys),
            lines=lines,
            **changes,
        )
    )
    unknown = {name for name, key in keys.items() if key in found.bad}
    return ParsedRecipe(setting.replace(in_steps(setting, rollouts)), frozenset(unknown))


def steps_a_rollout(s: Setting) -> float:
    """Optimizer steps a rollout, 1 where the sizes make none."""
    return float(plan.steps_per_rollout(s)) or 1.0


def in_steps(s: Setting, rollouts: Mapping[str, Any]) -> dict[str, Any]:
    """What is said in rollouts, as optimizer steps; a share of all (below 1) stays one."""
    each = steps_a_rollout(s) if s.gradient_accumulation_steps > 0 else 1.0
    return {name: value if value is None or abs(value) < 1 else ceil(value * each) for name, value in rollouts.items()}


def in_rollouts(s: Setting, steps: float) -> int:
    """Optimizer steps as whole rollouts, rounded up."""
    return max(ceil(steps / steps_a_rollout(s)), 1)


def model_fields(path: str) -> dict[str, Any]:
    """A model's path, and the number of weights that its name tells."""
    size = _SIZE.search(path.rsplit("/", 1)[-1])
    parameters = int(float(size[1]) * (1e9 if size[2] in "Bb" else 1e6)) if size else None
    return {"model_name_or_path": path or None, "parameters": parameters}


def optimizer_fields(found: Values, betas: str, top_k: str) -> dict[str, Any]:
    """Adam's two rates, and how many words may follow (0: all, as in TRL)."""
    rates = resolve(found.values, betas)
    known = (
        isinstance(rates, (list, tuple)) and len(rates) == 2 and all(isinstance(rate, (int, float)) for rate in rates)
    )
    pair = [float(rate) for rate in rates] if known else [None, None]
    return {"adam_beta1": pair[0], "adam_beta2": pair[1], "top_k": max(found.whole(top_k, -1), 0)}


def dual_clip(value: float) -> float | None:
    """A clip that never acts is none; neither framework can switch it off."""
    return None if value >= NEVER_CLIPPED else value


def schedule_word(name: str, warmup: float) -> str:
    """A schedule in transformers' words; without a warmup ``constant`` has none there either."""
    return "constant_with_warmup" if name == "constant" and warmup > 0 else name


def gpu_change(processes: int, recipe: Recipe, found: Values) -> dict[str, Any] | None:
    """Another number of GPUs in a recipe's own keys; None where the nodes cannot share it."""
    if recipe.processes is not None:
        return {"processes": processes}
    nodes = max(found.whole("trainer.nnodes", 1), 1)
    return None if processes % nodes else {"trainer.n_gpus_per_node": processes // nodes}
