"""A recipe of one framework as it was read: native keys, values and lines."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from grporecipe.files import Config, Json, without
from grporecipe.model.setting import Version
from grporecipe.redaction import SHOWN, secrets_in

# characters that a message shows at least of a long value
SHORTENED = 16


class KeySpec(NamedTuple):
    """A key in one release: its type (``int``, ``float?`` with None, ``any``) and its default."""

    type: str
    default: Any


# the keys that a recipe may set, with types and defaults
KeySpecs = Mapping[str, KeySpec]


class VersionSource(NamedTuple):
    """The source of the version that a recipe is judged by.

    ``kind`` is one of: an option (``asked``), a project's settings (``project``), the releases that
    have all keys (``keys``), or nothing (``default``). From the repository itself: one release that
    it requires (``pinned``), several (``range``), or the framework's own source in it
    (``vendored``). ``newer``: a release is stated that is newer than all known ones. ``where``
    names the option or file, ``text`` quotes it.
    """

    kind: Literal["asked", "project", "pinned", "range", "vendored", "keys", "newer", "default"] = (
        "default"
    )
    where: str = ""
    text: str = ""
    # keys that another release takes and the required version does not
    conflict: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Return whether the version is stated. If not, key rules only warn, and no fix of a key is
        safe.
        """
        return self.kind != "default"


NOT_STATED = VersionSource()
# for a recipe that code builds, with the version that it passes
BY_CALLER = VersionSource("asked", "the caller")


@dataclass(frozen=True)
class LaunchedCode:
    """Options and trainer in the Python file of a training, read from its syntax tree without
    running it.

    ``declares`` are the keys of its own dataclasses and argparse options. ``trainer`` is the class
    that trains, empty if unknown; ``own_trainer`` is true if it is not the framework's class.
    ``other_keys`` is what happens to a key that neither it nor the framework takes: training stops,
    the key is dropped, or unknown. ``own_config`` is true if the file builds the trainer's
    configuration itself, so keys that the command line omits have the file's values.
    ``no_evaluation`` and ``no_rewards`` are the line of the trainer's call if it certainly passes
    no ``eval_dataset`` or ``reward_funcs``. ``declares_more`` is true if other files may declare
    further keys. ``parsers`` are the classes that parse its command line, and ``classes`` those of
    the library whose fields they take. ``imports`` are the names and modules of TRL that it always
    imports, with their lines. It is false without a file and options, if none is known.
    """

    file: str = ""
    declares: Mapping[str, KeySpec] = field(default_factory=dict)
    trainer: str = ""
    own_trainer: bool = False
    other_keys: Literal["", "stop", "dropped"] = ""
    own_config: bool = False
    no_evaluation: int | None = None
    no_rewards: int | None = None
    declares_more: bool = False
    parsers: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    imports: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.file or self.declares)

    @property
    def reads_recipes(self) -> bool:
        """Whether an argparse option of its own names the recipe, so that only its code knows the
        keys in it.
        """
        return "config" in self.declares and self.parsers <= {"ArgumentParser"}


NO_CODE = LaunchedCode()


@dataclass(frozen=True)
class Duplicate:
    """A key that a file sets twice, to different values; the last one counts."""

    key: str
    first_line: int
    line: int
    first_value: Any


@dataclass(frozen=True)
class LaunchContext:
    """How a script launches a recipe: the launcher (trl, accelerate, torchrun, deepspeed, python)
    and the program.

    ``program`` is the script or module. ``cut_line`` is the line from which bash reads the
    remaining options as another command, because a comment or a blank ended the first. ``config``
    is the recipe that it names, whose keys have no line here, ``accelerate`` the configuration of
    accelerate. ``visible_gpus`` is how many GPUs CUDA_VISIBLE_DEVICES shows, if the script sets it.
    The command begins on ``line`` of the script. ``raw`` holds the values of dotted overrides as
    passed to the program, by key. It is false without launcher and program, if no command launches
    the recipe.
    """

    launcher: str = ""
    program: str = ""
    cut_line: int | None = None
    config: str = ""
    accelerate: str = ""
    visible_gpus: int | None = None
    line: int | None = None
    raw: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.launcher or self.program)


NO_LAUNCH = LaunchContext()


@dataclass(frozen=True)
class Recipe:
    """One recipe as a file, a command line or a JSON object states it, before defaults are filled
    in.

    ``processes`` are training ranks, if the recipe or the caller states them; ``train_prompts``
    likewise. ``gpu_gib`` is the memory of the GPU to judge by, and ``gpu`` its name, if the caller
    gave one. Keys of EasyR1 and verl are dotted (``worker.rollout.n``), with the prefix of an
    override (``+a.b``). ``unresolved`` are values that only a running shell knows (``$VAR``), by
    key. ``may_have_more``: a running shell may set further keys, so rules report nothing about keys
    that are not set. ``launch_fields`` are fields of the setting that files next to the recipe
    state: accelerate's configuration, DeepSpeed's. ``assumed`` are keys whose meaning the trainer's
    own source changes, and ``unchecked`` rules on checks that it does not have, each with the place
    that shows it; what depends on them is not judged. ``replaced`` is why the trainer that runs is
    no release, so what a release refuses may pass. ``vendored`` are the keys and defaults of the
    framework's source in the repository, used instead of a release's. Lines of a notebook are
    numbered through all of its code cells; ``cells`` holds the number and the first line of each.
    """

    framework: str
    version: Version
    config: Config
    processes: int | None = None
    train_prompts: int | None = None
    gpu_gib: float | None = None
    gpu: str | None = None
    file: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    duplicates: tuple[Duplicate, ...] = ()
    unresolved: Mapping[str, str] = field(default_factory=dict)
    may_have_more: bool = False
    launch_fields: Config = field(default_factory=dict)
    launch: LaunchContext = NO_LAUNCH
    # the configuration that a dotted command line builds on
    base: str = ""
    version_source: VersionSource = BY_CALLER
    vendored: Mapping[str, KeySpec] | None = None
    assumed: Mapping[str, str] = field(default_factory=dict)
    unchecked: Mapping[str, str] = field(default_factory=dict)
    replaced: str = ""
    code: LaunchedCode = NO_CODE
    cells: tuple[tuple[int, int], ...] = ()
    # combinations of values that an Optuna script tries, of keys that are unresolved: each at the
    # ends of its ranges; an empty one stands for those that are not listed
    points: Sequence[Sequence[Config]] = ()
    # keys in which the launches of a script differ that are one sweep; of the first launch
    swept: tuple[str, ...] = ()
    # computed once
    derived: Json = field(default_factory=dict, init=False, repr=False, compare=False)

    def without_secrets(self, text: str) -> str:
        """Return a text about this recipe with the values of its keys redacted that are secrets."""
        if "secrets" not in self.derived:
            values = [
                *self.config.items(),
                *((each.key, each.first_value) for each in self.duplicates),
            ]
            secrets = set[str]().union(*(secrets_in(key, value) for key, value in values))
            self.derived["secrets"] = sorted(secrets, key=len, reverse=True)
        for secret in self.derived["secrets"]:
            text = text.replace(secret, SHOWN)
            if len(secret) > SHORTENED:
                text = re.sub(rf"{re.escape(secret[:SHORTENED])}\S*", SHOWN, text)
        return text

    @property
    def stated(self) -> Json:
        """Return the keys whose values the recipe itself determines."""
        return without(self.config, self.unresolved)

    @property
    def in_python(self) -> bool:
        """Return whether it is a call in Python. No parser reads its arguments, so an unknown key
        raises TypeError.
        """
        return not self.launch and self.file.endswith((".py", ".ipynb"))

    @property
    def is_configuration(self) -> bool:
        """Return whether it is a file that no known command launches."""
        return bool(self.file) and not self.launch

    def place(self, line: int) -> tuple[int | None, int]:
        """Return the cell of a line and the line within it. Outside of notebooks: no cell, and the
        line itself.
        """
        number, first = next(
            ((cell, start) for cell, start in reversed(self.cells) if start <= line), (None, 1)
        )
        return number, line - first + 1
