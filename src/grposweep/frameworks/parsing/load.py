"""Files into recipes: what kind of file it is, what it refers to, and one sentence where it is no recipe at all."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grposweep.errors import NotARecipe, UserError
from grposweep.frameworks import FRAMEWORKS, detect, recognise, takes
from grposweep.frameworks.parsing.launch import (
    SHIPPED,
    LaunchCommand,
    LaunchParser,
    Overrides,
    accelerate_file,
    build_config,
    count_processes,
    count_visible_gpus,
    read_overrides,
)
from grposweep.frameworks.parsing.version_source import Judged, Wanted, find_version
from grposweep.frameworks.parsing.yaml_text import FlatConfig, flatten, parse_nested, parse_yaml
from grposweep.frameworks.signs import refuse_launch, refuse_toml
from grposweep.recipe import Recipe
from grposweep.setting import Version

PYTHON = (".py", ".ipynb")
SHELLS = (".sh", ".bash", ".slurm", ".sbatch", ".zsh")
LARGEST = 2 * 2**20  # bytes; recipes have kilobytes
LARGEST_NOTEBOOK = 20 * 2**20  # with the pictures that it printed
FEW_KEYS = 12
MOST_KEYS = 2000  # verl's longest configuration has about 700


@dataclass(frozen=True)
class Options:
    """What the command line says beside the files.

    Of versions ``own_version`` is for any framework (``--framework-version``), ``trl_version`` for those that follow TRL;
    ``version`` is a release that the caller has parsed, of the framework that it names. ``judged`` is a version that was
    found before: an edited text of the same file is judged by it again.
    """

    framework: str = "auto"
    version: Version | None = None
    processes: int | None = None
    train_prompts: int | None = None
    own_version: str | None = None
    gpu_gib: float | None = None  # memory of the GPU to judge by
    gpu: str | None = None  # its name
    trl_version: str | None = None
    judged: Judged | None = None

    def find_version(self, framework: str, config: Mapping[str, Any], path: Path | None, **more: Any) -> Judged:
        """Return the version to judge a recipe by, and what says so."""
        if self.judged is not None:
            return self.judged
        return find_version(framework, config, Wanted(self.own_version, self.trl_version, self.version), path, **more)


def load_recipe(path: Path, options: Options) -> Recipe:
    """The recipe in a file: a flat YAML (JSON is YAML), or the launch in a shell script."""
    return parse_recipe(path, load_text(path), options)


def load_recipes(path: Path, options: Options) -> list[Recipe]:
    """Every recipe in a file, in its order."""
    return parse_recipes(path, load_text(path), options)


def parse_recipes(path: Path, text: str, options: Options) -> list[Recipe]:
    """Every recipe in a text that stands, or will stand, in this file; at least one."""
    if path.suffix in PYTHON:
        from grposweep.frameworks.parsing.python_configs import recipes_of

        return recipes_of(path, text, options)
    return [parse_recipe(path, text, options)]


def shown_text(path: Path, text: str) -> str:
    """The text whose lines a recipe counts: of a notebook the code of its cells."""
    if path.suffix != ".ipynb":
        return text
    from grposweep.frameworks.parsing.python_text import code_cells

    return "\n".join(source for _, source in code_cells(text))


def parse_recipe(path: Path, text: str, options: Options) -> Recipe:
    """The recipe in a text that stands, or will stand, in this file; the first of several in Python."""
    if path.suffix in PYTHON:
        return parse_recipes(path, text, options)[0]
    if path.suffix in SHELLS or text.startswith("#!"):
        return _from_script(path, text, options)
    if path.suffix == ".toml":
        refuse_toml(text)
    flat = parse_yaml(text)
    framework = recognise(flat.config, [str(path)]) if options.framework == "auto" else options.framework
    flat = parse_nested(text) if FRAMEWORKS[framework].is_dotted else flat
    return _from_yaml(path, flat, replace(options, framework=framework))


def load_text(path: Path) -> str:
    """A file's text, line ends as they are; one sentence for what is no text."""
    try:
        if path.is_dir():
            raise UserError("it is a folder. Name the files in it.")
        with path.open("rb") as file:
            largest = LARGEST_NOTEBOOK if path.suffix == ".ipynb" else LARGEST
            data = file.read(largest + 1)
    except OSError as error:
        raise UserError(f"it cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # a null byte in the name
        raise UserError(f"it cannot be read: {error}.") from None
    if len(data) > largest:
        raise UserError(f"it has more than {largest // 2**20} MiB, so it is no recipe.")
    if b"\0" in data:
        raise UserError("it is binary, not text.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"it is not UTF-8 (byte {error.start}). Save it as UTF-8.") from None


def build_recipe(config: Mapping[str, Any], options: Options, paths: tuple[str, ...] = (), **more: Any) -> Recipe:
    """A recipe for the framework that was asked for or is told by keys and paths, its version filled in."""
    framework = options.framework
    if framework == "auto":  # an object of a few keys, which a program made, is one of TRL's unless they say otherwise
        framework = detect(config, *paths) if len(config) <= FEW_KEYS else recognise(config, paths)
    processes = options.processes if options.processes is not None else more.pop("processes", None)
    more.pop("processes", None)
    if FRAMEWORKS[framework].is_dotted:
        config = flatten(config)
    if len(config) > MOST_KEYS:
        raise UserError(f"it has {len(config):,} keys, so it is no recipe.")
    file = more.get("file")
    judged = options.find_version(framework, config, None if file is None else Path(file),
                                  base=more.get("base", ""), code=more.get("code"))  # fmt: skip
    return Recipe(framework, judged.version, config, processes, options.train_prompts, options.gpu_gib, options.gpu,
                  version_source=judged.source, vendored=judged.vendored, **more)  # fmt: skip


def _from_yaml(path: Path, flat: FlatConfig, options: Options) -> Recipe:
    if {"distributed_type", "compute_environment"} & flat.config.keys():
        raise UserError("it is an accelerate configuration, not a recipe. Name the recipe, and --processes.")
    return build_recipe(
        flat.config, options, (str(path),), file=str(path), lines=flat.lines, duplicates=flat.duplicates
    )


def _find_launch(text: str, options: Options) -> LaunchCommand:
    """Return the launch in a script. A framework that is not read is named by it, or by the script where there is none."""
    try:
        start = LaunchParser(FRAMEWORKS.values()).find(text)
    except UserError:
        refuse_launch(text)
        raise
    if options.framework == "auto":
        refuse_launch(" ".join(["-m", start.launch.program, *(word.text for word in start.after)]))
    return start


def _recognise_launch(config: Mapping[str, Any], path: Path, start: LaunchCommand, text: str) -> str:
    """Return the framework of a launch, by what it sets and starts."""
    try:
        return recognise(config, [str(path), *_config_name(start)], [start.launch.program])
    except NotARecipe:
        refuse_launch(text)  # its options may stand in arrays that are not known
        raise


def _from_script(path: Path, text: str, options: Options) -> Recipe:
    from grposweep.frameworks.parsing.python_launched import read_launched

    start = _find_launch(text, options)
    if start.is_dotted if options.framework == "auto" else FRAMEWORKS[options.framework].is_dotted:
        return _from_overrides(path, start, text, options)
    flat = _config_of(start, path)
    base = {**flat.config}
    framework = options.framework
    if framework == "auto":
        framework = _recognise_launch({**base, **start.options}, path, start, text)
    code = read_launched(start.launch.program, path) if start.own is None else None
    judged = options.find_version(framework, {**base, **start.options}, path, code=code)
    config = {**base, **build_config(start, judged.vendored or takes(framework, judged.version))}
    start.environment = {**given_environment(base, FRAMEWORKS[framework].environment_key), **start.environment}
    processes, trouble = (None, "") if FRAMEWORKS[framework].counts_itself else _processes(start, path)
    if processes is not None and start.server_gpus and base.get("use_vllm") is True:
        processes = max(processes - start.server_gpus, 0) or None
        trouble = "" if processes else "the only node is the vLLM server's"
    unresolved = {name: text for name, text in start.unresolved.items() if name != "config"}
    if trouble:
        unresolved["num_processes"] = trouble
    if options.processes is not None:
        unresolved.pop("num_processes", None)
    if not start.lines.keys() & {"num_processes"} and processes is not None:
        config.pop("num_processes", None)
    return build_recipe(
        config,
        replace(options, framework=framework, judged=judged),
        processes=processes,
        file=str(path),
        lines={name: line for name, line in start.lines.items() if name in config},
        duplicates=tuple(twice for twice in flat.duplicates if twice.key not in start.options),
        unresolved=unresolved,
        launch=replace(
            start.launch,
            config=next(iter(_config_name(start)), ""),
            visible_gpus=count_visible_gpus(start.environment),
        ),
        code=code,
    )


def _from_overrides(path: Path, start: LaunchCommand, text: str, options: Options) -> Recipe:
    """The overrides of a command line, over the configuration that it names, where that is found."""
    said = read_overrides(start)
    framework = options.framework
    if framework == "auto":
        framework = _recognise_launch(said.config, path, start, text)
    base = _base_of(said, framework, path, options)
    return build_recipe(
        {**base.config, **said.config},
        replace(options, framework=framework),
        file=str(path),
        lines=said.lines,
        duplicates=said.duplicates,
        unresolved=said.unresolved,
        launch=replace(start.launch, config=said.base),
        base=said.base,
    )


def _base_of(said: Overrides, framework: str, script: Path, options: Options) -> FlatConfig:
    """Return the YAML behind ``config=`` or ``--config-name``, or what the framework has in its place."""
    if not said.base:
        return FlatConfig({}, {}, ())
    fallback = FRAMEWORKS[framework].base_config
    own = fallback(said.base, options.find_version(framework, said.config, script).version) if fallback else None
    if "$" in said.base and own is None:
        raise UserError(f"{said.base}: only a running shell knows which file that is. Lint the configuration itself.")
    found = find_near(said.base, script)
    if found is not None:
        try:
            return parse_nested(load_text(found))
        except UserError as error:
            raise UserError(f"{said.base}: {error}") from None
    if own is not None:
        return FlatConfig(dict(own), {}, ())
    raise UserError(
        f"config={said.base}: no such file from here or from the script's folders. Lint the configuration itself."
    )


def given_environment(config: Mapping[str, Any], key: str) -> dict[str, str]:
    """Return the variables that a recipe brings along under a key; what is set already stays."""
    found = config.get(key)
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _config_name(start: LaunchCommand) -> list[str]:
    return list(start.options.get("config") or [])[:1]


def _config_of(start: LaunchCommand, script: Path) -> FlatConfig:
    """The YAML behind ``--config``; without it most keys are unknown, so nothing could be judged."""
    names = _config_name(start)
    if not names:
        return FlatConfig({}, {}, ())
    if "config" in start.unresolved:
        raise UserError(f"--config {names[0]}: only a running shell knows which file that is. Lint the recipe itself.")
    path = find_near(names[0], script)
    if path is None:
        raise UserError(
            f"--config {names[0]}: no such file from here or from the script's folders. Lint the recipe itself."
        )
    try:
        return parse_yaml(load_text(path))
    except UserError as error:
        raise UserError(f"--config {names[0]}: {error}") from None


def find_near(name: str, script: Path) -> Path | None:
    """A file that a script names: from the working directory, or from the script's folder and those above it."""
    wanted = Path(name)
    folders = [Path(), *list(script.absolute().parents)[:5]]
    candidates = [wanted] if wanted.is_absolute() else [folder / wanted for folder in folders]
    return next((path for path in candidates if path.is_file()), None)


def _processes(start: LaunchCommand, script: Path) -> tuple[int | None, str]:
    """The launcher's own count, or that of the accelerate configuration it names."""
    count, trouble = count_processes(start)
    name = accelerate_file(start)
    if count is not None or trouble or name is None:
        return count, trouble
    if name in SHIPPED:
        return SHIPPED[name], ""
    path = find_near(name, script)
    try:
        value = parse_yaml(load_text(path)).config.get("num_processes") if path else None
    except UserError:
        value = None
    if isinstance(value, int) and not isinstance(value, bool):
        return value, ""
    return None, f"{name} (the accelerate configuration was not found, or states none)"
