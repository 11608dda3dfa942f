"""``grposweep best`` shows the best trial, or writes it for another program."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from grporecipe.errors import UserError
from grporecipe.files import Json, parse_json, without, write_text
from grporecipe.redaction import redact
from grporecipe.terminal import comment, short, write_data
from grposweep.report._advice import next_sentence, tie_sentences
from grposweep.report._completions import winner_warning
from grposweep.report._leaderboard import format_objective
from grposweep.report._ranking import RankedPoint
from grposweep.report.run_output import model_line, replication_note
from grposweep.report.tables import SCREEN_COLUMNS, build_console, print_lines
from grposweep.report.trial_view import TrialView
from grposweep.report.view import SweepView, plain_text
from grposweep.storage import paths
from grposweep.storage.records import as_mapping

if TYPE_CHECKING:
    from grporecipe.model.setting import Setting
    from grposweep.schema import Task

# keys of the task that the comment of a recipe names even at their default
ALWAYS_NAMED = ("kind", "rewards")


@contextmanager
def writable(what: str, instead: str = "Name a file that can.") -> Iterator[None]:
    """Raise UserError if what this block writes cannot be written: no permission, a full disk, a
    folder in its place.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} cannot be written ({error.strerror}). {instead}") from error


# Sections about the sweep, not the trial.
OF_SWEEP = ("name", "force", "verbose", "outputs", "search", "tracker", "rules")


def show_best(view: SweepView, file: Path | None, form: str | None, force: bool = False) -> None:
    """Print the best trial, and write it to ``file`` in a ``form`` if either is given.

    Raises UserError if no trial has finished, if the form does not match the file, or if the file
    holds something else and ``force`` is not set.
    """
    point = view.best_point
    if point is None:
        status = shlex.join(["grposweep", "status", view.name])
        raise UserError(
            f"{view.name} has no finished trial{view.yet}. See the state of its trials with: "
            f"{status}"
        )
    best = point.first
    if file is None and form is not None:
        write_data(write_winner(view, best, form, Path("best.yaml")))
        return
    console = build_console(SCREEN_COLUMNS)
    console.print(_screen(view, point), soft_wrap=True)
    print_lines(console, best.at_best, *winner_warning(best), style="yellow")
    if file is not None:
        form = form or default_form(best, file)
        text = write_winner(view, best, form, file)
        with writable(f"--export {file}: it"):
            if not force and file.exists() and file.read_bytes() != text.encode():
                raise UserError(
                    f"--export {file}: it exists, and holds something else. Name another file, "
                    "or add --force."
                )
            write_text(file, text)
        print_lines(console, f"wrote {file} (--as {form}); its first lines say how to use it")


def default_form(best: TrialView, file: Path) -> str:
    """Return the form for a file name: ``.sh`` holds the command, ``.yaml`` Hydra's configuration
    or a program's recipe.

    Raises UserError for other names.
    """
    if file.suffix == ".sh":
        return "command"
    if file.suffix in (".yaml", ".yml"):
        return "recipe" if (best.path / paths.RECIPE).is_file() else "hydra"
    raise UserError(f"--export {file}: name a .yaml or .sh file, or say with --as what to write.")


def write_winner(view: SweepView, best: TrialView, form: str, file: Path) -> str:
    """Return the best trial's text in a form, under a line that names the trial."""
    head = f"trial {best.number} of {view.name}, {view.metric} {view.places[best.number][1].brief}"
    if form == "command":
        return f"#!/bin/sh\n{comment(head)}{best.command}\n"
    if form == "hydra":
        return _hydra(best, head, file)
    if best.trained:
        return _trained_with(view, best, head, file)
    return _own_recipe(best, head) if form == "recipe" else _recipe(view, best, head)


def _screen(view: SweepView, point: RankedPoint) -> Text:
    best = point.first
    screen = Text.assemble(
        (f"trial {best.number}", "bold"), f" of {view.name}: {view.metric} {point.text}\n"
    )
    if point.is_fresh:
        screen.append(f"in the search: {format_objective(best)}\n")
    confirmed = replication_note(view)
    lines = [short(best.point), *confirmed]
    # fresh seeds do not rank by the value above
    if len(view.leaderboard) > 1 and not confirmed:
        second = view.leaderboard[1].own
        lines.append(
            f"best of {len(view.leaderboard)} points; second: trial {second.first.number}, "
            f"{second.text}"
        )
    lines += filter(None, (*tie_sentences(view), next_sentence(view), model_line(view, best)))
    lines.append(f"folder: {best.path}")
    lines.append(f"repeat it: {best.rerun}")
    return screen.append("\n".join(lines))


def _own_recipe(best: TrialView, head: str) -> str:
    """Return the recipe that the trial's program read."""
    path = best.path / paths.RECIPE
    if not path.is_file():
        raise UserError(
            f"trial {best.number} was trained by grposweep itself and has no recipe. Set --as "
            "trl or hydra."
        )
    text = _own_output(best, path.read_text(encoding="utf-8"))
    return comment(f"{head}; {best.path / 'program.sh'} launched it") + text


def _how_to_use(view: SweepView, best: TrialView, file: Path) -> str:
    """Return the user's command with this file as its recipe, or what repeats a trial whose command
    reads none.
    """
    arguments = list(map(str, best.trained.get("command") or []))
    recipes = [word for word in arguments if word.endswith((".yaml", ".yml"))]
    if len(recipes) != 1 or best.trained.get("world_size") != 1:
        return (
            f"values for your own command. To train with them: {best.rerun}, or write a file "
            "that runs with --as hydra"
        )
    there = str(
        as_mapping(best.config.get("trainer")).get("workdir")
        or view.provenance.get("working_directory")
        or "."
    )
    arguments[arguments.index(recipes[0])] = str(file.resolve())
    command = shlex.join(arguments)
    return f"with the other keys of {recipes[0]} added: cd {shlex.quote(there)} && {command}"


def _trained_with(view: SweepView, best: TrialView, head: str, file: Path) -> str:
    """Return what the trainer of the user's command got, as a recipe of TRL. Model, data and
    rewards are the command's own.
    """
    import yaml

    record = best.trained
    given = as_mapping(record.get("given"))
    omitted = [f"{name} {record.get(name)}" for name in ("model", "rewards") if record.get(name)]
    lines = [
        head,
        _how_to_use(view, best, file),
        f"what its trainer got (TRL {as_mapping(record.get('versions')).get('trl', '')}, "
        f"processes: {record.get('world_size')}); "
        f"{best.path / 'program.sh'} launched it",
        f"Not in it: model, data and rewards, which are the command's own ({'; '.join(omitted)}).",
    ]
    text = yaml.safe_dump({**given, "output_dir": f"output-{best.name}"}, sort_keys=False)
    return comment(*lines) + text


def _own_output(best: TrialView, recipe: str) -> str:
    """Return the recipe with a folder of its own for what it writes: a training from it must not
    write over the trial.
    """
    return recipe.replace(str(best.path.resolve()), f"output-{best.name}")


def _hydra(best: TrialView, head: str, file: Path) -> str:
    """Return every value of the experiment over conf/config.yaml, with the interpolations of that
    file.
    """
    from omegaconf import OmegaConf

    from grposweep.config.compose import load_experiment, register_schema
    from grposweep.config.points import follow
    from grposweep.process import run_command

    if file.stem == "config":
        raise UserError(
            f"--export {file}: conf/config.yaml is what it builds on, so it cannot have that "
            "name. Choose another."
        )
    register_schema()
    experiment = load_experiment(best.path / paths.CONFIG)
    content = without(asdict(experiment), OF_SWEEP)
    kept = ("metric", "direction", "last", "at")
    content["search"] = {name: getattr(experiment.search, name) for name in kept}
    text = OmegaConf.to_yaml(follow(OmegaConf.create(content)))
    folder = str(file.resolve().parent)
    command = ["python", *run_command(), "--config-dir", folder, "--config-name", file.stem]
    first = comment(shlex.join(command), f"{head}; add overrides, or -m and parameters")
    return f"{first}defaults: [config, _self_]\n\n{text}"


def winner_texts(view: SweepView) -> dict[str, str]:
    """Return what ``grposweep best`` writes for the best trial, by form; empty if its folder does
    not tell.
    """
    if view.best is None:
        return {}
    texts: dict[str, str] = {}
    for form in ("hydra", "trl"):
        with suppress(UserError):
            texts[form] = redact(write_winner(view, view.best, form, Path("best.yaml")))
    return texts


def _recipe(view: SweepView, best: TrialView, head: str) -> str:
    """Return TRL's recipe of a trial of our trainer. Comments name what TRL takes no key for."""
    import yaml

    from grposweep.config.compose import load_experiment
    from grposweep.config.from_setting import trl_recipe
    from grposweep.config.identity import ResolvedConfig
    from grposweep.schema.registries import is_external

    experiment = load_experiment(best.path / paths.CONFIG)
    if is_external(experiment.trainer):
        form = "recipe" if (best.path / paths.RECIPE).is_file() else "command"
        raise UserError(
            f"--as trl: trial {best.number} was trained by a program of its own "
            f"(trainer={experiment.trainer.kind}), whose keys are not TRL's. Set --as {form}."
        )
    setting = ResolvedConfig.of(experiment, view.prepared).setting
    if setting.model_name_or_path is None and not experiment.model.path.startswith("embedded"):
        setting = setting.replace({"model_name_or_path": experiment.model.path})
    recipe, command, left = trl_recipe(experiment, setting)
    data = _data_and_rewards(view, experiment.task, setting)
    lines = [f"{head}. Save it as recipe.yaml, and launch it:", f"  {command}"]
    if left:
        rest = ", ".join(f"{name}={json.dumps(value, default=str)}" for name, value in left.items())
        lines.append(f"TRL has no key for these, so set them yourself if you need them: {rest}")
    if data:
        there = view.provenance.get("working_directory")
        lines.append(f"Launch it in {there}. TRL chooses its held-out prompts itself.")
    else:
        lines.append(_omitted(experiment.task))
    if setting.model_name_or_path is None:
        lines.append(
            "Not in it: the model (here the tiny one that is part of grposweep). Set yours, "
            "such as Qwen/Qwen2.5-0.5B."
        )
    text = yaml.safe_dump({**recipe, **data}, sort_keys=False, allow_unicode=True)
    return comment(*lines) + _own_output(best, text)


def _omitted(task: "Task") -> str:
    from grposweep.schema import Task

    keys = {
        name: value
        for name, value in vars(task).items()
        if name in ALWAYS_NAMED or value != getattr(Task(), name)
    }
    keys["rewards"] = ",".join(task.rewards)
    source = [f"task.{name}={json.dumps(plain_text(value))[1:-1]}" for name, value in keys.items()]
    return f"Not in it: prompts and rewards (here {', '.join(source)})."


# Keys of a task that decide what TRL's script would read in another way, unless they have their
# defaults.
READ_ELSEWHERE = ("prompt_column", "answer_column", "system_prompt", "train_prompts")


def _data_and_rewards(view: SweepView, task: "Task", setting: "Setting") -> Json:
    """Return a task's data and rewards as TRL's own script takes them; empty if it cannot.

    Source: trl 1.16 scripts/grpo.py, scripts/utils.py (DatasetMixtureConfig).
    """
    from grposweep.schema import Task

    there = Path(str(view.provenance.get("working_directory") or "."))
    data = there / (task.path or "")
    rewards = [_dotted(spec, there) for spec in task.rewards]
    is_plain = all(getattr(task, name) == getattr(Task(), name) for name in READ_ELSEWHERE)
    # prompts that go into a template here, and not there
    is_plain = is_plain and not setting.chat
    if not (
        is_plain
        and data.is_file()
        and data.suffix == ".jsonl"
        and all(rewards)
        and setting.train_prompts
    ):
        return {}
    with suppress(OSError, ValueError, AttributeError), data.open(encoding="utf-8-sig") as rows:
        # rewards get text here, and numbers there
        if not isinstance(parse_json(rows.readline()).get("answer"), str):
            return {}
    recipe: Json = {"datasets": [{"path": "json", "data_files": str(data)}]}
    held_out = setting.eval_prompts
    if held_out:
        recipe["test_split_size"] = round(held_out / (held_out + setting.train_prompts), 4)
    recipe["reward_funcs"] = rewards
    return recipe


def _dotted(spec: str, there: Path) -> str:
    """Return a reward as TRL imports it from a folder; empty if it lies elsewhere."""
    module, _, name = spec.rpartition(":")
    if not module:
        return f"grposweep.train.rewards.{name}"
    if not module.endswith(".py"):
        return f"{module}.{name}"
    path = there / module
    if not path.is_relative_to(there):
        return ""
    return ".".join((*path.relative_to(there).with_suffix("").parts, name))
