"""Check data files, rewards and model paths before a sweep starts, and the version of TRL that
would train.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.frameworks.trl.keys import installed
from grporecipe.model.setting import TRL
from grposweep.config.validate import check_packages, collect_messages
from grposweep.launchers import launcher_class
from grposweep.schema import Experiment, Task
from grposweep.schema.registries import TASKS, runs_trl
from grposweep.storage.inputs import data_files
from grposweep.train.hub import absence, check_folder
from grposweep.train.prompts import read_tokenizer, without_template
from grposweep.train.rewards import TRIED, code_problems, early_problems
from grposweep.train.tasks import LARGEST, bytes_of, split_rows
from grposweep.train.tasks.arithmetic import READ_BY_TINY
from grposweep.train.tasks.conversations import in_conversation


def task_problems(experiments: Iterable[Experiment]) -> Iterator[str]:
    """Say what is wrong with data files and rewards: rows are read, code is parsed and not run, and
    torch is not imported.

    Only for TRL's own trainer in this environment. Preparation checks the same again, and more.
    """
    models = set[tuple[str, str | None]]()
    tasks = list[Task]()
    for experiment in filter(_runs_trl_here, experiments):
        model = (experiment.model.path, experiment.model.revision)
        task = experiment.task
        # of a sweep over other keys of the model or the trainer, each model is looked up and each
        # task tried once
        if model not in models:
            yield from _model_problems(experiment)
        if _prepares_here(experiment):
            yield from check_packages(experiment)
        code = list(chain.from_iterable(map(code_problems, task.rewards)))
        yield from _data_problems(experiment, is_tried=not code and task not in tasks)
        yield from code
        models.add(model)
        tasks.append(task)


def _prepares_here(experiment: Experiment) -> bool:
    """Return whether a process of this machine prepares models and data."""
    cluster = experiment.cluster
    return not launcher_class(cluster.kind).is_dry and cluster.prepare == "here"


def _model_problems(experiment: Experiment) -> Iterator[str]:
    """Say if a path that can be no name on the hub is no folder, or if the hub does not have the
    model.
    """
    path = experiment.model.path
    if path.startswith((".", "/", "~")) and not Path(path).is_dir():
        yield (
            f"model.path={path}: there is no such folder, and a name on the hub begins with a "
            "letter. Set the folder with the "
            "model's config.json, or a name such as Qwen/Qwen2.5-0.5B-Instruct."
        )
    elif Path(path).is_dir():
        yield from collect_messages(check_folder, Path(path))
    elif "/" in path and _prepares_here(experiment):
        # the tiny models' names have no /
        yield from absence(experiment.model)


def _runs_trl_here(experiment: Experiment) -> bool:
    """Return whether the TRL of this environment trains."""
    described = launcher_class(experiment.cluster.kind).describe(experiment.cluster)
    return runs_trl(experiment.trainer) and not described.has_own_environment


def newer_trl(experiments: Iterable[Experiment]) -> str:
    """Return a sentence if the TRL that trains is newer than the newest that was tested; empty
    otherwise.
    """
    version = installed()
    if version is None or version <= TRL or not any(map(_runs_trl_here, experiments)):
        return ""
    newest = ".".join(map(str, TRL))
    return (
        f"TRL {'.'.join(map(str, version))} is installed, and the newest that grposweep was tested "
        f"with is {newest}: if a trial fails in TRL, run pip install trl=={newest}."
    )


def _data_problems(experiment: Experiment, is_tried: bool) -> Iterator[str]:
    """Yield the error of reading a task's files, and of its rewards on the first rows if they are
    to be tried.

    A dataset of the hub is left to preparation.
    """
    task = experiment.task
    files = data_files(task)
    is_hub = TASKS[task.kind].path == "optional" and not files
    if is_hub or bytes_of(files) > LARGEST:
        return
    try:
        train, held_out, _ = split_rows(task)
    except UserError as error:
        yield from error.problems or [str(error)]
        return
    charset = READ_BY_TINY.get(experiment.model.path, "")
    prompts = [str(row["prompt"]) for row in (*train, *held_out)]
    unread = [prompt for prompt in prompts if charset and not set(prompt) <= set(charset)]
    if unread:
        yield (
            f"model.path={experiment.model.path} reads {charset} only, and task.kind={task.kind} "
            f"has the prompt {unread[0][:60]!r}. Set model=tiny_text for a first try with any text "
            "(it is untrained), or a model of the hub or a folder."
        )
    elif is_tried and _prepares_here(experiment):
        tokenizer = read_tokenizer(experiment.model)
        templates = [True, False] if task.chat is None else [task.chat]
        prompt = in_conversation(task, train[0]["prompt"], has_template=False)
        if (
            tokenizer is not None
            and tokenizer.chat_template is None
            and not isinstance(prompt, str)
        ):
            yield without_template(experiment)
            return
        columns = dict.fromkeys(chain.from_iterable(train))
        first = [
            {"prompt_id": n, **dict.fromkeys(columns), **row} for n, row in enumerate(train[:TRIED])
        ]
        forms = []
        for has in templates:
            forms.append(
                [{**row, "prompt": in_conversation(task, row["prompt"], has)} for row in first]
            )
        yield from early_problems(task.rewards, forms)
