"""verl's keys by release and engine, their choices, and the overrides that Hydra refuses.

benchmarks/tools/verl_keys.py writes ``keys.json`` from verl's own configurations. Rules check a
release by its keys, so that verl's source in a repository (``Recipe.vendored``) is judged by its
own keys. A renamed key has ``before=`` in FIELDS of recipes.py; one that nothing reads any more is
in `unread` below.

Hydra composes in struct mode: a key that the configuration lacks cannot be set without ``+``, below
an empty mapping (``{}``) or a null too. Sources: verl 0.2 to 0.9.1 trainer/ppo/core_algos.py,
workers/config/actor.py, optimizer.py, rollout.py, workers/rollout/base.py; verl 0.9.1
trainer/config/algorithm.py (rollout_is_threshold); hydra 1.3 _internal/config_loader_impl.py
(_apply_overrides_to_config).
"""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from grporecipe.files import Config, read_own_yaml, without
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.releases import (
    KeyTable,
    keys_at_release,
    load_table,
    parse_release,
    releases_of,
)
from grporecipe.model.setting import FrameworkTraits, Version
from grporecipe.model.values import Fields, flatten, resolve
from grporecipe.registries import NEWEST

TRAITS = FrameworkTraits("verl", "verl", unit="prompts", syntax="dotted")
VERSION: Version = NEWEST["verl"]
ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
MODEL = "actor_rollout_ref.model"
OPTIM = f"{ACTOR}.optim"
CONTROL = "algorithm.kl_ctrl"
MEGATRON = f"{ACTOR}.megatron"
OWN_PROGRAMS = ("verl.trainer.main_ppo", "verl/trainer/main_ppo.py")
# verl's check that a rollout holds a step (GB402), as it is written in any release.
HOLDS_A_STEP = r"\btrain_batch_size\s*(?:>=|<)\s*[\w.]*ppo_mini_batch_size"
# without it (until 0.3) KL is in the reward if it is not in the loss
REWARD_SWITCH = "algorithm.use_kl_in_reward"
GROUP = f"{ROLLOUT}.n"
# of Search-R1, of verl-agent and of their forks: completions of a prompt for each of rollout.n
AGENTS = (f"{ROLLOUT}.n_agent", "env.rollout.n")


releases = partial(releases_of, __package__)


def spans() -> dict[str, list[str]]:
    """Return the releases that have each engine."""
    return dict(load_table(__package__)["engines"])


@cache
def known(version: Version = VERSION, engine: str = "dp") -> KeyTable:
    """Return the keys of a release with an engine: ``dp`` (FSDP), ``megatron``, ``veomni``,
    ``torchtitan``, ``mindspeed``.
    """
    histories = _histories("dp")
    if engine != "dp" and version >= parse_release(spans()[engine][0]):
        # an engine's own keys come last
        own = _histories(engine)
        histories = without(histories, own) | own
    return keys_at_release(histories, version)


@cache
def _histories(engine: str) -> dict[str, list[list[Any]]]:
    """Return the history of each key, with its section as prefix and with its type."""
    histories = {}
    for section, keys in load_table(__package__)[engine].items():
        for name, changes in keys.items():
            # a change without a default removed the key
            history = [[change[0], *chain(*map(spec_of, change[1:]))] for change in changes]
            histories[f"{section}.{name}".lstrip(".")] = history
    return histories


def spec_of(default: Any) -> KeySpec:
    """Return a key with the type of its default, the only source of its type; ``any`` if that is no
    bool or number.
    """
    if isinstance(default, bool):
        return KeySpec("bool?", default)
    kinds = {float: "float?", int: "int?"}
    return KeySpec(kinds.get(type(default), "any"), default)


ENGINES = ("megatron", "veomni", "torchtitan", "mindspeed")


def engine_of(recipe: Recipe) -> str:
    """Return the engine of verl's configuration that a recipe builds on: ``dp`` (FSDP) or another
    one.
    """
    if "engine" not in recipe.derived:
        recipe.derived["engine"] = _find_engine(recipe)
    return str(recipe.derived["engine"])


def _find_engine(recipe: Recipe) -> str:
    config = recipe.config
    named = f"{config.get('model_engine')} {config.get(f'{ACTOR}.strategy')} {recipe.base}"
    keys = [key.lstrip("+") for key in config]
    for engine in ENGINES:
        if engine in named or any(key.startswith(f"{ACTOR}.{engine}.") for key in keys):
            return engine
    return "dp"


def known_keys(recipe: Recipe) -> KeyTable:
    """Return the keys that a recipe may set: of the source in its repository, else of its release
    and engine.
    """
    if isinstance(recipe.vendored, KeyTable):
        return recipe.vendored
    if recipe.vendored is not None:
        return KeyTable(recipe.vendored)
    return known(recipe.version, engine_of(recipe))


# verl's own configurations
OWN_BASES = ("ppo_trainer", "ppo_megatron_trainer")


def is_composed(recipe: Recipe) -> bool:
    """Return whether the program's composed configuration is known: verl's own, or one in the
    repository that builds on nothing else.
    """
    entries = recipe.config.get("defaults") or []
    is_own = all(entry in ("_self_", *OWN_BASES) for entry in entries)
    is_known = is_own_trainer(recipe) and is_own and not is_missing_base(recipe)
    return recipe.vendored is not None or is_known


def is_missing_base(recipe: Recipe) -> bool:
    """Return whether a recipe's base configuration is not verl's own and was not found."""
    is_own = not recipe.base or Path(recipe.base).stem in OWN_BASES
    # a configuration in the repository's own source was composed
    return not (is_own or recipe.vendored is not None or recipe.config.keys() - recipe.lines.keys())


def is_own_trainer(recipe: Recipe) -> bool:
    """Return whether verl's own ``main_ppo`` trains, whose checks are known. A configuration alone
    is taken to be for it.
    """
    if recipe.code.own_trainer:
        return False
    return not recipe.launch or recipe.launch.program.endswith(OWN_PROGRAMS)


def is_v1(recipe: Recipe) -> bool:
    """Return whether the trainer is that of 0.9 (V1), which pads batches and fetches prompts in
    portions.
    """
    return is_own_trainer(recipe) and "trainer.use_v1" in known_keys(recipe)


def sizes_per_gpu_only(keys: KeyTable) -> bool:
    """Return whether the workers read micro-batches per GPU only, and clip by ``optim.clip_grad``:
    since 0.8.
    """
    return "reward.num_workers" in keys and "trainer.use_legacy_worker_impl" not in keys


_CHOICES = read_own_yaml(__file__, "choices.yaml")
REGISTRIES = frozenset(_CHOICES["registries"])
GROUPS = frozenset(_CHOICES["groups"])
# A choice that is used only if a switch is on.
SWITCHES = {f"{ACTOR}.kl_loss_type": f"{ACTOR}.use_kl_loss"}
# Keys with a numeric default that also take text ("0.5_4.0": a lower and an upper bound).
ALSO_WORDS = frozenset({"algorithm.rollout_correction.rollout_is_threshold"})


def words(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Return the choices of each key in a recipe's release. Its own source may register others."""
    choices: dict[str, tuple[str, ...]] = {}
    for key, by_release in _CHOICES["added"].items():
        allowed: list[str] = []
        for release, added in by_release.items():
            if parse_release(release) <= recipe.version:
                allowed += added
        for release, removed in _CHOICES["removed"].get(key, {}).items():
            if recipe.version < parse_release(release):
                allowed += removed
        choices[key] = tuple(allowed)
    own = set[str]()
    if recipe.vendored is not None or not is_own_trainer(recipe):
        own |= REGISTRIES
    if engine_of(recipe) not in ("dp", "megatron"):
        own.add(f"{OPTIM}.lr_scheduler_type")
    return without(choices, own)


def unread(keys: KeyTable) -> dict[str, str]:
    """Return the keys that a release takes but does not read, each with the key that it reads
    instead.
    """
    conditions = {
        f"{ACTOR}.grad_clip": (f"{OPTIM}.clip_grad", sizes_per_gpu_only(keys)),
        f"{ACTOR}.clip_ratio": (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_low" in keys),
        "algorithm.filter_groups.max_num_gen_batches": (
            "algorithm.filter_groups.max_inflight_gen_batches",
            "trainer.use_v1" in keys,
        ),
    }
    return {key: instead for key, (instead, is_unread) in conditions.items() if is_unread}


class Refusal(NamedTuple):
    """An override, and the reason why Hydra refuses it.

    The key is missing (``absent``), exists but is added (``there``), or is a mapping set to a list
    or the reverse (``shape``).
    """

    written: str
    finds: Literal["absent", "there", "shape"]


def refusals(recipe: Recipe, keys: KeyTable) -> Iterator[Refusal]:
    """Yield the overrides that Hydra refuses, in order. Keys added by earlier overrides or other
    files may be set.
    """
    added: Fields = {}
    for written, value in recipe.config.items():
        key = written.lstrip("+~")
        if _is_of_a_group(key):
            continue
        is_mapping = key in keys.sections or keys.defaults.get(key) == {}
        is_list = isinstance(keys.defaults.get(key), list)
        is_other = isinstance(value, list) if is_mapping else is_list and isinstance(value, dict)
        if is_other and not written.startswith("~"):
            yield Refusal(written, "shape")
        elif (recipe.base and written not in recipe.lines) or written.startswith("++"):
            _add(added, key, value)
        elif written.startswith("+"):
            if _has_value(key, keys, added) and not isinstance(value, (dict, list)):
                yield Refusal(written, "there")
            _add(added, key, value)
        elif written.startswith("~"):
            if not (_has_value(key, keys, added) or "${" in str(keys.defaults.get(key))):
                yield Refusal(written, "absent")
        elif not _takes(key, value, keys, added):
            yield Refusal(written, "absent")


def _is_of_a_group(key: str) -> bool:
    """Return whether an override selects an option of a config group, or is one of Hydra's own
    keys.
    """
    plain = key.split("@")[0]
    return key.startswith("hydra.") or ("." not in plain and plain.split("/")[0] in GROUPS)


def _add(added: Fields, key: str, value: Any) -> None:
    added[key] = value
    added |= {key[:at]: {} for at, letter in enumerate(key) if letter == "."}
    if isinstance(value, Mapping) and value:
        added |= flatten({key: value})


def _has_value(key: str, keys: KeyTable, added: Config) -> bool:
    """Return whether a key has a value that is neither null nor missing. References are
    followed.
    """
    if key in keys.sections:
        return True
    value = added[key] if key in added else resolve(keys.defaults, key)
    return value is not None and value != "???"


def _takes(key: str, value: Any, keys: KeyTable, added: Config) -> bool:
    """Return whether a key may be set without ``+``: it exists, and so do the keys of a mapping
    that it is set to.
    """
    is_mapping = key in keys.sections or keys.defaults.get(key) == {}
    if is_mapping and isinstance(value, Mapping) and value:
        return all(_takes(name, leaf, keys, added) for name, leaf in flatten({key: value}).items())
    if key in keys or key in keys.sections or key in added:
        return True
    above, _, index = key.rpartition(".")
    return index.isdigit() and isinstance(keys.defaults.get(above), list)
