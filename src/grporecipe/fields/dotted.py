"""Code shared by EasyR1 and verl: estimators and lengths in rollouts.

Both size a rollout and an optimizer step in prompts, and count steps, frequencies and warmup in
rollouts.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from grporecipe.fields.reading import values_of
from grporecipe.files import Config
from grporecipe.model.framework import Field, Values
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.releases import KeyTable
from grporecipe.model.setting import Setting
from grporecipe.model.values import Fields, Names, convert, resolve

# One name per estimator: Schulman's k1, k2, k3, with a plus if the gradient is that of k2.
ESTIMATORS = {
    "kl": "k1",
    "mse": "k2",
    "low_var_kl": "k3",
    "kl+": "k1+",
    "mse+": "k2",
    "low_var_kl+": "k3+",
    "k2+": "k2",
}
WORDS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
# a dual clip that has no effect
NEVER_CLIPPED = 1e6
# GPUs of a node that a fix may set
NODES = (1, 2, 4, 8)


def frequency(name: str, key: str) -> Field:
    """Return the row of a frequency in rollouts; -1 is never."""

    def read(every: int) -> int | None:
        if every > 0:
            return every
        return None

    return Field(name, key, "int", -1, read=read, rollouts=True)


def clip(key: str, default: float) -> Field:
    """Return the row of the dual clip. Neither framework can switch it off, so one without effect
    is read as none.
    """

    def read(value: float) -> float | None:
        if value >= NEVER_CLIPPED:
            return None
        return value

    return Field("delta", key, "float", default, read=read)


def unless(name: str, key: str, default: float) -> Field:
    """Return the row of an option that is written if it differs from the frameworks' default."""

    def write(value: float) -> float | None:
        if value == default:
            return None
        return value

    return Field(name, key, "float", default, write=write, judged=False)


def top_k(key: str) -> Field:
    """Return the row of top_k. -1 means all tokens, which is 0 in a setting."""
    return Field(
        "top_k", key, "int", -1, read=lambda count: max(count, 0), write=lambda count: count or -1
    )


def estimator_word(name: Any) -> Any:
    """Return the frameworks' name of an estimator."""
    return WORDS.get(name, name)


def derive_processes(values: Values, fields: Config) -> Fields:
    """Return the number of GPUs, as given or as in the recipe; None if it cannot be read."""
    processes = fields["processes"]
    if processes is None and values.bad.isdisjoint(("trainer.nnodes", "trainer.n_gpus_per_node")):
        processes = values.whole("trainer.nnodes", 1) * values.whole("trainer.n_gpus_per_node", 8)
    return {"processes": processes}


def read_betas(rates: Any) -> dict[str, float | None]:
    """Return Adam's two rates by field; None for a value that is no pair of numbers."""
    match rates:
        case [int() | float() as first, int() | float() as second]:
            return {"adam_beta1": float(first), "adam_beta2": float(second)}
    return {"adam_beta1": None, "adam_beta2": None}


def derive_shared(betas: str) -> Callable[[Values, Config], Fields]:
    """Return the function for fields that both frameworks derive alike. ``betas`` is the key of
    Adam's rates.
    """

    def derive(values: Values, fields: Config) -> Fields:
        schedule = fields["lr_scheduler_type"]
        # transformers' constant has no warmup
        if schedule == "constant" and fields["warmup_steps"] > 0:
            schedule = "constant_with_warmup"
        return {
            **read_betas(resolve(values.values, betas)),
            "lr_scheduler_type": schedule,
            "use_vllm": True,
            "vllm_mode": "colocate",
        }

    return derive


def change_gpus(processes: Any, recipe: Recipe, _: Setting, __: Config) -> Fields | None:
    """Return the change of keys for another number of GPUs; None if it is not whole nodes of 1, 2,
    4 or 8.
    """
    if recipe.processes is not None:
        return {"processes": processes}
    nodes = max(values_of(recipe).whole("trainer.nnodes", 1), 1)
    each, rest = divmod(processes, nodes)
    if rest or each not in NODES:
        return None
    return {"trainer.n_gpus_per_node": each}


def key_of_gpus(values: Values) -> dict[str, str]:
    """Return the key of the number of GPUs, for a recipe that sets only the number of nodes."""
    if "trainer.n_gpus_per_node" in values.given or "trainer.nnodes" not in values.given:
        return {}
    return {"processes": "trainer.nnodes"}


def nearest(key: str, takes: Mapping[str, KeySpec], value: Any = None) -> list[str]:
    """Return the keys that an unknown key may mean: its last word in another section, or a similar
    spelling.

    They have the key's sections in their path and can hold its value.
    """
    *sections, word = key.split(".")
    if not isinstance(takes, KeyTable):
        takes = KeyTable(takes)
    wanted = set(sections)
    by_word = dict[str, list[str]]()
    candidates = [takes.below.get(section, []) for section in sections]
    for name in min(candidates, key=len, default=list(takes)):
        *inside, last = name.split(".")
        if wanted.issubset(inside):
            by_word.setdefault(last, []).append(name)
    same = [name for name in by_word.get(word, ()) if _holds(takes[name], value)]
    if same:
        # those with most of the key's own sections come first
        parts = {*sections, word}
        return sorted(same, key=lambda name: (-len(parts & set(name.split("."))), len(name)))[:2]
    alike = []
    for near in _spelled_alike(word, tuple(by_word)):
        names = [name for name in reversed(by_word[near]) if _holds(takes[name], value)]
        # the shortest path
        if names:
            alike.append(min(names, key=len))
    return alike[:2]


def _holds(spec: KeySpec, value: Any) -> bool:
    """Return whether a key can hold a value, by its type or, without a type, by its default."""
    if value is None or (isinstance(value, str) and "$" in value):
        return True
    if isinstance(spec.default, str) and "${" not in spec.default:
        return isinstance(value, str)
    if isinstance(spec.default, (list, dict)):
        return isinstance(value, type(spec.default))
    return convert(value, spec.type.removeprefix("auto ")).trouble != "type"


# each candidate fix looks up every unknown key again
@lru_cache(maxsize=1024)
def _spelled_alike(word: str, names: Names) -> Names:
    """Return the names with a spelling similar to a word, nearest first."""
    # only a mistake needs it
    from difflib import get_close_matches

    return tuple(get_close_matches(word, names, n=len(names) or 1, cutoff=0.85))
