"""Find every ``GRPOConfig(...)`` of a Python file or notebook: keys and lines, also from its trainer, LoRA and model.

Sources: trl trainer/grpo_config.py, grpo_trainer.py and model_config.py (the names of LoRA's keys in a recipe); peft
LoraConfig; unsloth FastLanguageModel (``from_pretrained``, ``get_peft_model``).
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grporecipe.errors import NotARecipe, UserError
from grporecipe.frameworks import FRAMEWORKS, takes, version_of
from grporecipe.frameworks.parsing.load import Options, build_recipe
from grporecipe.frameworks.parsing.python.launched import LIBRARY_TRAINERS, fields_of, read_trainers
from grporecipe.frameworks.parsing.python.modules import (
    External,
    Module,
    OwnClass,
    SourceTree,
    name_of,
    resolve_expression,
)
from grporecipe.frameworks.parsing.python.operators import UNKNOWN
from grporecipe.frameworks.parsing.python.text import NOTEBOOK, Cell, Source, read_source
from grporecipe.frameworks.parsing.python.values import Entries, Slot, Walker, plain, stated, text_of
from grporecipe.frameworks.parsing.version_source import Judged
from grporecipe.recipe import KeySpec, LaunchedCode, Recipe, VersionSource

CONFIG = "GRPOConfig"
LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
}
WATCHED = frozenset({"LoraConfig", "get_peft_model", "from_pretrained", "notebook_launcher"})
PINS = re.compile(r"\btrl\s*(?:\[[\w,]*\])?\s*==\s*(\d+(?:\.\d+){1,2})")
MOST_BASES = 8
# Keys that unsloth/models/rl.py adds to GRPOConfig. It also makes the micro-batch a multiple of the group.
UNSLOTH_KEYS = dict.fromkeys(
    (
        "vllm_sampling_params",
        "unsloth_num_chunks",
        "unsloth_logit_chunk_multiplier",
        "unsloth_grpo_mini_batch",
        "max_seq_length",
    ),
    KeySpec("any", None),
)


@dataclass(frozen=True)
class PythonConfig:
    """One configuration of a trainer in a Python file. ``own`` are the keys of the file's own class, with defaults.

    ``call`` creates it with the arguments ``slots``. ``pinned`` is the TRL release that a notebook installs, with its line.
    Line numbers of a notebook continue from cell to cell (``cells``).
    """

    config: Mapping[str, Any]
    lines: Mapping[str, int]
    unresolved: Mapping[str, str]
    call: Entries
    line: int
    framework: str
    processes: int | None = None
    pinned: tuple[str, int] | None = None
    cells: tuple[Cell, ...] = ()
    code: LaunchedCode | None = None
    elsewhere: frozenset[str] = frozenset()  # keys that are not in the call but come from its trainer, model and LoRA


@dataclass
class _File:
    """A file with its imports and classes."""

    path: Path
    source: Source
    module: Module = field(init=False)
    repository: SourceTree = field(init=False)
    classes: dict[str, dict[str, KeySpec] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.module = Module(self.path.absolute(), self.source.tree)
        self.repository = SourceTree.around(self.path)

    def is_wanted(self, call: ast.Call) -> bool:
        """Return whether a call is relevant to the training."""
        name = name_of(call.func).rpartition(".")[2] or getattr(call.func, "attr", "")
        return name in WATCHED or name.endswith("Trainer") or self.config_class(call) is not None

    def config_class(self, call: ast.Call) -> dict[str, KeySpec] | None:
        """Return the own fields of the class that is called, if it is TRL's GRPOConfig or derived from it."""
        name = name_of(call.func)
        if not name:
            return None
        if name not in self.classes:
            known = list(resolve_expression(self.repository, self.module, call.func))
            if not known and name == CONFIG:
                self.classes[name] = {}  # part of a file, without its imports
            else:
                self.classes[name] = next(
                    (fields_of(self.repository, one) for one in known if self._is_config(one)), None
                )
        return self.classes[name]

    def _is_config(self, known: OwnClass | External, steps: int = 0) -> bool:
        if isinstance(known, External):
            return known.root in LIBRARY_TRAINERS and known.name.rpartition(".")[2] == CONFIG
        bases = (one for base in known.node.bases for one in resolve_expression(self.repository, known.module, base))
        return steps < MOST_BASES and any(self._is_config(one, steps + 1) for one in bases if one != known)


def find_configs(path: Path, text: str) -> list[PythonConfig]:
    """Return every configuration of TRL's GRPO trainer in a file.

    Raises NotARecipe if there is none, and UserError for a file that cannot be read.
    """
    if CONFIG not in text:
        raise NotARecipe(
            f"no {CONFIG} here, by which TRL's GRPO trainer is configured. Lint the recipe or the launch script."
        )
    file = _File(path, read_source(text, path.suffix == NOTEBOOK))
    calls = Walker(file.is_wanted).run(file.source.tree)
    made = [call for call in calls if call.call is not None and _is_made(file, call)]
    if not made:
        reads = any(word in text for word in ("TrlParser", "HfArgumentParser"))
        how = " Its parser reads it: lint the recipe or the script that launches it." if reads else ""
        raise NotARecipe(f"no {CONFIG}(...) of TRL here is given its values.{how}")
    return [_configure(file, call, calls, len(made) == 1) for call in made]


def recipes_of(path: Path, text: str, options: Options) -> list[Recipe]:
    """Return every recipe in a Python file or notebook.

    Raises NotARecipe if there is none, and UserError for a file that cannot be read.
    """
    return [_recipe(path, made, options) for made in find_configs(path, text)]


def _recipe(path: Path, made: PythonConfig, options: Options) -> Recipe:
    """Return the recipe of a configuration."""
    own = made.framework if made.framework in FRAMEWORKS else "trl"
    framework = own if options.framework == "auto" else options.framework
    if not FRAMEWORKS[framework].traits.follows_trl:
        raise UserError(f"it has TRL's GRPOConfig, which is not of {framework}. Leave --framework out.")
    code = made.code
    if code is not None and made.framework == "unsloth":
        patched = framework != "unsloth"  # judged as a TRL recipe, although Unsloth replaces class and configuration
        declares = {**UNSLOTH_KEYS, **code.declares} if patched else code.declares
        code = replace(code, declares=declares, trainer="UnslothGRPOTrainer", own_trainer=patched)
    judged = _installed(made, framework, options) or options.find_version(
        framework, {**made.config, **{key: [] for key in made.unresolved}}, path, code=code
    )
    known = takes(framework, judged.version)
    recipe = build_recipe(
        {key: value for key, value in made.config.items() if key in known or key not in made.elsewhere},
        replace(options, framework=framework, judged=judged),
        processes=made.processes,
        file=str(path),
        lines=made.lines,
        unresolved=made.unresolved,
        code=code,
        cells=made.cells,
    )
    if not made.call.unknown:
        return recipe
    rest = dict.fromkeys(takes(framework, recipe.version).keys() - recipe.config.keys(), made.call.unknown[0])
    return replace(recipe, unresolved={**rest, **recipe.unresolved})  # **words may set any key


def _installed(made: PythonConfig, framework: str, options: Options) -> Judged | None:
    """Return the release that a notebook installs in a cell, unless an option gives one."""
    asked = (options.judged, options.version, options.own_version, options.trl_version)
    if made.pinned is None or any(one is not None for one in asked):
        return None
    release, line = made.pinned
    cell = max(cell.number for cell in made.cells if cell.line <= line)
    return Judged(version_of(framework, release), VersionSource("pinned", f"cell {cell}", f"trl=={release}"))


def _is_made(file: _File, found: Entries) -> bool:
    assert found.call is not None
    is_copy = name_of(found.call.func).rpartition(".")[2] in ("replace", "deepcopy", "copy")
    if is_copy and not found.call.keywords:
        return False
    return (is_copy and found.kind.endswith("Config")) or file.config_class(found.call) is not None


def _configure(file: _File, found: Entries, calls: list[Entries], is_only: bool) -> PythonConfig:
    assert found.call is not None
    slots = {key: slot for key, slot in found.slots.items() if not key.startswith("*")}
    if "*0" in found.slots:
        slots["output_dir"] = found.slots["*0"]
    own = file.config_class(found.call) or {}
    elsewhere = _said_elsewhere(found, calls, is_only)
    config: dict[str, Any] = {
        key: spec.default for key, spec in own.items() if spec.default is not None and key not in slots
    }
    unresolved = {words: words for words in found.unknown}
    for key, slot in {**elsewhere, **slots}.items():
        value = plain(slot.value)
        if value is UNKNOWN:
            unresolved[key] = text_of(slot.node)
            value = unresolved[key]
        config[key] = value
    lines = {key: line for key, slot in {**elsewhere, **slots}.items() if (line := _line(slot)) is not None}
    imports = {found.module.partition(".")[0] for found in file.module.imports.values()}
    trainer, own_trainer = read_trainers(file.repository, file.module)
    return PythonConfig(
        config, lines, unresolved, found, found.call.lineno,
        "unsloth" if "unsloth" in imports else "trl",
        _processes(file, calls), _pin(file.source), file.source.cells,
        LaunchedCode(str(file.path), own, trainer, own_trainer, "stop", no_evaluation=_no_evaluation(found, calls)),
        frozenset(elsewhere.keys() - slots.keys()),
    )  # fmt: skip


def _line(slot: Slot) -> int | None:
    node = slot.keyword or slot.node
    return getattr(node, "lineno", None)


def _said_elsewhere(found: Entries, calls: list[Entries], is_only: bool) -> dict[str, Slot]:
    """Return the keys of a recipe that a configuration's trainer, model and LoRA set."""
    said: dict[str, Slot] = {}
    trainer = next((call for call in calls if call.kind.endswith("Trainer") and _uses(call, found)), None)
    trainers = [call for call in calls if call.kind.rpartition(".")[2].endswith("GRPOTrainer")]
    if trainer is None and is_only and len(trainers) == 1 and trainers[0].slots.get("args", None) is None:
        trainer = trainers[0]
    if trainer is None and not (is_only and not trainers):
        return said
    given = trainer.slots if trainer else {}
    for call in calls:
        if call.kind.endswith("from_pretrained") and call.kind.startswith("Fast"):
            name = call.slots.get("model_name") or call.slots.get("*0")
            said |= {key: slot for key, slot in (("model_name_or_path", name), ("load_in_4bit", call.slots.get("load_in_4bit")))
                     if slot is not None and slot.value is not UNKNOWN}  # fmt: skip
        elif call.kind.endswith("get_peft_model") and "r" in call.slots:
            said |= _lora(call)
    peft = given.get("peft_config")
    if peft is not None and isinstance(peft.value, Entries):
        said |= _lora(peft.value)
    elif peft is not None and peft.value is not None:
        said["use_peft"] = Slot(UNKNOWN, peft.node)
    if "model" in given and isinstance(given["model"].value, str):
        said["model_name_or_path"] = given["model"]
    rewards = given.get("reward_funcs")
    if rewards is not None and isinstance(rewards.node, ast.List):
        said["reward_funcs"] = Slot([text_of(one) for one in rewards.node.elts], rewards.node)
    return said


def _uses(trainer: Entries, config: Entries) -> bool:
    given = trainer.slots.get("args")
    return given is not None and (given.value is config or given.node is config.call)


def _no_evaluation(config: Entries, calls: list[Entries]) -> int | None:
    """Return the line of a configuration's trainer, if none of its trainers can have an ``eval_dataset``."""
    trainers = [call for call in calls if call.kind.endswith("Trainer") and _uses(call, config)]
    lacking = [call.call.lineno for call in trainers if call.call is not None and _lacks_evaluation(call)]
    return lacking[0] if lacking and len(lacking) == len(trainers) else None


def _lacks_evaluation(trainer: Entries) -> bool:
    """Return whether a call has no ``eval_dataset`` (or None), no ``**words``, and only the model as positional argument."""
    given = trainer.slots.get("eval_dataset")
    by_place = {key for key in trainer.slots if key.startswith("*")} - {"*0"}
    starred = trainer.call is not None and any(isinstance(one, ast.Starred) for one in trainer.call.args)
    return (given is None or given.value is None) and not (by_place or starred or trainer.unknown)


def _lora(call: Entries) -> dict[str, Slot]:
    assert call.call is not None
    known = {LORA[key]: slot for key, slot in call.slots.items() if key in LORA and plain(slot.value) is not UNKNOWN}
    return {"use_peft": Slot(True, call.call), **known}


def _processes(file: _File, calls: list[Entries]) -> int | None:
    """Return the processes of a notebook: those of its launcher, or 1, its kernel. None for a file."""
    launched = next((call for call in calls if call.kind.endswith("notebook_launcher")), None)
    count = stated(launched.slots, "num_processes") if launched else None
    if isinstance(count, int) and count > 0:
        return count
    return 1 if file.source.cells and launched is None else None


def _pin(source: Source) -> tuple[str, int] | None:
    """Return the last TRL release that a notebook installs in a cell, and its line."""
    pins = [
        (match[1], number)
        for number, line in enumerate(source.text.split("\n"), 1)
        if source.cells and not line.lstrip().startswith("#") and (match := PINS.search(line))
    ]
    return pins[-1] if pins else None


# A script with one of these may read values from outside.
READS = re.compile(
    r"Parser|argparse|argv|environ|getenv|\b(?:click|typer|fire|tyro|hydra|yaml|json|tomllib|omegaconf)\b",
    re.IGNORECASE,
)


def hard_coded(script: Path) -> int | None:
    """Return the line of a script's GRPOConfig(...) if the script sets every value itself; None otherwise."""
    try:
        text = script.read_text(encoding="utf-8")
        if CONFIG not in text or READS.search(text):
            return None
        made = find_configs(script, text)
    except (OSError, ValueError, UserError):
        return None
    return made[0].line if not any(one.unresolved for one in made) else None
