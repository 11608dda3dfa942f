"""A native configuration of one framework as it was read: keys, values and their lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from grposweep.setting import Version


class KeySpec(NamedTuple):
    """A key as one release takes it: its type (``int``, ``float?`` with None, ``any``) and its default."""

    type: str
    default: Any


class VersionSource(NamedTuple):
    """What states the version to judge by.

    ``kind``: an option (``asked``), a project's settings (``project``), a requirement of the repository (``pinned``), the
    framework's own source in the repository (``vendored``), the releases that have all keys (``keys``), or nothing
    (``default``). ``where`` names the option or file, ``text`` quotes it.
    """

    kind: Literal["asked", "project", "pinned", "vendored", "keys", "default"] = "default"
    where: str = ""
    text: str = ""
    conflict: tuple[str, ...] = ()  # keys that the required version does not take, and another release does

    @property
    def known(self) -> bool:
        """Whether the version is stated. Where it is not, key rules warn, and no fix of a key is safe."""
        return self.kind != "default"


NOT_STATED = VersionSource()
BY_CALLER = VersionSource("asked", "the caller")  # of a recipe that code builds, with the version that it wants


@dataclass(frozen=True)
class LaunchedCode:
    """What the Python file that trains declares, read from its syntax tree without running it.

    ``declares`` are the keys of its own dataclasses and argparse options. ``trainer`` is the class that trains, empty where
    it is not known; ``own_trainer`` says that it is not the framework's. ``other_keys`` is what happens to a key that
    neither it nor the framework takes: training stops, the key is dropped, or it is not known. ``own_config`` says that it
    makes the trainer's configuration itself, so what the command line leaves out has values of its own.
    """

    file: str
    declares: Mapping[str, KeySpec] = field(default_factory=dict)
    trainer: str = ""
    own_trainer: bool = False
    other_keys: Literal["", "stop", "dropped"] = ""
    own_config: bool = False


@dataclass(frozen=True)
class Duplicate:
    """A key that a file sets twice; the last one counts."""

    key: str
    first_line: int
    line: int


@dataclass(frozen=True)
class LaunchContext:
    """How a script starts a recipe: by which launcher (trl, accelerate, torchrun, deepspeed, python), and of what.

    ``program`` is the script or module; ``cut_line`` the line on which bash takes the command's own options for another
    command, because a comment or a blank ended it; ``config`` the recipe that it names, whose keys have no line here.
    ``visible_gpus`` is how many GPUs CUDA_VISIBLE_DEVICES shows to it, where the script says so. The command stands on lines
    ``line`` to ``last_line`` of the script. ``raw`` are the values of dotted overrides as the program gets them, by key.
    """

    launcher: str
    program: str = ""
    cut_line: int | None = None
    config: str = ""
    visible_gpus: int | None = None
    line: int | None = None
    last_line: int | None = None
    raw: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """One recipe: what a file, a command line or a JSON object says, before any default is filled in.

    ``processes`` are training ranks, where the recipe or its reader was told; ``train_prompts`` likewise. ``gpu_gib`` is
    the memory of a GPU to judge by, and ``gpu`` its name, where its reader named one.
    Keys of EasyR1 and verl are dotted (``worker.rollout.n``), with the sign of an override before them (``+a.b``).
    ``unresolved`` are values that only a running shell would know (``$VAR``), by key. ``may_have_more``: further keys may be
    set where only a running shell knows them, so nothing is said of keys that are not set. ``launch_fields`` are fields of the
    setting that files next to the recipe state: accelerate's configuration, DeepSpeed's. ``vendored`` are the keys and
    defaults of the framework's own source in the repository, which count instead of a release's. Lines of a notebook count
    on through its code cells; ``cells`` are number and first line of each.
    """

    framework: str
    version: Version
    config: Mapping[str, Any]
    processes: int | None = None
    train_prompts: int | None = None
    gpu_gib: float | None = None
    gpu: str | None = None
    file: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    duplicates: tuple[Duplicate, ...] = ()
    unresolved: Mapping[str, str] = field(default_factory=dict)
    may_have_more: bool = False
    launch_fields: Mapping[str, Any] = field(default_factory=dict)
    launch: LaunchContext | None = None
    base: str = ""  # the configuration that a dotted command line builds on, as it names it
    version_source: VersionSource = BY_CALLER
    vendored: Mapping[str, KeySpec] | None = None
    code: LaunchedCode | None = None
    cells: tuple[tuple[int, int], ...] = ()
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # worked out once

    def line(self, key: str) -> int | None:
        """The line that sets a key, from 1; None where the recipe has no lines."""
        return self.lines.get(key)

    @property
    def in_python(self) -> bool:
        """Whether it is a call in Python, whose arguments no parser reads: an unknown key is a TypeError."""
        return self.launch is None and (self.file or "").endswith((".py", ".ipynb"))

    def place(self, line: int) -> tuple[int | None, int]:
        """Return the cell of a line, and the line in it; outside of notebooks no cell, and the line itself."""
        number, first = next(((cell, start) for cell, start in reversed(self.cells) if start <= line), (None, 1))
        return number, line - first + 1
