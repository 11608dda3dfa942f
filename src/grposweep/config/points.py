"""Build the experiment of each point without composing it through Hydra: one composition per group
option, then patches.

Composing takes 40-190 ms per point. A group option sets only keys of its own group, so a point is
the base with a few sections exchanged; a test compares this with Hydra's own composition. A user's
recipe becomes an option of each group (``batch=recipe``, ``kl=recipe``, ...), so every other option
still replaces a whole group, and every key a single number. A recorded experiment is changed in the
same way: a group's option replaces the group, a key its value, the rest stays.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache, cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from grporecipe.errors import UserError
from grporecipe.files import Config, Json, parse_yaml, read_text, without
from grporecipe.model.values import NestedLoader, flatten
from grposweep.config.compose import (
    PRIMARY,
    Session,
    escape,
    experiment_at,
    override_name,
    to_experiment,
    typed,
)
from grposweep.config.fields import NUMBERS
from grposweep.config.to_setting import own_values
from grposweep.config.validate import check_choice
from grposweep.process import CONF
from grposweep.schema import GROUPS, Experiment, Trainer, keys_of
from grposweep.schema.registries import BASE, is_external

# the name of these options, and of the group that chooses all of them
OPTION = "recipe"


def recipe_options(composed: DictConfig) -> list[str]:
    """Register the recipe of a composition as group options. Return the overrides that choose them
    by default.

    Returns None for grposweep's own trainers.
    """
    check_choice("trainer.kind", composed.trainer.kind)
    if not is_external(composed.trainer):
        return []
    trainer = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Trainer), composed.trainer))
    # structured() keeps the type
    assert isinstance(trainer, Trainer)
    cluster = composed.cluster
    values = own_values(
        BASE(trainer, int(cluster.processes), int(cluster.nodes), str(composed.outputs)).setting
    )
    store = ConfigStore.instance()
    for group in NUMBERS:
        store.store(group=group, name=OPTION, node=values.pop(group), provider="grposweep")
    chosen: Json = {
        "defaults": [*({f"override /{group}": OPTION} for group in NUMBERS), "_self_"],
        **values,
    }
    store.store(group=OPTION, name=OPTION, node=chosen, package="_global_", provider="grposweep")
    return [f"{OPTION}={OPTION}"]


# the group of configurations whose sections are options
EXPORTED = "exported"


def register_sections(file: Path) -> bool:
    """Register a configuration whose complete sections are options of their groups. Return whether
    it has any.

    Hydra puts the values of a file over all options, so ``kl=low`` would be ignored where the file
    sets every key of ``kl``. Raises UserError if a group has an option of the file's name.
    """
    try:
        content = parse_yaml(read_text(file), NestedLoader)
    except (OSError, ValueError):
        # Hydra explains it
        return False
    if not isinstance(content, dict) or content.pop("defaults", None) != [PRIMARY, "_self_"]:
        return False
    needed = [path.split(".") for path, _ in keys_of()]
    groups = [group for group in GROUPS if group in content]
    whole = []
    for group in groups:
        keys = {at[1] for at in needed if at[0] == group}
        if keys <= content[group].keys():
            whole.append(group)
    taken = [group for group in whole if (CONF / group / file.name).exists()]
    if taken:
        raise UserError(
            f"{file}: {taken[0]} has an option {file.stem} already. Give the file another name."
        )
    store = ConfigStore.instance()
    for group in whole:
        store.store(group=group, name=file.stem, node=content.pop(group), provider="grposweep")
    defaults = [f"/{PRIMARY}", *({f"override /{group}": file.stem} for group in whole), "_self_"]
    node = {"defaults": defaults, **content}
    store.store(group=EXPORTED, name=file.stem, node=node, package="_global_", provider="grposweep")
    return bool(whole)


# experiments, about 20 KB each
MOST_KEPT = 1000

# overrides -> what Hydra composes
Compose = Callable[[list[str]], DictConfig]


class Points:
    """Builds the experiments of a sweep's points from a base composition."""

    def __init__(self, compose: Compose, overrides: list[str]) -> None:
        """``overrides`` are shared by all points."""
        self._compose = compose
        # the keys and groups that these set
        self.shared = [*map(override_name, overrides)]
        self._overrides = overrides
        self._sections: dict[tuple[str, str], Any] = {}
        self._base = self._compose_options({})
        recipe = recipe_options(self._base)
        if recipe:
            self._overrides = [*overrides, *recipe]
            self._sections.clear()
            self._base = self._compose_options({})
        # by one parameter's value, because it is judged repeatedly
        self._single: dict[tuple[tuple[str, str], ...], Experiment] = {}
        self._typed_sections: dict[tuple[str, str], Any] = {}

    def fixed(self, overrides: list[str]) -> "Points":
        """Return the same points with further shared overrides."""
        return Points(self._compose, [*self._overrides, *overrides])

    @cached_property
    def base(self) -> Experiment:
        """Return the experiment with every parameter at its configured value."""
        return to_experiment(self._base)

    def experiment(self, values: Config) -> Experiment:
        """Return the experiment at a point's values.

        Raises UserError for an unknown key or option, or a value of the wrong type.
        """
        key = tuple((name, repr(value)) for name, value in values.items())
        experiment = self._single.get(key) or self._built(values)
        if len(values) == 1 and len(self._single) < MOST_KEPT:
            self._single[key] = experiment
        return experiment

    def _built(self, values: Config) -> Experiment:
        groups = {name: str(value) for name, value in values.items() if name in GROUPS}
        keys = without(values, groups)
        return experiment_at(self._with_options(groups), keys)

    def _with_options(self, groups: Mapping[str, str]) -> DictConfig:
        """Return the base with these groups' options, under the schema's types unless a value is
        left open.
        """
        # the only group whose options set keys of others
        if "debug" in groups:
            composed, _ = self._composed(groups)
            return composed
        try:
            # OmegaConf's own copy takes 6 times as long
            config = cast(DictConfig, pickle.loads(self._typed))
            for name, option in groups.items():
                config[name] = self._typed_section(name, option)
        except UserError:
            # a point may set an open value; any other error is raised when it is typed
            config = self._base.copy()
            for name, option in groups.items():
                config[name] = self._section(name, option)
        return config

    @cached_property
    def _typed(self) -> bytes:
        """Return the base under the schema's types, cached because merging takes four times as long
        as the rest of a point.
        """
        return pickle.dumps(typed(self._base))

    def _typed_section(self, group: str, option: str) -> Any:
        """Return ``_section`` under the schema's types."""
        key = (group, option)
        if key not in self._typed_sections:
            self._typed_sections[key] = typed({group: _plain(self._section(group, option))})[group]
        return self._typed_sections[key]

    def raw_values(self, values: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return every key with its values in the base and under each given group option,
        interpolations unresolved.
        """
        self.compose_options(values)
        contents = [_plain(self._base)]
        for pairs in _options(values):
            contents += [{name: _plain(self._section(name, option))} for name, option in pairs]
        raw: dict[str, list[Any]] = {}
        for content in contents:
            for key, value in flatten(content).items():
                raw.setdefault(key, []).append(value)
        return raw

    def compose_options(self, values: Mapping[str, Sequence[Any]]) -> None:
        """Compose the first option of every group together, then the second of each, and so on.

        An option that cannot be composed, or that sets keys of other groups, is left for
        ``_section``.
        """
        base = _plain(self._base)
        with suppress(UserError):
            for row in zip_longest(*_options(values)):
                chosen = dict(pair for pair in row if pair and pair not in self._sections)
                if not chosen:
                    continue
                composed, _ = self._composed(chosen)
                if _plain(composed) | chosen != base | chosen:
                    return
                for name, option in chosen.items():
                    self._sections[name, option] = composed[name]

    def _section(self, group: str, option: str) -> Any:
        """Return the section of a group option with the shared overrides applied, interpolations
        unresolved.
        """
        if (group, option) not in self._sections:
            self._compose_options({group: option})
        return self._sections[group, option]

    def _compose_options(self, options: Mapping[str, str]) -> DictConfig:
        """Compose options, and keep the sections of all groups: none depends on the option of
        another group.
        """
        config, chosen = self._composed(options)
        for name, option in chosen.items():
            if name in config:
                self._sections[name, option] = config[name]
        return config

    def _composed(self, options: Mapping[str, str]) -> tuple[DictConfig, Mapping[str, str]]:
        """Return the configuration with these options, and the options of all groups."""
        config = self._compose(
            [*self._overrides, *(f"{name}={option}" for name, option in options.items())]
        ).copy()
        OmegaConf.set_struct(config, False)
        hydra = config.pop("hydra", None)
        choices = hydra.runtime.choices if hydra else {}
        return config, {**choices, **options}


def _plain(config: DictConfig) -> Json:
    """Return a configuration's content, interpolations unresolved."""
    return cast(Json, OmegaConf.to_container(config))


def _options(values: Mapping[str, Sequence[Any]]) -> list[list[tuple[str, str]]]:
    """Return the options of each group in these values, without ``debug``, whose options set keys
    of other groups.
    """
    groups = []
    for name, options in values.items():
        if name in GROUPS and name != "debug":
            groups.append([(name, str(option)) for option in options])
    return groups


# groups whose options choose options of several groups
WHOLE = ("sweeps", "recipe", "debug")


def apply_values(recorded: Experiment, values: Config, session: Session) -> Experiment:
    """Return the recorded experiment with these values of keys and groups.

    Raises UserError for unknown keys and values of the wrong type.
    """
    check_groups_one_by_one(values)
    return recorded_points(recorded, session).experiment(values)


def check_groups_one_by_one(values: Config) -> None:
    """Raise UserError for an option that replaces several groups of a recorded trial."""
    for name in WHOLE:
        if name in values:
            raise UserError(
                f"{name}={values[name]} would replace several groups of the recorded trial. "
                "Set the options of single groups instead, such as batch=small kl=low."
            )


def recorded_points(recorded: Experiment, session: Session) -> Points:
    """Return points around a recorded experiment: the record with other values of some keys and
    groups.
    """
    base = follow(OmegaConf.create(escape(asdict(recorded))))

    def compose(wanted: list[str]) -> DictConfig:
        """Return the named options, composed to take their sections; without any, the recorded
        trial.
        """
        chosen = [text for text in wanted if text.partition("=")[0] in GROUPS]
        return session.compose(chosen) if chosen else base

    return Points(compose, [])


def follow(config: DictConfig) -> DictConfig:
    """Restore references between values (``${task.eval_generations}``) if conf/ has them and the
    values are equal.
    """
    followed = config.copy()
    for key, reference in _references():
        trial = followed.copy()
        OmegaConf.update(trial, key, reference)
        if OmegaConf.select(trial, key) == OmegaConf.select(config, key):
            followed = trial
    return followed


@cache
def _references() -> frozenset[tuple[str, str]]:
    """Return every key of a group's options that refers to others, with the reference."""
    found = set()
    for group in GROUPS:
        for path in (CONF / group).glob("*.yaml"):
            for name, value in (parse_yaml(read_text(path)) or {}).items():
                if isinstance(value, str) and "${" in value:
                    found.add((f"{group}.{name}", value))
    return frozenset(found)
