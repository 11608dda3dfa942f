"""Turn shell scripts into recipes: each launch with the files that it names."""

import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from grporecipe.errors import NotARecipe, UserError
from grporecipe.files import Config, Json, only
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import NO_CODE, LaunchedCode, Recipe
from grporecipe.project.repository import (
    find_folders,
    find_root,
    head_of,
    lacks_file,
    project_folder,
    scripts_of,
)
from grporecipe.reading import launch
from grporecipe.reading._detect import detect_framework, recognise_recipe
from grporecipe.reading.build import Options, build_recipe, find_near, load_text
from grporecipe.reading.launcher_files import LauncherFile, read_accelerate, read_keys
from grporecipe.reading.python._launched import read_launched, uses_trl
from grporecipe.reading.signs import refuse_launch
from grporecipe.reading.yaml_text import FlatConfig, parse_nested, parse_yaml

NOTHING = FlatConfig({}, {}, ())
# of one script
MOST_LAUNCHES = 64
# launches that are one sweep, and keys in which they differ
FEWEST_SWEPT, MOST_SWEPT = 3, 3
OTHER_SUBJECT = r"model|data|file|checkpoint|resume"
SPREAD = r"device_map['\"]?\s*[=:]\s*['\"](?:auto|balanced)|\bhf_device_map\b"


def recipes_of_script(path: Path, text: str, options: Options) -> list[Recipe]:
    """Return every launch of a script that trains with GRPO, without duplicates.

    Raises UserError if there is none, with the reason for the first launch. An unsupported
    framework is named, by its launch or by the script.
    """
    try:
        starts = _launches(path, text)
    except UserError:
        refuse_launch(text)
        raise
    recipes: list[Recipe] = []
    refused: UserError | None = None
    for start in starts[:MOST_LAUNCHES]:
        try:
            if options.framework == "auto":
                arguments = [argument.text for argument in start.after]
                refuse_launch(" ".join(["-m", start.launch.program, *arguments]))
            recipe = _from_launch(path, start, text, options)
        except UserError as error:
            refused = refused or error
        else:
            if not any(_are_alike(recipe, other, SAME) for other in recipes):
                recipes.append(recipe)
    if not recipes and refused is not None:
        raise refused
    if len(recipes) >= FEWEST_SWEPT:
        recipes[0] = replace(recipes[0], swept=_swept(recipes))
    return recipes


def _launches(path: Path, text: str) -> list[launch.LaunchCommand]:
    """Return the launches of a script. Raises UserError if there is none."""
    parser = launch.LaunchParser(FRAMEWORKS.values())
    return parser.find(text, str(path), partial(_sourced, path))


def _swept(recipes: list[Recipe]) -> tuple[str, ...]:
    """Return the keys that make the launches of a script one sweep: few, and neither the model nor
    the data, which make stages or a comparison of models of it.
    """
    first = recipes[0]
    keys: set[str] = set()
    for each in recipes:
        if not _are_alike(each, first, ("framework", "processes", "unresolved")):
            return ()
        if each.launch.program != first.launch.program:
            return ()
        both = each.config.keys() | first.config.keys()
        keys |= {key for key in both if each.config.get(key) != first.config.get(key)}
    takes = FRAMEWORKS[first.framework].is_judged
    judged = sorted(key for key in keys if takes(key.lstrip("+"), first.version))
    if len(judged) > MOST_SWEPT or any(re.search(OTHER_SUBJECT, key) for key in keys):
        return ()
    return tuple(judged)


def read_launching(recipe: Path) -> LaunchedCode:
    """Return the code of the first program that a script of the repository starts with ``--config``
    and this recipe.
    """
    root = find_root(recipe)
    if root is None:
        return NO_CODE
    for script, text in scripts_of(root):
        if recipe.name not in text:
            continue
        with suppress(UserError):
            for start in _launches(script, text):
                if Path(_config_name(start)).name == recipe.name:
                    return read_launched(start.launch.program, script, launch.python_path(start))
    return NO_CODE


# fields of launches that are the same recipe
SAME = (
    "framework",
    "config",
    "processes",
    "unresolved",
    "may_have_more",
    "base",
    "launch_fields",
)


def _are_alike(one: Recipe, other: Recipe, names: tuple[str, ...]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _sourced(script: Path, name: str, folder: str) -> str | None:
    """Return the text of a file that a script sources, if it is in the script's repository."""
    path = find_near(name, script, folder)
    root = project_folder(script)
    if path is None or not path.resolve().is_relative_to(root.resolve()):
        return None
    try:
        return load_text(path)
    except UserError:
        return None


def _recognise_launch(config: Config, path: Path, start: launch.LaunchCommand, text: str) -> str:
    """Return the framework of a launch, by its keys and its program."""
    try:
        return recognise_recipe(config, [str(path), _config_name(start)], [start.launch.program])
    except NotARecipe:
        # its options may be in unknown arrays
        refuse_launch(text)
        raise


def _from_launch(path: Path, start: launch.LaunchCommand, text: str, options: Options) -> Recipe:
    is_dotted = start.is_dotted
    if options.framework != "auto":
        is_dotted = FRAMEWORKS[options.framework].is_dotted
    if is_dotted:
        return _from_overrides(path, start, text, options)
    flat = _config_of(start, path)
    base = flat.config
    stated = {**base, **start.options}
    program = start.launch.program
    named = _config_name(start)
    paths = launch.python_path(start)
    code = NO_CODE
    if start.own is None:
        code = read_launched(program, path, paths)
    framework = options.framework
    if framework == "auto" and launch.has_sign_of_grpo(start, code):
        framework = detect_framework(stated, program, str(path), named)
    elif framework == "auto":
        framework = _recognise_launch(stated, path, start, text)
    table = FRAMEWORKS[framework]
    if options.framework == "auto" and table.is_dotted:
        # maybe a profile
        recognise_recipe(stated, [str(path)], [program])
    follows_trl = table.traits.follows_trl
    places = find_folders(paths, path)
    if code and follows_trl and uses_trl(Path(code.file), places) is False:
        raise NotARecipe(
            f"{program} has a trainer of its own: neither it nor what it imports uses TRL."
        )
    if start.own is None or follows_trl:
        _spell_out(start, framework, code)
    judged = options.find_version(
        framework, {**base, **start.options}, path, start.folder, code=code
    )
    takes = judged.vendored or table.takes(judged.version)
    config = {**base, **launch.build_config(start, takes)}
    variables = base.get(table.environment_key)
    if isinstance(variables, dict):
        for name, value in variables.items():
            start.environment.setdefault(str(name), str(value))
    processes, trouble, fields = _processes(start, path, config)
    if processes is not None and start.server_gpus and base.get("use_vllm") is True:
        processes = max(processes - start.server_gpus, 0) or None
        if processes is None:
            trouble = "the only node is the vLLM server's"
    visible_gpus = launch.count_visible_gpus(start.environment)
    # a model on several GPUs is no DataParallel
    if re.search(SPREAD, head_of(Path(code.file))):
        visible_gpus = None
    unresolved = dict(start.unresolved)
    if trouble:
        unresolved["num_processes"] = trouble
    if options.processes is not None:
        unresolved.pop("num_processes", None)
    if "num_processes" not in start.lines and processes is not None:
        config.pop("num_processes", None)
    return build_recipe(
        config,
        replace(options, framework=framework, judged=judged),
        processes=processes,
        file=str(path),
        lines=only(start.lines, config),
        duplicates=tuple(twice for twice in flat.duplicates if twice.key not in start.options),
        unresolved=unresolved,
        may_have_more=start.may_have_more or code.own_config,
        launch_fields=fields,
        launch=replace(
            start.launch,
            config=_config_name(start),
            accelerate=launch.accelerate_file(start) or "",
            visible_gpus=visible_gpus,
        ),
        code=code,
    )


def _spell_out(start: launch.LaunchCommand, framework: str, code: LaunchedCode) -> None:
    table = FRAMEWORKS[framework]
    if start.options.keys() <= {*table.takes(table.version), *code.declares, "config"}:
        return
    releases = (table.version, *reversed(table.known_releases))
    launch.spell_out(
        start,
        [{**table.takes(release), **code.declares} for release in releases],
        table.traits.follows_trl,
    )


def _from_overrides(path: Path, start: launch.LaunchCommand, text: str, options: Options) -> Recipe:
    """Return the recipe of a command line: its overrides on top of the configuration that it names,
    if that is found.
    """
    given = launch.read_overrides(start)
    framework = options.framework
    if framework == "auto":
        framework = _recognise_launch(given.config, path, start, text)
    base = _base_of(given, framework, path, start.folder, options)
    if options.framework == "auto" and base.config:
        # maybe a profile
        recognise_recipe({**base.config, **given.config}, [str(path)], [start.launch.program])
    # what another script sets, this one may replace
    duplicates = given.duplicates if Path(start.launch.program).name in text else ()
    return build_recipe(
        {**base.config, **given.config},
        replace(options, framework=framework),
        file=str(path),
        lines=given.lines,
        duplicates=duplicates,
        unresolved=given.unresolved,
        may_have_more=given.may_have_more,
        launch=replace(start.launch, config=given.base, raw=given.raw),
        base=given.base,
        folder=start.folder,
    )


def _base_of(
    given: launch.Overrides, framework: str, script: Path, folder: str, options: Options
) -> FlatConfig:
    """Return the YAML that ``config=`` or ``--config-name`` names, or the framework's own base
    configuration.
    """
    if not given.base:
        return NOTHING
    # only a running shell knows it
    if "$" in given.base:
        given.may_have_more = True
        return NOTHING
    base_config = FRAMEWORKS[framework].base_config
    own = None
    if base_config and not lacks_file(script, given.base):
        version = options.find_version(framework, given.config, script).version
        own = base_config(given.base, version)
    path = find_near(given.base, script, folder)
    if path is not None:
        try:
            return parse_nested(load_text(path))
        except UserError as error:
            raise UserError(f"{given.base}: {error}") from None
    if own is None:
        given.may_have_more = True
        given.unresolved["config"] = given.base
    return FlatConfig(dict(own or {}), {}, ())


def _config_name(start: launch.LaunchCommand) -> str:
    """Return the file that ``--config`` names; empty without one."""
    return "".join(start.options.get("config", [])[:1])


def _config_of(start: launch.LaunchCommand, script: Path) -> FlatConfig:
    """Return the YAML that ``--config`` names; empty if it is missing, and then its keys are
    unknown.
    """
    name = _config_name(start)
    if not start.options.get("config"):
        return NOTHING
    path = None
    if "config" not in start.unresolved:
        path = find_near(name, script, start.folder)
    if path is None:
        start.may_have_more = True
        start.unresolved["config"] = name
        return NOTHING
    try:
        return parse_yaml(load_text(path))
    except UserError as error:
        raise UserError(f"--config {name}: {error}") from None


def _processes(
    start: launch.LaunchCommand, script: Path, config: Config
) -> tuple[int | None, str, Json]:
    """Return the processes that the launcher or an accelerate file states, or why they are unknown,
    and the file's fields.
    """
    count, trouble = launch.count_processes(start)
    name = launch.accelerate_file(start)

    def find(named: str) -> Path | None:
        return find_near(named, script, start.folder)

    stated = LauncherFile()
    if name:
        stated = read_accelerate(name, find)
    fields = {**stated.fields, **read_keys(config, find)}
    if count is not None or trouble or name is None:
        return count, trouble, fields
    return stated.processes, stated.trouble, fields
