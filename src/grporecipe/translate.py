"""Translate a recipe into another framework's keys.

The recipe is read, written and read back. `differences` compares the two settings: the plan's numbers, and values that mean the
same in every framework. A translation comes with its launch command and a list of what is lost.
"""

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, isclose
from pathlib import Path
from typing import Any

import yaml

from grporecipe.errors import UserError
from grporecipe.fields.reading import release_defaults, values_of
from grporecipe.fields.recipes import read_recipe, write_recipe
from grporecipe.files import parse_yaml, write_text
from grporecipe.frameworks.verl.fully_async import translate_asynchrony
from grporecipe.model import planning
from grporecipe.model.framework import FRAMEWORKS, RELEASE, Framework, TranslatedRecipe, known_keys
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import ROWS, TRL, FrameworkTraits, Setting, has_effect
from grporecipe.model.values import convert, flatten, read_mapping
from grporecipe.project.versions import describe_version
from grporecipe.reading.launcher_files import WORDS
from grporecipe.reading.load import Options, load_recipe, load_recipes, parse_recipe
from grporecipe.redaction import SHOWN, masked
from grporecipe.rules.check import check, errors
from grporecipe.rules.helpers import cut
from grporecipe.terminal import printable, say, write_data

PLAN_NUMBERS = {
    "completions per rollout": planning.completions_per_rollout,
    "prompts per rollout": planning.prompts_per_rollout,
    "completions per optimizer step": planning.completions_per_step,
    "optimizer steps per rollout": planning.steps_per_rollout,
    "optimizer steps": planning.total_steps,
}
# TRL's losses that say what they average over.
AVERAGING = ("bnpo", "dapo", "dr_grpo", "grpo", "luspo")


def differences(before: Setting, after: Setting) -> Iterator[str]:
    """Return the numbers that are known on both sides and differ."""
    for name, number in PLAN_NUMBERS.items():
        yield from _differs(name, number(before), number(after))
    for name, row in ROWS.items():
        if row.kept and has_effect(before, name) and has_effect(after, name):
            yield from _differs(name, getattr(before, name), getattr(after, name))
    yield from _differs("KL coefficient in the loss", before.beta, after.beta)


def _differs(name: str, before: Any, after: Any) -> Iterator[str]:
    if before is not None and after is not None and before != after:
        yield f"{name}: {float(before):g} becomes {float(after):g}"


def find_lost(before: Setting, after: Setting, report: str) -> Iterator[str]:
    """Yield the fields that a translation changes and that ``report`` does not name.

    A field counts if the recipe sets it, or if it has an effect in both. An experiment sets all fields.
    """
    usual = Setting(), Setting().replace(release_defaults(FRAMEWORKS["trl"], TRL))
    for name in (name for name, each in ROWS.items() if each.compared):
        here, there = _meaning(before, name), _meaning(after, name)
        is_same = here == there or getattr(before, name) == getattr(after, name) or _is_close(here, there)
        if here is None or is_same:
            continue
        is_given = name in before.given if before.given else here not in [_meaning(s, name) for s in usual]
        counts = has_effect(before, name) and (has_effect(after, name) or name == "sharding")
        if not is_given and (there is None or not counts):
            continue
        words = [re.escape(name), re.escape(before.key(name)), *filter(None, [ROWS[name].said])]
        if not re.search(rf"(?<![\w.])(?:{'|'.join(words)})(?!\w)", report):
            key = "" if before.key(name) == name else f" ({before.key(name)})"
            if name == "kl_estimator" and before.framework.follows_trl:
                key = f" (use_bias_correction_kl={_shown(before.use_bias_correction_kl)})"
            yield f"{name}={_shown(here)}{key}: " + ("is not written" if there is None else f"becomes {_shown(there)}")


def _meaning(s: Setting, name: str) -> Any:
    """Return a field in a form that is the same in all frameworks. None if it is unknown or the plan's numbers hold it."""
    value, total = getattr(s, name), planning.total_steps(s)
    if name == "per_device_eval_batch_size" and s.framework.unit == "prompts":
        return None
    if name == "weights_dtype" and FRAMEWORKS[s.framework.name].memory is None:
        return None
    if name == "sharding" and s.framework.syntax == "dotted":
        return "fsdp"
    if name == "epochs":
        return None if total is not None or (s.max_steps is not None and not s.ends_with_epochs) else value
    if name == "loss_average" and s.loss_type in AVERAGING:
        return None
    if name == "kl_placement":
        places = [place for place, number in (("loss", s.beta), ("reward", s.kl_reward_coefficient)) if number]
        return "both" if len(places) > 1 else "".join(places) or "none"
    if name == "kl_estimator":
        has_key = "use_bias_correction_kl" in FRAMEWORKS[s.framework.name].takes(s.version)
        is_unset = s.framework.follows_trl and has_key and s.use_bias_correction_kl is None
        return None if is_unset else s.kl_estimator or ("k3+" if s.use_bias_correction_kl else "k3")
    if name in ("save_steps", "eval_steps", "warmup_steps") and value and 0 < value < 1 and total:
        return ceil(value * total)
    others = {"epsilon_high": s.epsilon, "num_generations_eval": s.num_generations}
    return others.get(name, ROWS[name].unset) if value is None else value


def _is_close(here: Any, there: Any) -> bool:
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (here, there))
    return numbers and isclose(here, there, rel_tol=1e-6)


# Fields that only count the entries of a key.
COUNTED = frozenset({"rewards", "reward_weights", "train_prompts", "eval_prompts"})
# Keys of transformers' TrainingArguments that mean the same in every framework built on it.
TRANSFORMERS = frozenset(
    ["bf16", "fp16", "tf32", "logging_steps", "output_dir", "report_to", "run_name",
     "save_total_limit", "lr_scheduler_kwargs", "deepspeed", "torch_dtype"]
)  # fmt: skip
OF_VERL = frozenset({"easyr1", "verl"})  # EasyR1 is a fork of verl: these keys mean the same in both
SHARED = ("trainer.project_name", "trainer.experiment_name", "trainer.val_before_train")
SPLIT_IN_NAME = "easyr1"  # verl/utils/dataset.py of EasyR1: "name@split"
SAMPLED = "ms-swift"  # docs/source_en/Instruction/Command-line-parameters.md of ms-swift: "[hf::]name[:subset][#rows]"
SPLITS = {"dataset_name": "dataset_train_split", "eval_dataset_name": "dataset_test_split"}  # by the data, TRL's keys
# The rewards that trl 1.16 scripts/grpo.py knows by name; it imports a dotted one.
REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")
NO_KEYS = frozenset({"config", "num_processes"})  # options of a launcher
LAUNCH = "launch.sh"


def list_unknown_rewards(kept: Mapping[str, Any]) -> Iterator[str]:
    """Name rewards of other scripts, which TRL's own stops at."""
    names = kept.get("reward_funcs")
    given = names if isinstance(names, list) else []
    own = [str(name) for name in given if "." not in str(name) and name not in REWARDS]
    if own:
        yield (
            f"reward_funcs={', '.join(own)}: names of another script, and trl.scripts.grpo stops at them. It knows "
            f"{', '.join(REWARDS)}, and imports package.module.function"
        )


@dataclass(frozen=True)
class Translation:
    """A translated recipe: its files (the first is the recipe), its launch command, and what is lost.

    ``changed`` lists numbers of the plan that differ, which is a failure of the translation.
    """

    files: Mapping[str, str]
    command: str
    losses: tuple[str, ...]
    changed: tuple[str, ...] = ()


Translator = Callable[[Setting, str, Recipe], Translation]


def translate_file(
    path: Path, target: str, options: Options, folder: Path | None, translator: Translator | None = None
) -> int:
    """Translate one recipe. Return exit code 1 if its plan could not be kept or the recipe is broken.

    ``translator`` writes it for a target that is no framework.
    """
    try:
        recipe, hidden = _without_secrets(load_recipe(path, options))
        others = len(load_recipes(path, options)) - 1
        setting = read_recipe(recipe).setting
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    broken = errors(check(setting))
    translation = (translator or translate)(setting, target, recipe)
    if others:
        where = f", the one on line {min(recipe.lines.values())}," if recipe.lines else ""
        lost = f"{others} more in this file: one recipe{where} is translated"
        translation = replace(translation, losses=(lost, *translation.losses))
    if hidden:
        lost = f"{', '.join(hidden)}: {SHOWN} stands for a secret. Set it in the environment of the training instead, or by hand"
        translation = replace(translation, losses=(lost, *translation.losses))
    if folder is None:
        write_data(render_translation(translation, f"{path} ({describe_version(recipe)})", target))
    else:
        say(f"{path}: read as {describe_version(recipe)}", sys.stderr)
        _write(folder, translation)
        sys.stderr.write(printable(_report(translation)))
    for problem in broken:
        say(f"{path} breaks {problem.code} as it is: {problem.broken.what}: {problem.broken.why}.", sys.stderr)
    return int(bool(broken or translation.changed))


def _without_secrets(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Return a recipe with a placeholder for each secret, and the keys that hold one."""
    hidden = [key for key, value in recipe.config.items() if masked(key, value) != value]
    return replace(recipe, config={**recipe.config, **{key: masked(key, recipe.config[key]) for key in hidden}}), hidden


def translate(
    setting: Setting, target: str, recipe: Recipe | None = None, native: Mapping[str, Any] | None = None
) -> Translation:
    """Translate a setting into a framework's keys.

    Keys of the recipe that the setting does not hold are copied if the target takes them, and listed otherwise.
    ``native`` are such keys without a recipe, under TRL's names.
    """
    left = dict(native or {}) if recipe is None else find_left_out(recipe, setting)
    setting = _with_minimum_rate(setting, left)
    setting = with_paths(setting, recipe)
    setting = _with_split(setting, target, left)
    setting = _with_intervals(setting)
    if recipe is not None:
        setting = _with_types(setting, recipe)
    if left.get("deepspeed") == setting.sharding:  # ms-swift's name of the stage alone
        del left["deepspeed"]
    shares_names = _share_names(setting.framework, FRAMEWORKS[target].traits)
    is_copied = "deepspeed" in left and shares_names and not _is_unreadable("deepspeed", left["deepspeed"], target)
    written = write_recipe(setting.replace({"sharding": "none"}) if is_copied else setting, target)
    if recipe is not None:
        written = translate_asynchrony(written, setting, recipe, target)
    after = read_back(written, target, setting)
    changed = (*_assumed(setting, recipe), *differences(setting, after), *_newly_broken(setting, after))
    is_same = setting.framework.name == target and written.file_name.endswith(".yaml")
    unresolved = recipe.unresolved if recipe is not None else {}
    kept = {} if is_same else _kept_as_they_are(left, setting, target, written.recipe)
    kept = {key: value for key, value in kept.items() if key not in unresolved}
    shared = {key: left[key] for key in SHARED if key in left and {setting.framework.name, target} == OF_VERL}
    written = replace(written, recipe=_with_rest(written.recipe, shared, target)) if shared else written
    takes = FRAMEWORKS[target].takes(FRAMEWORKS[target].version)
    # A recipe keeps the keys of its own program; of ours only those that the target takes are written.
    own = {key: value for key, value in left.items() if recipe is None or key not in unresolved}
    own = own if recipe is not None else {key: value for key, value in left.items() if key in takes}
    text = _with_rest(written.recipe, own, target) if is_same else written.recipe
    if kept:
        text += f"# Copied from the recipe.\n{yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)}"
    stated = (
        flatten(parse_yaml(text))
        if is_same
        else {**parse_yaml(written.recipe), **kept}
        if shares_names
        else {**kept, **shared}
    )
    stated |= {"torch_dtype": stated["dtype"]} if "dtype" in stated else {}  # one key: its name before transformers 5
    rewards = () if target != "trl" else list_unknown_rewards(parse_yaml(text))
    losses = (*list_unknown(setting, recipe), *written.losses, *list_left_out(left, stated), *rewards)
    is_trls = FRAMEWORKS[target].traits.follows_trl
    if is_trls and recipe is not None and not is_same and "reward_funcs" not in kept:
        losses += ("reward functions and the columns of the data: set reward_funcs, because none are written",)
    after = read_back(replace(written, recipe=text), target, setting) if text != written.recipe else after
    if is_copied:
        after = after.replace({"sharding": setting.sharding})
    losses += tuple(find_lost(setting, after, " ".join(losses)))
    return Translation({written.file_name: text}, _command(written), losses, changed)


def _with_rest(text: str, left: Mapping[str, Any], target: str) -> str:
    """Return a recipe with the other keys of a recipe of the same framework, as they are."""
    content = parse_yaml(text)
    for key, value in left.items():
        place, *names = content, *(key.split(".") if FRAMEWORKS[target].is_dotted else [key])
        for name in names[:-1]:
            place = place.setdefault(name, {})
        if value is not None and not _is_unreadable(key, value, target) and isinstance(place, dict):
            place.setdefault(names[-1], value)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def find_left_out(recipe: Recipe, setting: Setting) -> dict[str, Any]:
    """Return the keys of a recipe that its setting does not hold and that are not at their default."""
    framework, takes = FRAMEWORKS[recipe.framework], known_keys(recipe)
    stock = framework.takes(recipe.version)
    held: dict[str, list[Any]] = {}
    for name, key in setting.keys.items():
        if name not in COUNTED:
            held.setdefault(key, []).append(getattr(setting, name))
    left_out = []
    for written, value in {**recipe.config, **recipe.unresolved}.items():
        key = str(written).lstrip("+~")
        is_held = key in setting.keys.values() if written in recipe.unresolved else value in held.get(key, ())
        is_held = is_held or _is_read(framework, key, value, setting)
        is_default = key in takes and takes[key].default == convert(value, takes[key].type).value
        # Other scripts have other rewards, and a fork's own key means something even at the fork's default.
        is_default = is_default and key != "reward_funcs" and (recipe.vendored is None or key in stock)
        if not (is_held or is_default or written in NO_KEYS):
            left_out.append(written)
    left = [key for key in left_out if key not in recipe.config] + _undecided(recipe, left_out, setting)
    left += [key for key in _read_as_others(recipe, framework) if key not in left]
    values = {**recipe.config, **recipe.unresolved}
    return {framework.renamed.get(key := str(written).lstrip("+~"), key): values[written] for written in left}


def _is_read(framework: Framework, key: str, value: Any, setting: Setting) -> bool:
    """Return whether a setting holds what a key's value is read as, such as a list of names as a tuple."""
    key = framework.renamed.get(key, key)
    rows = (row for row in framework.fields if row.key == key and row.type == RELEASE and row.read)
    return any(row.read is not None and row.read(value) == getattr(setting, row.name) for row in rows)


def _read_as_others(recipe: Recipe, framework: Framework) -> Iterator[str]:
    """Yield the keys whose value a setting cannot tell from another one: ms-swift's tuners other than LoRA."""
    stated = values_of(recipe).stated
    for row in framework.fields:
        if row.type == RELEASE and row.read and row.write and row.key in stated:
            value, read = stated[row.key], row.read(stated[row.key])
            if read is not None and row.write(read) != value:
                yield from (key for key in recipe.config if framework.renamed.get(key, key) == row.key)


def _undecided(recipe: Recipe, keys: list[str], setting: Setting) -> list[str]:
    """Return the keys whose removal leaves the setting unchanged. Searches by halves, because a recipe may have hundreds."""
    keys = [key for key in keys if key in recipe.config]
    if not keys or not _decide(recipe, keys, setting):
        return keys
    half = len(keys) // 2
    return [*_undecided(recipe, keys[:half], setting), *_undecided(recipe, keys[half:], setting)] if half else []


def _decide(recipe: Recipe, keys: list[str], setting: Setting) -> bool:
    """Return whether removing some keys from a recipe changes its setting."""
    rest = {name: value for name, value in recipe.config.items() if name not in keys}
    try:
        other = read_recipe(replace(recipe, config=rest)).setting
    except UserError:  # the recipe cannot be read without them
        return True
    return other.replace({name: getattr(setting, name) for name in ("given", "runtime", *COUNTED)}) != setting


def _with_intervals(setting: Setting) -> Setting:
    """Return a setting of ours with intervals instead of the numbers of evaluations and checkpoints."""
    total, changes = planning.total_steps(setting), dict[str, Any]()
    if setting.evaluations and total:
        changes = {"eval_strategy": "steps", "eval_steps": max(total // setting.evaluations, 1), "evaluations": 0}
    elif not setting.evaluations and setting.eval_at_start:
        changes = {"evaluates": False}  # eval_on_start says it
    if setting.checkpoints and total:
        changes |= {"save_steps": planning.save_every(setting.replace({"save_steps": None})), "checkpoints": 0}
    return setting.replace(changes)


def _with_split(setting: Setting, target: str, left: dict[str, Any]) -> Setting:
    """Return a setting with the split of its data where the target has it: in EasyR1's names (``name@split``) or in a key."""
    source, takes_split = setting.framework.name, FRAMEWORKS[target].traits.follows_trl
    for name, key in SPLITS.items() if source != target else ():
        data, native = getattr(setting, name) or "", setting.keys.get(name, name)
        plain, _, split = data.partition("@") if source == SPLIT_IN_NAME else (data, "", "")
        if source == SAMPLED:
            plain = re.sub(r"^(hf|ms)::|#\d+$|(?<=[^:]):[^:/]+(?=#|$)", "", data)
        if data and target == SPLIT_IN_NAME and left.get(key):
            setting = setting.replace({name: f"{data}@{left.pop(key)}"})
        elif plain != data:
            setting = setting.replace({name: plain})
            if not (split and takes_split):
                left[native] = data
            elif split != FRAMEWORKS["trl"].takes(TRL)[key].default:
                left[key] = split
    return setting


def _with_types(setting: Setting, recipe: Recipe) -> Setting:
    """Return a setting with the numeric types that a recipe trains in, as far as its framework's reader knows them."""
    read = FRAMEWORKS[recipe.framework].memory
    dtypes = (read(values_of(recipe), setting) if read else None) or {}
    types: dict[str, Any] = {name: dtypes[name] for name in ("weights_dtype", "autocast_dtype") if name in dtypes}
    stated = recipe.launch_fields.get("autocast_dtype")
    if stated and types.get("weights_dtype") == "float32" and types["autocast_dtype"] is None:
        types["autocast_dtype"] = stated
    return setting.replace(types)


PATHS = ("model_name_or_path", "dataset_name", "eval_dataset_name")


def with_paths(setting: Setting, recipe: Recipe | None) -> Setting:
    """Return a setting with the paths of a script as it writes them, such as ``$HOME/data/train.parquet``."""
    unresolved = {} if recipe is None else {key.lstrip("+"): text for key, text in recipe.unresolved.items()}
    texts = {name: unresolved[key] for name in PATHS if (key := setting.keys.get(name, "")) in unresolved}
    return setting.replace({name: text for name, text in texts.items() if re.fullmatch(r"[\w./${}-]+", text)})


def _with_minimum_rate(setting: Setting, left: dict[str, Any]) -> Setting:
    """Return a setting with the lowest learning rate of a cosine, which TRL's recipes hold in a mapping taken from ``left``."""
    options = read_mapping(left.get("lr_scheduler_kwargs"))
    ratio, is_cosine = options.get("min_lr_rate"), setting.lr_scheduler_type == "cosine_with_min_lr"
    if not is_cosine or options.keys() != {"min_lr_rate"} or not isinstance(ratio, float):
        return setting
    del left["lr_scheduler_kwargs"]
    return setting.replace({"lr_scheduler_type": "cosine", "minimum_learning_rate_ratio": ratio})


def _share_names(one: FrameworkTraits, other: FrameworkTraits) -> bool:
    """Return whether both frameworks follow or extend TRL, so that keys of transformers have the same names."""
    return "extends TRL" in one.labels & other.labels


def _kept_as_they_are(left: dict[str, Any], setting: Setting, target: str, text: str) -> dict[str, Any]:
    """Return the keys that the target takes under the same name and that are not yet written.

    Between frameworks that follow TRL, these are all keys. For one that extends TRL, they are the keys of transformers. For
    others, they are the keys of a split.
    """
    framework = FRAMEWORKS[target]
    takes = framework.takes(framework.version)
    if "dtype" in left and "dtype" not in takes:  # before 0.24
        left["torch_dtype"] = left.pop("dtype")
    names = set(left)
    if not _share_names(setting.framework, framework.traits):
        names &= set(SPLITS.values()) if framework.traits.follows_trl else set()
    elif not (setting.framework.follows_trl and framework.traits.follows_trl):
        names &= TRANSFORMERS
    names = names & takes.keys() and names & takes.keys() - parse_yaml(text).keys()
    kept = {key: value for key, value in left.items() if key in names}
    return {key: value for key, value in kept.items() if not _is_unreadable(key, value, framework.name)}


def _shown(value: Any) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _is_unreadable(key: str, value: Any, target: str) -> bool:
    """Return whether only a running shell, or only ms-swift, knows a value."""
    return isinstance(value, str) and ("$" in value or (key == "deepspeed" and value in WORDS and target != "ms-swift"))


def list_left_out(left: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[str]:
    """Return a line that names the keys that are not translated, which ``kept`` does not hold with their values."""
    rest = [f"{key}={_shown(value)}" for key, value in left.items() if key not in kept or kept[key] != value]
    if rest:
        yield f"not translated, so set it yourself if you need it: {', '.join(rest)}"


def _assumed(setting: Setting, recipe: Recipe | None) -> Iterator[str]:
    """Name the keys whose meaning the trainer's own source changes, so that what is written may not be what trains."""
    for key, place in recipe.assumed.items() if recipe is not None else ():
        name = next((name for name, native in setting.keys.items() if native == key), key)
        yield f"{name} ({key}): {place}, so {getattr(setting, name, None)} is a guess: set what trains"


def list_unknown(setting: Setting, recipe: Recipe | None) -> Iterator[str]:
    """Name the values that only a running shell knows. Paths are written as they are, defaults of the framework for others."""
    paths = {setting.keys.get(name): getattr(setting, name) for name in PATHS}
    for key, value in recipe.unresolved.items() if recipe is not None else ():
        if paths.get(key.lstrip("+"), "") == value:
            yield f"{key}={value}: written as it is, and nothing replaces the variable in a file: write the path out"
        elif key.lstrip("+") in (*setting.keys.values(), "dtype", "torch_dtype"):
            yield f"{key}={value}: only the running script knows it, so {setting.trainer}'s default is taken: set it"


def _newly_broken(before: Setting, after: Setting) -> Iterator[str]:
    """Yield the errors of a translation whose recipe is valid."""
    if not errors(check(before)):
        yield from (f"{problem.code}: {problem.broken.what}: {problem.broken.why}" for problem in errors(check(after)))


def read_back(written: TranslatedRecipe, target: str, setting: Setting) -> Setting:
    """Read a written recipe with the framework's own reader, for the same processes and prompts."""
    options = Options(target, FRAMEWORKS[target].version, setting.processes, setting.train_prompts)
    recipe = parse_recipe(Path(written.file_name), written.recipe, options)
    restored = _with_types(_with_minimum_rate(read_recipe(recipe).setting, dict(recipe.config)), recipe)
    stage = re.search(r"--zero_stage (\d)|/zero(\d)\.yaml", " ".join(written.command))
    if stage:
        restored = restored.replace({"sharding": f"zero{stage[1] or stage[2]}"})
    return replace(restored, processes=setting.processes) if restored.processes is None else restored


def render_translation(translation: Translation, source: str, target: str) -> str:
    """Return a translation as one text that is a valid recipe: everything else is in comments."""
    (first, text), *others = translation.files.items()
    shebang, _, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
    source = " ".join(source.split())  # a file name may contain line breaks, and this text is a script
    lines = [shebang] if shebang else []
    lines += [f"# {source} for {target}, as grposweep translate wrote it. Save it as {first}, and launch it:"]
    lines += [f"#   {translation.command}", *_comments("Lost or changed:", translation.losses)]
    lines += _comments("Not kept:", translation.changed)
    parts = [f"# --- {name} ---\n{content}" for name, content in others]
    return "\n".join([*lines, rest, *parts])


def _comments(title: str, items: tuple[str, ...]) -> list[str]:
    return [f"# {title}", *(f"#   - {item}" for item in items)] if items else []


def _write(folder: Path, translation: Translation) -> None:
    """Write every file, and the command as a script, to the folder."""
    try:
        for name, text in translation.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, text)
        write_text(folder / LAUNCH, f'#!/bin/sh\ncd "$(dirname "$0")" || exit\n{translation.command}\n')
    except OSError as error:
        raise UserError(f"-o {folder}: it cannot be written ({error.strerror}). Name a folder that can.") from error


def _report(translation: Translation) -> str:
    lines = [f"wrote {', '.join([*translation.files, LAUNCH])}", *(f"lost: {item}" for item in translation.losses)]
    return "\n".join([*lines, *(f"not kept: {item}" for item in translation.changed)]) + "\n"


def _command(written: TranslatedRecipe) -> str:
    """Return the command with its variables before it."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in written.environment.items()]
    return " ".join([*variables, shlex.join(written.command)])
