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
    return Field(
        name, key, "int", -1, read=lambda every: every if every > 0 else None, rollouts=True
    )


def clip(key: str, default: float) -> Field:
    """Return the row of the dual clip. Neither framework can switch it off, so one without effect
    is read as none.
    """

    def read(value: float) -> float | None:
        return None if value >= NEVER_CLIPPED else value

    return Field("delta", key, "float", default, read=read)


def unless(name: str, key: str, default: float) -> Field:
    """Return the row of an option that is written if it differs from the frameworks' default."""
    return Field(
        name,
        key,
        "float",
        default,
        write=lambda value: None if value == default else value,
        judged=False,
    )


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
    gpus = values.whole("trainer.nnodes", 1) * values.whole("trainer.n_gpus_per_node", 8)
    unread = values.bad & {"trainer.nnodes", "trainer.n_gpus_per_node"}
    stated = fields["processes"]
    return {"processes": stated if stated is not None else None if unread else gpus}


def read_betas(rates: Any) -> dict[str, float | None]:
    """Return Adam's two rates by field; None for a value that is no pair of numbers."""
    known = (
        isinstance(rates, (list, tuple))
        and len(rates) == 2
        and all(isinstance(r, (int, float)) for r in rates)
    )
    first, second = map(float, rates) if known else (None, None)
    return {"adam_beta1": first, "adam_beta2": second}


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
    return None if rest or each not in NODES else {"trainer.n_gpus_per_node": each}


def key_of_gpus(values: Values) -> dict[str, str]:
    """Return the key of the number of GPUs, for a recipe that sets only the number of nodes."""
    only_nodes = "trainer.n_gpus_per_node" not in values.given and "trainer.nnodes" in values.given
    return {"processes": "trainer.nnodes"} if only_nodes else {}


def nearest(key: str, takes: Mapping[str, KeySpec], value: Any = None) -> list[str]:
    """Return the keys that an unknown key may mean: its last word in another section, or a similar
    spelling.

    They have the key's sections in their path and can hold its value.
    """
    *sections, word = key.split(".")
    below = (takes if isinstance(takes, KeyTable) else KeyTable(takes)).below
    wanted = set(sections)
    by_word = dict[str, list[str]]()
    for name in min((below.get(section, []) for section in sections), key=len, default=list(takes)):
        *inside, last = name.split(".")
        if wanted.issubset(inside):
            by_word.setdefault(last, []).append(name)
    if same := [name for name in by_word.get(word, ()) if _holds(takes[name], value)]:
        # those with most of the key's own sections come first
        parts = {*sections, word}
        return sorted(same, key=lambda name: (-len(parts & set(name.split("."))), len(name)))[:2]
    similar = _spelled_alike(word, tuple(by_word))
    alike = ([name for name in by_word[near] if _holds(takes[name], value)] for near in similar)
    # the shortest path of each
    return [min(reversed(names), key=len) for names in alike if names][:2]


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
