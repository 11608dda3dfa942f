"""Convert what Hydra composed into an `Experiment`, and explain misspelled keys and options.

The schema is merged once more, so an unknown key is an error. A `Session` composes outside of
run.py, for ``grposweep plan`` and ``space``.
"""

import pickle
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args, get_origin

import hydra._internal.hydra
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf

# behind OmegaConf.to_yaml; public nowhere
from omegaconf._utils import OmegaConfDumper
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.files import Config, Json, parse_yaml, read_text, without
from grporecipe.frameworks.trl.keys import known as keys_of_trl
from grporecipe.model.setting import TRL
from grporecipe.model.values import NestedLoader
from grporecipe.reading.yaml_text import INDENTATION
from grposweep.config._loader import OnceLoader
from grposweep.process import CONF
from grposweep.schema import GROUPS, Experiment, keys_of, keys_with, trl_arguments
from grposweep.schema.registries import suggest_search_key

# For a number given as a group option: the key that takes it.
NUMBER_KEYS = {
    "batch": "batch.prompts_per_step (with batch=auto) or batch.num_generations",
    "kl": "kl.beta (with kl=low)",
    "optimizer": "lr",
    "schedule": "schedule.budget_completions",
    "cluster": "cluster.processes",
    "search": "search.trials",
    "model": "model.path",
    "task": "task.path",
}


def known_keys() -> list[str]:
    """Return every dotted key of the schema, including sections."""
    keys: dict[str, None] = {}
    for path, _ in keys_of():
        keys |= dict.fromkeys(accumulate(path.split("."), "{}.{}".format))
    return list(keys)


def keys_of_natives() -> dict[str, str]:
    """Return the key from which each of these arguments of GRPOConfig follows."""
    natives: dict[str, str] = {}
    for key, names in keys_with("native").items():
        natives |= dict.fromkeys(names.split(), key)
    return natives


def key_of_native(name: str) -> str | None:
    """Return the key for an argument of GRPOConfig; None for other names."""
    natives = keys_of_natives() | {name: own for own, name in trl_arguments().items()}
    if name in natives:
        return natives[name]
    if name in keys_of_trl(TRL):
        return next(iter(_named(name)), f"trainer.args.{name}")
    return None


def _named(name: str) -> list[str]:
    return [key for key in known_keys() if key.rpartition(".")[2] == name]


def unknown_key(key: str) -> str:
    """Return the message for an unknown key, with the most similar keys."""
    keys = known_keys()
    last = key.rpartition(".")[2]
    same = _named(last)
    own = key_of_native(last)
    # GRPOConfig's name may be like none of ours
    if own and own not in same:
        same = [own]
    similar = get_close_matches(last, {each.rpartition(".")[2] for each in keys}, n=2, cutoff=0.7)
    near = (
        same
        or get_close_matches(key, keys, n=2, cutoff=0.6)
        or [k for k in keys if k.rpartition(".")[2] in similar]
    )
    hint = f"Did you mean {' or '.join(near[:3])}?" if near else "'--cfg job' shows all keys."
    return f"{key} is not a key of grposweep, so nothing would read it. {hint}"


def options(conf: Path, group: str) -> list[str]:
    """Return the options of a group, from its folder."""
    return sorted(path.stem for path in (conf / group).glob("*.yaml"))


def unknown_option(group: str, value: str, available: list[str]) -> str:
    """Return the message for ``group=value`` if there is no such option."""
    if group not in (*GROUPS, "sweeps"):
        return (
            f"{group}={value}: there is no group {group}. The groups are {', '.join(GROUPS)} "
            "and sweeps."
        )
    near = get_close_matches(value, available, n=1, cutoff=0.6)
    meant = f" Did you mean {group}={near[0]}?" if near else ""
    parameter = ""
    if group in NUMBER_KEYS and not near:
        parameter = f" To set a number use {NUMBER_KEYS[group]}."
    if value.startswith("["):
        meant = f" A sweep compares several: -m {group}={value.strip('[]')}."
    hint = suggest_search_key(group, value) or f"{meant}{parameter}"
    return (
        f"{group}={value}: {group} has no option {value!r}; its options are "
        f"{', '.join(available)}.{hint}"
    )


# What Hydra's grammar would read as a number, a Boolean or null.
NO_TEXT = re.compile(
    r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(e[-+]?\d+)?|[-+]?(inf|nan)|true|false|null", re.IGNORECASE
)


def override_text(value: Any) -> str:
    """Return a configuration value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        plain = value.isascii() and all(letter.isalnum() or letter in "_-./+" for letter in value)
        if value and plain and not NO_TEXT.fullmatch(value):
            return value
        # in Hydra's grammar a backslash escapes only before a quote, including the closing one
        doubled = re.sub(r'(\\*)(?="|\Z)', r"\1\1", value)
        return '"' + doubled.replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(override_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{override_text(item)}" for key, item in value.items()) + "}"
    return repr(value)


def quoted(key: str, value: str) -> str:
    """Return an override of a text for a shell: with Hydra's quotes if it needs them, inside the
    shell's.
    """
    return shlex.quote(f"{key}={override_text(value)}")


def malformed(argument: str, error: Exception) -> str:
    """Return the message for an override that Hydra's grammar does not accept."""
    reason = str(error).strip().splitlines()[0]
    key, is_set, value = argument.partition("=")
    if is_set and takes_text(key):
        return (
            f"{argument!r}: parts of this text are syntax for Hydra. Quote it twice: "
            f"{quoted(key, value)}"
        )
    if value.endswith(","):
        return f"{argument!r}: a value is missing at the end. Write {argument.rstrip(',')}."
    closed = _closed(argument)
    if closed:
        return f"{argument!r}: a bracket is not closed. Close it: {shlex.quote(closed)}"
    odd = re.sub(r"[\x00-\x7f]", "", argument)
    # of an input method's full-width forms
    plain = unicodedata.normalize("NFKC", argument)
    if odd and plain.isascii():
        return f"{argument!r}: {odd[0]!r} is a full-width character. Write {shlex.quote(plain)}."
    if reason.startswith("LexerNoViable"):
        reason = f"it does not expect {(odd or ' ')[0]!r} there"
    return (
        f"{argument!r} is not an override that Hydra understands ({reason}). Write key=value, "
        "key=a,b,c for a sweep, "
        f"'key=tag(log,interval(1e-5,1e-3))' for a range (in quotes, because of the brackets)."
    )


def _closed(argument: str) -> str:
    """Return an override with the brackets at its end that are missing; empty if none is, or one is
    closed wrongly.
    """
    pairs = dict(zip("([{", ")]}", strict=True))
    missing = ""
    for letter in re.sub(r"\"[^\"]*\"|'[^']*'", "", argument):
        if letter in pairs:
            missing = pairs[letter] + missing
        elif letter in pairs.values():
            if not missing.startswith(letter):
                return ""
            missing = missing[1:]
    return argument + missing if missing else ""


MAPPINGS = (
    "trainer.args",
    "generation.generation_kwargs",
    "model.chat_template_kwargs",
    "trainer.fsdp_config",
    "trainer.environment",
    "cluster.environment",
)


@cache
def _text_keys() -> frozenset[str]:
    return frozenset(
        path
        for path, entry in keys_of()
        if path not in LISTS and {*(get_args(entry.type) or [entry.type])} - {NoneType} == {str}
    )


def takes_text(key: str) -> bool:
    """Return whether a key takes any text, so that a value which Hydra cannot parse is meant as
    one.
    """
    return key.lstrip("+") in _text_keys() or key.lstrip("+").startswith(
        tuple(f"{name}." for name in MAPPINGS)
    )


@dataclass
class _Sweeper:
    """Hydra's section of this sweeper. Another key in it is an error."""

    _target_: str = "hydra_plugins.grposweep.sweeper.GrposweepSweeper"
    params: dict[str, Any] = field(default_factory=dict)


def register_schema() -> None:
    """Register the schema and the sweeper with Hydra; run.py calls this before it composes
    anything.
    """
    OmegaConf.register_new_resolver("ranks", _ranks, replace=True)
    OmegaConf.register_new_resolver("budget", _budget, replace=True)
    OmegaConf.register_new_resolver("command", _command, replace=True)
    # A release of Hydra that takes its loader from another place composes twice, as before.
    setattr(hydra._internal.hydra, "ConfigLoaderImpl", OnceLoader)  # noqa: B010  # mypy refuses an assignment
    store = ConfigStore.instance()
    # Hydra copies its sources, and the store with them, for each composition, and 119 times for
    # --help; the store copies what it gives out.
    setattr(ConfigStore, "__deepcopy__", lambda self, _memo: self)  # noqa: B010  # mypy refuses an assignment
    name = "experiment_schema.yaml"
    # store.store() copies it first
    store.repo[name] = ConfigNode(name, _schema(), None, None, "grposweep")
    store.store(
        group="hydra/sweeper",
        name="grposweep",
        node=_Sweeper,
        provider="grposweep",
    )


def _ranks(nodes: int, gpus_per_node: int, tasks_per_node: int, server_gpus: int) -> int:
    """Resolve ``${ranks:nodes,gpus_per_node,tasks_per_node,server_gpus}``: a rank per training GPU,
    or without GPUs per task.
    """
    # GT106 reports if no GPU is left
    return max(nodes * (gpus_per_node or tasks_per_node) - server_gpus, 1)


def _budget(model: str, max_steps: int | None, epochs: float | None) -> int | None:
    """Resolve ``${budget:...}``: completions of a training by default, 200 steps of 32 or (a real
    model) of 256.

    None if another length is set. verl's published runs on GSM8K generate 37,120: an epoch, 116
    steps of 320.
    """
    if max_steps is not None or epochs is not None:
        return None
    return 6_400 if model.startswith("embedded") else 51_200


def _command() -> str:
    """Resolve ``${command:}``: how this program was started, for its help."""
    return "python src/run.py" if Path(sys.argv[0]).name == "run.py" else "grposweep run"


def to_experiment(config: DictConfig | Json) -> Experiment:
    """Return the typed experiment of a composed configuration, with interpolations resolved.

    Raises UserError for unknown keys (``+`` and ``++`` bypass Hydra's own check), wrong types and
    missing values.
    """
    return resolved(typed(config))


def experiment_at(config: DictConfig, values: Config) -> Experiment:
    """Set keys of a composed configuration, which may be typed already, and return its experiment.

    Raises UserError as ``to_experiment`` does.
    """
    _refuse_missing(dict(values))
    OmegaConf.set_struct(config, True)
    try:
        for name, value in values.items():
            OmegaConf.update(config, name, value)
    except OmegaConfBaseException as error:
        raise UserError(explain_error(error)) from error
    if OmegaConf.get_type(config) is not Experiment:
        config = typed(config)
    return resolved(config)


def typed(config: DictConfig | Json) -> DictConfig:
    """Return a composed configuration under the schema's types, with interpolations unresolved.

    Raises UserError as ``to_experiment`` does.
    """
    plain = config if isinstance(config, dict) else OmegaConf.to_container(config)
    # a composed configuration is never a list
    assert isinstance(plain, dict)
    _refuse_missing(plain)
    try:
        # OmegaConf's own copy takes 6 times as long
        merged = cast(DictConfig, pickle.loads(_schema_bytes()))
        merged.merge_with(without(plain, ("hydra",)))
    except OmegaConfBaseException as error:
        raise UserError(explain_error(error)) from error
    return merged


def resolved(config: DictConfig) -> Experiment:
    """Return the experiment of a typed configuration, with interpolations resolved.

    Raises UserError for an interpolation without a target, or with a value of the wrong type.
    """
    try:
        # after OmegaConf.resolve, an escaped ${...} would be an interpolation
        experiment = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise UserError(explain_error(error)) from error
    # structured() keeps the type
    assert isinstance(experiment, Experiment)
    return experiment


def _refuse_missing(content: Any, key: str = "") -> None:
    """Raise UserError for a value that was left open (``???``), because merging would replace it by
    the schema's default.
    """
    if isinstance(content, dict):
        for name, value in content.items():
            _refuse_missing(value, f"{key}.{name}" if key else str(name))
    elif content == "???" and not key.startswith("hydra."):
        raise UserError(f"{key} is not set, and this configuration needs it. Set {key}=...")


@cache
def _schema() -> Any:
    """Return the schema as a configuration, built once. Its mappings take any key without a
    ``+``.
    """
    config = OmegaConf.structured(Experiment)
    for key in MAPPINGS:
        OmegaConf.set_struct(OmegaConf.select(config, key), False)
    return config


@cache
def _schema_bytes() -> bytes:
    return pickle.dumps(_schema())


def explain_error(error: OmegaConfBaseException) -> str:
    """Explain an OmegaConf error in one sentence."""
    key = str(error.full_key or error.key or "")
    first = str(error.msg or error).strip().splitlines()[0]
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        return unknown_key(key)
    if isinstance(error, MissingMandatoryValue):
        return f"{key} is not set, and this configuration needs it. Set {key}=..."
    if isinstance(error, InterpolationKeyError | UnsupportedInterpolationType):
        return (
            f"{key or 'A value'} refers to a key that does not exist: {first}. Correct the name "
            "inside ${...}, or write \\${...} for text such as a variable of the shell."
        )
    if variable := re.search(r"Environment variable '(\w+)' not found", first):
        name = variable[1]
        return f"{key}: {name} is not exported. Export it, or write ${{oc.env:{name},VALUE}}."
    for pattern, wanted in WRONG_TYPES:
        if match := re.search(pattern, first):
            advice = "Set one ('--cfg job' shows the present value)."
            if "number" in wanted:
                advice = _explain_search(key, match[1], "whole" in wanted) or advice
            return f"{key}={match[1]} is not {wanted}. {advice}"
    if first.endswith("is not Optional"):
        return f"{key}=null: this key needs a value. Set one ('--cfg job' shows the present value)."
    return f"{key}: {first}. Set a value of the right type ('--cfg job' shows the present ones)."


def _explain_search(key: str, value: str, is_whole: bool) -> str:
    """Return how several values are written, if a value looks like a list or a range; empty
    otherwise.
    """
    if value.startswith("["):
        return f"To try each, set {key}={value[1:-1].replace(' ', '')} with -m."
    ends = re.fullmatch(RANGE, value)
    if ends is None:
        return ""
    low = float(ends[1])
    high = float(ends[2])
    domain = f"interval({ends[1]},{ends[2]})"
    if is_whole:
        domain = f"range({low:g},{high + 1:g})"
    elif 0 < 10 * low <= high:
        domain = f"tag(log,{domain})"
    return f"To search a range, set '{key}={domain}' with -m."


# Two numbers as people write a range.
RANGE = r"(?i)([-+]?[\d.]*\d(?:e[-+]?\d+)?)(?:\.\.+|:| to |-)([-+]?\d[\d.]*(?:e[-+]?\d+)?)"
# OmegaConf's messages, and what the key takes
WRONG_TYPES = (
    (r"^Value '(.*)' of type '\w+' could not be converted to Float", "a number"),
    (r"^Value '(.*)' of type '\w+' could not be converted to Integer", "a whole number"),
    (r"^Value '(.*)' is not a valid bool", "true or false"),
)


def load_experiment(path: Path) -> Experiment:
    """Read the experiment in a trial's ``config.yaml``."""
    try:
        config = parse_yaml(read_text(path), NestedLoader)
        if not isinstance(config, dict):
            raise ValueError("it is no mapping")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path} is damaged ({reason}). Restore it from a copy, or delete the trial's folder."
        ) from error
    return to_experiment(config)


def escape(value: Any) -> Any:
    """Return resolved values for a new configuration, in which their ``${`` stays text:
    ``cluster.setup`` may have some.
    """
    if isinstance(value, dict):
        return {name: escape(item) for name, item in value.items()}
    if isinstance(value, list):
        return list(map(escape, value))
    if isinstance(value, str) and "${" in value:
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def render_experiment(experiment: Experiment) -> str:
    """Return the YAML that ``load_experiment`` reads, without ``verbose``, which is for the
    controller only.
    """
    content = without(asdict(experiment), ("verbose",))
    content = escape(content)
    # The same as OmegaConf.to_yaml(OmegaConf.structured(experiment)), which checks every type
    # again: 20 ms instead of 1.
    return yaml.dump(
        content, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=_dumper()
    )


@cache
def _dumper() -> type[yaml.Dumper]:
    """Return PyYAML's fast writer with OmegaConf's quotes around words that would be read back as
    numbers.
    """

    class Dumper(getattr(yaml, "CDumper", yaml.Dumper)):  # type: ignore[misc]  # the same text either way, one five times faster
        pass

    Dumper.add_representer(str, OmegaConfDumper.str_representer)
    return Dumper


# keys that take a list
LISTS = frozenset(path for path, entry in keys_of() if get_origin(entry.type) is list)
# a value without brackets, quotes or a reference
_ONE_WORD = r"(?!null$)[\w./:,@-]+"
# no name of a group's option
_NO_OPTION = r"(?i)[-+]?[\d.]+(e[-+]?\d+)?|null|true|false|[\[{].*"


def message(error: Exception) -> str:
    """Return one message: what is set, why it cannot work, what to set instead."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OmegaConfBaseException):
        return explain_error(error)
    # nearly always a group's option
    if isinstance(error, MissingConfigException):
        group, _, value = (error.missing_cfg_file or "").removesuffix(".yaml").rpartition("/")
        first = str(error).strip().splitlines()[0]
        return unknown_option(group, value, list(error.options or [])) if group else first
    text = str(error)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}:{mark.line + 1}: {error.problem}. {INDENTATION}"
    cause = error.__cause__ or error.__context__
    if in_file := re.match(r"In '([^']+)': ", text):
        return f"{in_file[1]}.yaml: {_explain_file(text, cause)}"
    if isinstance(cause, OmegaConfBaseException):
        return explain_error(cause)
    if unknown := re.search(r"Could not override '([^']+)'", text):
        key = unknown[1]
        return unknown_option(key, "", options(CONF, key)) if key in GROUPS else unknown_key(key)
    if "Ambiguous value" in text:
        word = text.split("'")[1]
        key, _, value = word.partition("=")
        return (
            f"{word}: several values need a sweep, and this is a single run. Add -m, or give one "
            f"value. A comma that belongs to the value needs quotes: {quoted(key, value)}."
        )
    if isinstance(error, OverrideParseException):
        return malformed(error.override, error)
    return " ".join(text.split()) or repr(error)


def _explain_file(text: str, cause: BaseException | None) -> str:
    """Explain what Hydra refuses in the file of a sweep."""
    if re.search(r"(?m)full_key: sweeps$|@sweeps\.", text):
        return (
            "it has no key of a sweep. Begin it with the line: # @package _global_, and put what "
            "is searched below hydra.sweeper.params."
        )
    if override := re.search(r"Could not override '(?:sweeps/)?([^@']+)", text):
        return (
            f"defaults: {override[1]} names no group. Write - override /GROUP: OPTION; the "
            f"groups are {', '.join(GROUPS)}."
        )
    if of_sweeper := re.search(r"full_key: (hydra\.sweeper\.\w+)", text):
        return f"{of_sweeper[1]} is no key. Put what is searched below hydra.sweeper.params."
    if section := re.search(r"\w+ is not a subclass of (\w+)\. value: (.*)", text):
        name = section[1].lower()
        return f"{name} is a section. Below defaults, write - override /{name}: {section[2]}"
    if "ListConfig" in text:
        return "a list stands where a section belongs. Write each line as key: value, without -."
    if isinstance(cause, OmegaConfBaseException):
        return explain_error(cause)
    return " ".join(text.split())


def override_name(override: str) -> str:
    """Return the key or group that an override is about, without Hydra's ``+`` and ``~``."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def check_groups(overrides: Iterable[str], folders: Sequence[Path] = ()) -> None:
    """Raise UserError for ``batch=16`` or ``batch=null`` (ValueError in Hydra), and for lists, of
    which it takes the last.

    Also for one word given to a key that takes a list. With the ``folders`` of all options, which
    are conf/ and those of
    --config-dir, for every misspelt option and key together: Hydra names the first one only.
    """
    refuse_mistakes(chain.from_iterable(_mistakes(override, folders) for override in overrides))


def _mistakes(override: str, folders: Sequence[Path]) -> Iterator[str]:
    key = override_name(override)
    name, is_set, value = override.partition("=")
    is_group = name in (*GROUPS, "sweeps")
    is_word = re.fullmatch(_ONE_WORD, value)
    if is_word and key in LISTS:
        yield (
            f"{override}: {key} takes a list. Write '{key}=[{value}]' (in quotes, because of "
            "the brackets)."
        )
    elif is_group and re.fullmatch(_NO_OPTION, value):
        yield unknown_option(name, value, options(CONF, name))
    elif folders and is_group and is_word:
        choices = sorted(set().union(*(options(folder, name) for folder in folders)))
        for word in value.split(","):
            if not any((folder / name / f"{word}.yaml").is_file() for folder in folders):
                yield unknown_option(name, word, choices)
    elif (
        folders
        and is_set
        and re.fullmatch(r"[\w.]+", name)
        and not name.startswith(("hydra.", *MAPPINGS))
    ):
        # The group of a base recipe is registered later.
        is_option = key == "recipe" or any((folder / key).exists() for folder in folders)
        if not is_option and key not in known_keys():
            yield unknown_key(key)


@dataclass(frozen=True)
class Session:
    """An open Hydra over conf/, and its folders of options."""

    loader: ConfigLoader
    folders: tuple[Path, ...] = ()

    def compose(self, overrides: list[str]) -> DictConfig:
        """Return the configuration for these overrides, including Hydra's own section.

        Raises UserError if Hydra cannot compose it.
        """
        check_groups(overrides, self.folders)
        try:
            return compose("config", overrides, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(message(error)) from error

    def sweep_params(self, overrides: list[str]) -> Json:
        """Return the parameters of a sweep file, if the overrides name one."""
        shared = [override for override in overrides if override.startswith("sweeps=")]
        params = OmegaConf.to_container(self.compose(shared).hydra.sweeper.params)
        if isinstance(params, dict):
            return {str(name): content for name, content in params.items()}
        return {}


# the configuration in conf/ that includes all others
PRIMARY = "config"


def is_conf(folder: Path) -> bool:
    """Return whether a folder is a copy of conf/. Raises UserError if it lacks groups."""
    if not (folder / f"{PRIMARY}.yaml").is_file():
        return False
    lost = [group for group in GROUPS if not (folder / group).is_dir()]
    if lost:
        raise UserError(
            f"--config-dir {folder}: it has a {PRIMARY}.yaml, but no folder {', '.join(lost)}. A "
            "copy of conf/ has all groups: run 'grposweep init FOLDER' and name that folder."
        )
    return True


@contextmanager
def open_session(config_dir: Path | None = None) -> Iterator[Session]:
    """Open Hydra on conf/ or on the user's copy of it, and close it afterwards.

    Raises UserError for a folder without config.yaml.
    """
    register_schema()
    if not CONF.is_dir():
        raise UserError(
            f"{CONF} does not exist: this installation lacks its configuration groups. Install "
            "grposweep again."
        )
    folder = CONF if config_dir is None else config_dir.resolve()
    if not is_conf(folder):
        raise UserError(
            f"--config-dir {folder}: it has no config.yaml. 'grposweep init' makes such a folder."
        )
    with initialize_config_dir(config_dir=str(folder), version_base="1.3"):
        yield Session(GlobalHydra.instance().config_loader(), (folder,))
