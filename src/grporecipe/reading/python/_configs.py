"""Find every ``GRPOConfig(...)`` of a Python file or notebook: keys and lines, also from its
trainer, LoRA and model.

Values are read if they are literals, constants or argparse defaults of the file; all others are
unknown. Sources: trl trainer/grpo_config.py, grpo_trainer.py and model_config.py (the names of
LoRA's keys in a recipe); peft LoraConfig; unsloth FastLanguageModel (``from_pretrained``,
``get_peft_model``).
"""

import ast
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

from grporecipe.errors import NotARecipe, UserError
from grporecipe.fields.memory import DTYPES
from grporecipe.files import Config, without
from grporecipe.model.framework import FRAMEWORKS, version_of
from grporecipe.model.recipe import NO_CODE, KeySpec, LaunchedCode, Recipe, VersionSource
from grporecipe.project.versions import Judged
from grporecipe.reading.build import Options, build_recipe
from grporecipe.reading.python._launched import (
    LIBRARY_TRAINERS,
    MOST_BASES,
    fields_of,
    read_trainer,
)
from grporecipe.reading.python.source import (
    NOTEBOOK,
    UNKNOWN,
    Cell,
    Names,
    Scope,
    Source,
    keywords_of,
    last_name,
    name_of,
    place_of,
    read_names,
    read_source,
    text_of,
)

CONFIG = "GRPOConfig"
# of what an Optuna script tries
MOST_POINTS = 256
CONFIGS = (CONFIG, "AsyncGRPOConfig")
LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
}
PINS = r"\btrl\s*(?:\[[\w,]*\])?\s*==\s*(\d+(?:\.\d+){1,2})"
# Keys that unsloth/models/rl.py adds to GRPOConfig. It also makes the micro-batch a multiple of the
# group.
UNSLOTH_KEYS = (
    "vllm_sampling_params",
    "unsloth_num_chunks",
    "unsloth_logit_chunk_multiplier",
    "unsloth_grpo_mini_batch",
    "max_seq_length",
)


@dataclass(frozen=True)
class PythonConfig:
    """One configuration of a trainer in a Python file. ``own`` are the keys of the file's own
    class, with defaults.

    ``call`` creates it; ``spread`` is the first ``**words`` in it that may set any key. ``pinned``
    is the TRL release that a notebook installs, with its line. Line numbers of a notebook continue
    from cell to cell (``cells``). Two are equal if they mean the same at other lines.
    """

    config: Config
    lines: Mapping[str, int] = field(compare=False)
    unresolved: Mapping[str, str]
    call: ast.Call = field(compare=False)
    framework: str
    processes: int | None = None
    pinned: tuple[str, int] | None = None
    cells: tuple[Cell, ...] = field(default=(), compare=False)
    code: LaunchedCode = field(default=NO_CODE, compare=False)
    spread: str = ""
    # keys that are not in the call: of its trainer, model and LoRA, and set later
    elsewhere: frozenset[str] = frozenset()
    # values of unresolved keys by the combinations of what an Optuna trial suggests
    points: Sequence[Sequence[Config]] = ()


class Slot(NamedTuple):
    """A key's value, the expression that sets it, and its line."""

    value: Any
    node: ast.expr
    line: int


def find_configs(path: Path, text: str) -> list[PythonConfig]:
    """Return every configuration of TRL's GRPO trainer in a file.

    Raises NotARecipe if there is none, and UserError for a file that cannot be read.
    """
    if CONFIG not in text:
        raise NotARecipe(
            f"no {CONFIG} here, by which TRL's GRPO trainer is configured. Lint the recipe or "
            "the launch script."
        )
    source = read_source(text, path.suffix == NOTEBOOK)
    names = read_names(source.tree)
    made = [
        (call, scope)
        for call, scope in names.calls
        if _is_config(names, call.func)
        # GRPOConfig(f"{model_name}-GRPO"), what a copy of TRL's trainer takes if it is given none
        and (call.keywords or len(call.args) != 1 or not text_of(call.args[0]).endswith("-GRPO'"))
    ]
    if not made:
        how = ""
        if "TrlParser" in text or "HfArgumentParser" in text:
            how = " Its parser reads it: lint the recipe or the script that launches it."
        raise NotARecipe(f"no {CONFIG}(...) of TRL here is given its values.{how}")
    is_only = len(made) == 1
    try:
        return [_configure(path, source, names, call, scope, is_only) for call, scope in made]
    except RecursionError:
        raise UserError("it is nested too deeply to be followed.") from None


def recipes_of(path: Path, text: str, options: Options) -> list[Recipe]:
    """Return every recipe in a Python file or notebook.

    Raises NotARecipe if there is none, and UserError for a file that cannot be read.
    """
    return [_recipe(path, made, options) for made in find_configs(path, text)]


def _recipe(path: Path, made: PythonConfig, options: Options) -> Recipe:
    """Return the recipe of a configuration."""
    framework = options.framework
    if framework == "auto":
        framework = made.framework
    if not FRAMEWORKS[framework].traits.follows_trl:
        raise UserError(
            f"it has TRL's GRPOConfig, which is not of {framework}. Leave --framework out."
        )
    code = made.code
    if made.framework == "unsloth":
        # judged as a TRL recipe, although Unsloth replaces class and configuration
        patched = framework != "unsloth"
        declares = code.declares
        if patched:
            declares = {**dict.fromkeys(UNSLOTH_KEYS, KeySpec("any", None)), **declares}
        code = replace(code, declares=declares, trainer="UnslothGRPOTrainer", own_trainer=patched)
    # what another call takes says nothing about the release
    stated = without(made.config, made.elsewhere)
    for key in stated.keys() & made.unresolved.keys():
        stated[key] = []
    judged = _installed(made, framework, options) or options.find_version(
        framework, stated, path, code=code
    )
    keys = FRAMEWORKS[framework].takes(judged.version)
    foreign = made.elsewhere - keys.keys()
    recipe = build_recipe(
        without(made.config, foreign),
        replace(options, framework=framework, judged=judged),
        processes=made.processes,
        file=str(path),
        lines=made.lines,
        unresolved=without(made.unresolved, foreign),
        code=code,
        cells=made.cells,
        points=made.points,
    )
    if not made.spread:
        return recipe
    rest = dict.fromkeys(keys.keys() - recipe.config.keys(), made.spread)
    # **words may set any key
    return replace(recipe, unresolved={**rest, **recipe.unresolved})


def _installed(made: PythonConfig, framework: str, options: Options) -> Judged | None:
    """Return the release that a notebook installs in a cell, unless an option gives one."""
    is_stated = options.judged or options.version or options.own_version
    if made.pinned is None or is_stated:
        return None
    release, line = made.pinned
    cell = max(cell.number for cell in made.cells if cell.line <= line)
    return Judged(
        version_of(framework, release), VersionSource("pinned", f"cell {cell}", f"trl=={release}")
    )


def _is_config(names: Names, node: ast.expr, steps: int = 0) -> bool:
    """Return whether a class is TRL's GRPOConfig, or a class of the file that is derived from
    it.
    """
    name = name_of(node)
    origin = names.origin(node)
    if name in names.classes:
        return steps < MOST_BASES and any(
            _is_config(names, base, steps + 1) for base in names.classes[name].bases
        )
    # part of a file, without its imports
    if not origin:
        return name in CONFIGS
    return origin.partition(".")[0] in LIBRARY_TRAINERS and origin.rpartition(".")[2] in CONFIGS


def _configure(
    path: Path, source: Source, names: Names, call: ast.Call, scope: Scope, is_only: bool
) -> PythonConfig:
    slots, unknown = _arguments(names, call, scope)
    if "*0" in slots:
        slots["output_dir"] = slots.pop("*0")
    owners = {place for place, value in names.assigned if value is call}
    trainers = []
    for trainer, at in names.calls:
        given = keywords_of(trainer).get("args")
        if last_name(trainer.func).endswith("Trainer") and _is_given(given, call, owners, at):
            trainers.append((trainer, at))
    every = {**_read_elsewhere(names, trainers, is_only), **slots}
    # config.seed = 3, trainer.args.seed = 3: no call refuses such a key
    for owner in owners | {".args"}:
        for key, node in names.attributes.get(owner, {}).items():
            every[key] = Slot(UNKNOWN, node, node.lineno)
    own = fields_of(names, name_of(call.func))
    config = {key: spec.default for key, spec in own.items() if spec.default is not None}
    unresolved = dict(zip(unknown, unknown, strict=True))
    for key, slot in every.items():
        config[key] = slot.value
        if slot.value is UNKNOWN:
            config[key] = unresolved[key] = text_of(slot.node)
    name, own_trainer = read_trainer(names)
    no_evaluation = _first_without("eval_dataset", names, trainers)
    no_rewards = _first_without("reward_funcs", names, trainers, "environment_factory")
    framework = "trl"
    if names.has_unsloth:
        framework = "unsloth"
    return PythonConfig(
        config,
        {key: slot.line for key, slot in every.items()},
        unresolved,
        call,
        framework,
        _processes(source, names),
        _pin(source),
        source.cells,
        LaunchedCode(
            str(path),
            own,
            name,
            own_trainer,
            "stop",
            no_evaluation=no_evaluation,
            no_rewards=no_rewards,
            imports=names.of_trl,
        ),
        "".join(unknown[:1]),
        frozenset(every.keys() - slots.keys()),
        _points(names, call, scope),
    )


def _points(names: Names, call: ast.Call, scope: Scope) -> list[list[Config]]:
    """Return the arguments of a call that depend on what an Optuna trial suggests, for each
    combination of suggested values, at both ends of its ranges. Of more than MOST_POINTS
    combinations, a sample, and an empty one for the others.
    """
    searched: dict[int, list[tuple[Any, Any]]] = {}
    for made, at in names.calls:
        values = _suggested(names, made, at)
        if values:
            searched[id(made)] = values
    combinations = [*islice(product(*searched.values()), MOST_POINTS + 1)]
    points: list[list[Config]] = []
    if len(combinations) > MOST_POINTS:
        draw = random.Random(0)
        combinations = [tuple(map(draw.choice, searched.values())) for _ in range(MOST_POINTS)]
        points.append([{}])
    fixed = _arguments(names, call, scope)[0]
    for combination in combinations:
        ends: list[Config] = []
        for returned in zip(*combination, strict=True):
            names.forget(dict(zip(searched, returned, strict=True)))
            point = {}
            for key, slot in _arguments(names, call, scope)[0].items():
                if fixed[key].value is UNKNOWN and slot.value is not UNKNOWN:
                    point[key] = slot.value
            if point and point not in ends:
                ends.append(point)
        if ends and ends not in points:
            points.append(ends)
    names.forget({})
    return points


def _suggested(names: Names, call: ast.Call, scope: Scope) -> list[tuple[Any, Any]]:
    """Return the values that a call of an Optuna trial suggests, each twice, or the two ends of a
    range of real numbers. None of a range of very many integers: its ends say nothing of others.
    """
    name = last_name(call.func)
    if not name.startswith("suggest_"):
        return []
    given = {key: slot.value for key, slot in _arguments(names, call, scope)[0].items()}
    stated = [given[key] for key in ("*1", "*2", "choices", "low", "high") if key in given]
    values: Sequence[Any] = ()
    match [*stated, given.get("step", 1)]:
        case [list() as choices, _]:
            values = choices
        case [int() | float() as low, int() | float() as high, _] if name != "suggest_int":
            return [(low, high)]
        case [int() as low, int() as high, int() as step] if step > 0:
            values = range(low, high + 1, step)
    if values[MOST_POINTS:]:
        return []
    return [(value, value) for value in values]


def _arguments(names: Names, call: ast.Call, scope: Scope) -> tuple[dict[str, Slot], list[str]]:
    """Return the arguments of a call (``*0`` is the first by position), and the words that may set
    any key.
    """
    slots: dict[str, Slot] = {}
    unknown = []
    for n, node in enumerate(call.args):
        slots[f"*{n}"] = Slot(names.value(node, scope), node, node.lineno)
    for keyword in call.keywords:
        if keyword.arg is not None:
            value = names.value(keyword.value, scope)
            slots[keyword.arg] = Slot(value, keyword.value, keyword.lineno)
            continue
        for key, node, at in names.entries(keyword.value, scope):
            if key is None:
                unknown.append(f"**{text_of(node)}")
            else:
                slots[key] = Slot(names.value(node, at), node, node.lineno)
    return slots, unknown


def _is_given(node: ast.expr | None, call: ast.Call, owners: set[str], scope: Scope) -> bool:
    """Return whether a trainer's ``args`` is this configuration."""
    if node is None:
        return False
    return call in scope.bindings(node) or (
        not isinstance(node, ast.Name) and place_of(node) in owners
    )


def _read_elsewhere(
    names: Names, trainers: list[tuple[ast.Call, Scope]], is_only: bool
) -> dict[str, Slot]:
    """Return the keys of a recipe that a configuration's trainer, model and LoRA set."""
    every = [made for made in names.calls if last_name(made[0].func).endswith("GRPOTrainer")]
    if not trainers and is_only and len(every) < 2:
        # the only trainer, if it does not name another configuration
        trainers = [made for made in every if "args" not in keywords_of(made[0])]
    if not trainers and (every or not is_only):
        return {}
    slots: dict[str, Slot] = {}
    for call, scope in names.calls:
        name = last_name(call.func)
        if name not in ("from_pretrained", "get_peft_model"):
            continue
        given, _ = _arguments(names, call, scope)
        if name == "get_peft_model" and "r" in given:
            slots |= _read_lora(call, given)
        elif name == "from_pretrained" and name_of(call.func).startswith("Fast"):
            model = given.get("model_name") or given.get("*0")
            loaded = {"model_name_or_path": model, "load_in_4bit": given.get("load_in_4bit")}
            for key, slot in loaded.items():
                if slot is not None and slot.value is not UNKNOWN:
                    slots[key] = slot
    if not trainers:
        return slots
    trainer, scope = trainers[0]
    given, _ = _arguments(names, trainer, scope)
    if "peft_config" in given and given["peft_config"].value is not None:
        lora = _call_of("LoraConfig", given["peft_config"], scope)
        slots["use_peft"] = given["peft_config"]._replace(value=UNKNOWN)
        if lora is not None:
            slots |= _read_lora(lora, _arguments(names, lora, scope)[0])
    if "model" in given and isinstance(given["model"].value, str):
        slots["model_name_or_path"] = given["model"]
    elif "model" in given:
        slots |= _read_type(names, given["model"], scope)
    rewards = given.get("reward_funcs")
    if rewards is not None and isinstance(rewards.node, ast.List):
        slots["reward_funcs"] = rewards._replace(value=list(map(text_of, rewards.node.elts)))
    return slots


def _call_of(name: str, slot: Slot, scope: Scope) -> ast.Call | None:
    """Return the call of a function that makes a value, if nothing else may make it."""
    match scope.bindings(slot.node):
        case [ast.Call() as call] if last_name(call.func) == name:
            return call
    return None


def _read_type(names: Names, model: Slot, scope: Scope) -> dict[str, Slot]:
    """Return the type of the weights that a trainer's model is loaded with, under both names of its
    key.

    It is unknown if something else than ``from_pretrained`` makes the model. Without a type,
    transformers chooses one: 4 takes float32, 5 that of the model's files.
    """
    loads = _call_of("from_pretrained", model, scope)
    dtype = model._replace(value=UNKNOWN)
    if loads is not None:
        given = _arguments(names, loads, scope)[0]
        dtype = given.get("torch_dtype") or given.get("dtype") or dtype
    if isinstance(dtype.node, ast.Attribute) and name_of(dtype.node).startswith("torch."):
        dtype = dtype._replace(value=last_name(dtype.node))
    return dict.fromkeys(DTYPES, dtype)


def _first_without(
    word: str, names: Names, trainers: list[tuple[ast.Call, Scope]], other: str = ""
) -> int | None:
    """Return the line of the first trainer's call if all of them lack an argument (or None), and
    its replacement.

    Calls with ``**words`` or with more than the model by position may have it.
    """
    if not trainers:
        return None
    for trainer, scope in trainers:
        given, unknown = _arguments(names, trainer, scope)
        is_given = any(name in given and given[name].value is not None for name in (word, other))
        is_starred = any(isinstance(one, ast.Starred) for one in trainer.args)
        if is_given or unknown or "*1" in given or is_starred:
            return None
    return trainers[0][0].lineno


def _read_lora(call: ast.Call, given: Mapping[str, Slot]) -> dict[str, Slot]:
    slots = {"use_peft": Slot(True, call, call.lineno)}
    for key, slot in given.items():
        if key in LORA and slot.value is not UNKNOWN:
            slots[LORA[key]] = slot
    return slots


def _processes(source: Source, names: Names) -> int | None:
    """Return the processes of a notebook: those of its launcher, or 1, its kernel. None for a
    file.
    """
    for call, scope in names.calls:
        if last_name(call.func) == "notebook_launcher":
            match _arguments(names, call, scope)[0].get("num_processes"):
                case Slot(int(count)) if count > 0:
                    return count
            return None
    if source.cells:
        return 1
    return None


def _pin(source: Source) -> tuple[str, int] | None:
    """Return the last TRL release that a notebook installs in a cell, and its line."""
    pin = None
    for number, line in enumerate(source.text.split("\n"), 1):
        match = re.search(PINS, line)
        if match and source.cells and not line.lstrip().startswith("#"):
            pin = match[1], number
    return pin
