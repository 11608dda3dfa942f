"""The work of ``grposweep plan``, ``fit`` and ``space``: numbers and broken rules, without
training.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.fields.memory import describe
from grporecipe.fields.recipes import read_recipe
from grporecipe.linting.linter import plan_numbers, unknown_sizes
from grporecipe.linting.output import place_of
from grporecipe.memory.calibration import calibrate
from grporecipe.memory.estimate import estimate, memory_gib
from grporecipe.memory.fit import VERDICTS, find_savings, fit, fit_gpus
from grporecipe.memory.host import find_host_memory
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.planning import evaluation_share
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import text
from grporecipe.model.setting import TRL, Setting
from grporecipe.project.versions import describe_version
from grporecipe.reading.load import Options, load_recipes
from grporecipe.rules.check import UNSTATED, check
from grporecipe.rules.fixes import render_problem
from grporecipe.terminal import first_of, say
from grposweep.report.plan import (
    SYMBOLS,
    fit_table,
    gpu_table,
    host_line,
    memory_assumptions,
    memory_bars,
    notes,
    plan_table,
    savings_line,
)
from grposweep.report.tables import RIGHT, Row, Styled, build_console, build_table, print_lines


def show_plan(
    items: Sequence[str],
    options: Options,
    as_json: bool,
    gpu_gib: float | None = None,
    config_dir: Path | None = None,
) -> int:
    """Print the plans of recipe files side by side, or of a configuration given by overrides.
    Return 1 if one has errors.
    """
    named = _settings(items, options, gpu_gib, config_dir)
    if as_json:
        for name, setting in named:
            shown = plan_numbers(setting)
            shown["evaluation_share"] = evaluation_share(setting) if shown["total_steps"] else None
            shown["memory_gib"] = memory_gib(setting)
            print(json.dumps({"file": name or None, "plan": shown}))
    else:
        _print_plans(build_console(), named)
    problems = chain.from_iterable(check(setting) for _, setting in named)
    return int(any(problem.is_error for problem in problems))


def show_fit(
    items: Sequence[str],
    options: Options,
    gpu_gib: float | None,
    as_json: bool,
    config_dir: Path | None = None,
    gpu_name: str = "",
) -> int:
    """Print how large each size can be on one GPU, or on each known GPU. Return 1 if it fits on
    none.
    """
    if not all("=" in item for item in items):
        items = items[:1]
    (name, setting), *others = _settings(items, options, gpu_gib, config_dir)
    if others:
        raise UserError(
            f"{items[0]}: it has {1 + len(others)} recipes, such as {name}. Give a file with one."
        )
    memory = estimate(setting)
    if memory is None:
        raise UserError(
            "the model's shape is not known, so its memory cannot be estimated. Name one "
            "(model=qwen2_5_1_5b), set model.shape, or give a recipe whose model is in "
            "docs/explanation/memory.md or a folder with a config.json."
        )
    gpu = None
    fits = []
    if setting.gpu_memory_gib is None:
        fits = fit_gpus(setting)
        table = gpu_table(fits)
    else:
        gpu = fit(setting, setting.gpu_memory_gib)
        fits = [(gpu_name, gpu)]
        table = fit_table(setting, gpu)
    savings = find_savings(setting)
    host = find_host_memory(setting)
    if as_json:
        more = {
            "savings": {saving.change: saving.gib for saving in savings},
            "host": host and host.as_gib(),
        }
        for name, fitted in fits:
            print(json.dumps({"gpu": name or None, **fitted.as_dict(), **more}))
    else:
        console = build_console()
        console.print(table)
        if gpu is not None:
            console.print(f"It {gpu.verdict}: {gpu.low:.1f} to {gpu.high:.1f} of {gpu.gib:g} GiB.")
            if not gpu.starts:
                needs = (
                    f"vLLM does not start: its share of {gpu.engine_share:g} GiB must hold "
                    f"{gpu.engine_needs:g}."
                )
                console.print(needs)
        # memory problems are part of the estimate above
        for problem in check(setting.replace({"gpu_memory_gib": None})):
            if problem.is_error or problem.code == UNSTATED:
                console.print(f"{problem.code} {render_problem(setting, problem)}", style="red")
        bars = memory_bars(memory, setting.gpu_memory_gib, console.width, has_range=gpu is None)
        for line in filter(None, (bars, savings_line(savings), host_line(host))):
            console.print(line)
        _print_assumptions(console, setting)
    return int(all(fitted.verdict == VERDICTS[False] for _, fitted in fits))


def _print_assumptions(console: Console, setting: Setting, head: str = "") -> None:
    for line in memory_assumptions(setting):
        console.print(f"{head}{line}")


def _settings(
    items: Sequence[str], options: Options, gpu_gib: float | None, config_dir: Path | None
) -> list[tuple[str, Setting]]:
    """Return the settings of files, each with its name, or of overrides."""
    files = [item for item in items if "=" not in item]
    if files and len(files) < len(items):
        raise UserError(
            f"{' '.join(items)}: files and overrides cannot be combined. Name recipes, or "
            "key=value overrides."
        )
    named: list[tuple[str, Setting]] = []
    for name in files:
        named += _of_file(name, options)
    settings = []
    for name, setting in named or [("", _of_overrides(items, options, config_dir))]:
        if gpu_gib is not None:
            setting = setting.replace({"gpu_memory_gib": gpu_gib})
        settings.append((name, calibrate(setting)))
    return settings


def training_processes(processes: int | None, gpus: int | None, server_gpus: int) -> int | None:
    """Return the number of training processes: as stated, or one for each GPU without a vLLM
    server.

    Raises UserError if both are stated and differ, or if no GPU is left to train.
    """
    if gpus is None:
        return processes
    if gpus <= server_gpus:
        raise UserError(
            f"--gpus {gpus} --vllm-gpus {server_gpus}: no GPU is left to train. Give vLLM fewer."
        )
    ranks = gpus - server_gpus
    if processes not in (None, ranks):
        server = f" --vllm-gpus {server_gpus}" if server_gpus else ""
        raise UserError(
            f"--processes {processes} --gpus {gpus}{server}: each GPU that trains has one process, "
            f"so --gpus means {ranks} processes. Give only one of the two options."
        )
    return ranks


def show_space(
    arguments: Sequence[str], config_dir: Path | None = None, as_json: bool = False
) -> int:
    """Print how many points of a space are valid, which rules make the others invalid, and the
    valid share of each value.
    """
    from grposweep.config.compose import open_session, override_name

    # Hydra and numpy: 0.3 s that lint and plan FILE should not pay
    from grposweep.config.points import Points
    from grposweep.config.wandb_sweep import expand
    from grposweep.report.space_summary import (
        describe_chance,
        print_invalid,
        print_length,
        print_what_differs,
        space_as_json,
    )
    from grposweep.search.evaluate import SAMPLED, validate_points
    from grposweep.search.listed import list_points
    from grposweep.search.parse import parse_space, split_tokens
    from grposweep.search.validity import Validator, check_space

    expanded = expand([re.sub(r"^[^@=]+\.ya?ml$", r"@\g<0>", word) for word in arguments])
    before = expanded[: expanded.index("--")] if "--" in expanded else expanded
    tokens = split_tokens(word for word in before if word not in ("-m", "--multirun"))
    with open_session(config_dir) as session:
        space, fixed = parse_space(tokens, session.sweep_params(tokens), session.loader)
        points = Points(session.compose, fixed)
        space = list_points(space, points.base.search)
        if not space.parameters:
            raise UserError(
                "nothing is swept. Give a parameter several values (lr=1e-4,3e-4), or a study "
                "(sweeps=lr_batch)."
            )
        check_space(space, points, [*map(override_name, fixed)])
        validator = Validator(space, points)
        validity = validate_points(validator)
        if validity.is_dead:
            refuse_mistakes(validity.describe_lacks())
        if as_json:
            print(json.dumps(space_as_json(validity)))
            return int(not validity.valid)
        console = build_console()
        console.print(validity.describe())
        print_what_differs(console, validity)
        valid = list(validity.valid_points())
        some = Random(0).sample(valid, min(len(valid), SAMPLED))
        print_length(console, map(validator.fields.setting, some))
        if validity.valid > 1 and "seed" not in space.choices:
            print_lines(console, describe_chance(points.base, points.base.task.eval_prompts))
        if validity.invalid:
            print_invalid(console, validity)
            console.print(_label_table(validity.valid_by_label()))
    return int(not validity.valid)


def _of_file(name: str, options: Options) -> list[tuple[str, Setting]]:
    """Return the settings of a file's recipes. If there are several, each is named with its
    line.
    """
    try:
        recipes = load_recipes(Path(name), options)
        if any(FRAMEWORKS[recipe.framework].is_asynchronous(recipe) for recipe in recipes):
            raise UserError(
                "it is for AsyncGRPOTrainer, which generates while it trains, so it has no "
                "rollouts and no plan. Name a recipe of GRPOTrainer."
            )
        for version in dict.fromkeys(map(describe_version, recipes)):
            say(f"{name}: read as {version}", sys.stderr)
        named: list[tuple[str, Setting]] = []
        for recipe in recipes:
            named += _of_recipe(name, recipe, len(recipes) > 1)
        return named
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def _of_recipe(name: str, recipe: Recipe, is_one_of_several: bool) -> Iterator[tuple[str, Setting]]:
    """Yield the setting of a recipe, unless a size behind its plan is not known."""
    start = min(recipe.lines.values(), default=None) if is_one_of_several else None
    reading = read_recipe(recipe)
    unknown = unknown_sizes(recipe, reading)
    if recipe.may_have_more and "config" not in recipe.unresolved:
        # options of the script's own call, which are mostly none
        unknown &= reading.setting.given
    if not unknown:
        yield f"{name}{place_of(recipe, start)}", describe(recipe, reading.setting)
        return
    stated = unknown & FRAMEWORKS[recipe.framework].by_name.keys() or unknown
    keys = sorted(map(reading.setting.key, stated))
    text = (
        f"only the run knows {first_of(keys, 3)}, so there is no plan. Set it, or lint the file to "
        "see why."
    )
    places = [f"{key}: {place}" for key, place in recipe.assumed.items() if key in keys]
    if places:
        text = f"{'; '.join(places)}, so there is no plan."
    if not is_one_of_several:
        raise UserError(text)
    say(text, sys.stderr)


def _of_overrides(overrides: Sequence[str], options: Options, config_dir: Path | None) -> Setting:
    if options.own_version is not None:
        raise UserError(
            f"--framework-version {options.own_version}: overrides are for grposweep's own "
            f"trainer, which runs TRL {text(TRL)}. Name a recipe, or leave the option out."
        )
    from grposweep.config.compose import open_session

    # Hydra: not for recipes
    from grposweep.config.points import Points
    from grposweep.config.to_setting import read_setting
    from grposweep.schema.registries import runs_trl
    from grposweep.search.evaluate import validate_points
    from grposweep.search.space import Space
    from grposweep.search.validity import Validator
    from grposweep.train.prompts import count_local

    with open_session(config_dir) as session:
        points = Points(session.compose, list(overrides))
        base = points.base
        counted: dict[str, int | None] = {}
        if options.train_prompts is not None:
            counted["train_prompts"] = options.train_prompts
        if runs_trl(base.trainer):
            counted["longest_prompt"] = count_local(base)
        setting = read_setting(base, counted)
        for line in validate_points(Validator(Space(), points)).describe_lacks():
            say(line, sys.stderr)
    return setting if options.processes is None else replace(setting, processes=options.processes)


def _print_plans(console: Console, named: Sequence[tuple[str, Setting]]) -> None:
    console.print(plan_table(named))
    console.print(SYMBOLS, style="dim")
    for name, setting in named:
        memory = estimate(setting)
        if memory is not None:
            console.print(memory_bars(memory, setting.gpu_memory_gib, console.width, name))
    for name, setting in named:
        head = f"{name}: " if len(named) > 1 else ""
        if setting.architecture is not None:
            _print_assumptions(console, setting, head)
        for note in notes(setting):
            console.print(f"{head}{note}")
        for problem in check(setting):
            style = "red" if problem.is_error else "yellow"
            console.print(f"{head}{problem.code} {render_problem(setting, problem)}", style=style)


def _label_table(by_label: Mapping[str, Mapping[Any, tuple[int, int]]]) -> Table:
    """Return a table of parameter values with their shares of valid points. Values that are never
    valid are yellow.
    """
    rows: list[Row] = []
    for parameter, labels in by_label.items():
        for label, (good, whole) in labels.items():
            cells = (parameter, str(label), f"{good:,} of {whole:,}")
            if good:
                rows.append(cells)
            else:
                never = "never valid with the other parameters in this space"
                rows.append(Styled((*cells, never), "yellow"))
    return build_table(("parameter", "value", ("valid points", RIGHT), ""), rows)
