"""Locate models, count prompts and try rewards once before the first trial. The rules then read
prepared.json.

Errors of model, data or rewards are reported here once, as bad input. Later each of them would fail
a trial.
"""

import hashlib
import os
import sys
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from filelock import FileLock

from grporecipe.errors import ExitCode, UserError, refuse_mistakes
from grporecipe.files import Json, read_json, write_json, write_text
from grporecipe.redaction import redact
from grposweep.config.compose import load_experiment
from grposweep.schema import Experiment
from grposweep.schema.registries import runs_trl
from grposweep.storage import paths
from grposweep.storage.inputs import TrialInputs
from grposweep.train.hub import Progress
from grposweep.train.prompts import (
    beyond_positions,
    check_answers,
    check_rendering,
    far_longer,
    longest_prompt,
    without_template,
)
from grposweep.train.rewards import TRIED, find_unearnable, load_rewards, try_rewards
from grposweep.train.tasks import Data, hash_rows, load_data

if TYPE_CHECKING:
    from grposweep.train._models import Loaded

# bytes of a large weight file that are hashed at either end
EDGE = 1 << 20


def prepare_sweep(folder: Path) -> int:
    """Add every entry of prepare.json to prepared.json, by the sweep's copies of the user's files.
    Return the exit code.
    """
    inputs = TrialInputs.of_sweep(folder)
    try:
        inputs.check()
        if not os.access(folder, os.W_OK):
            raise UserError(
                f"{folder} cannot be written. Name an existing sweep folder of your own."
            )
        with FileLock(folder / paths.PREPARE_FOLDER / "lock"):
            wanted = (read_json(folder / paths.PREPARE) or {}).get("entries", {})
            for key, path in wanted.items():
                done = (read_json(folder / paths.PREPARED) or {}).get("entries", {})
                if key not in done:
                    experiment = load_experiment(folder / path)
                    sys.path[:] = inputs.search_path(sys.path, experiment.task)
                    experiment.task = inputs.task(experiment.task)
                    done[key] = prepare_experiment(
                        experiment, Reporter(folder / paths.PREPARE_PROGRESS)
                    )
                    if "notes" in done[key]:
                        done[key]["notes"] = list(map(inputs.with_originals, done[key]["notes"]))
                    write_json(folder / paths.PREPARED, {"entries": done})
    except UserError as error:
        message = inputs.with_originals(str(error))
        print(message, file=sys.stderr)
        if folder.is_dir():
            # for the controller, which shows no log
            write_text(folder / paths.PREPARE_ERROR, redact(message))
        return ExitCode.BAD_INPUT
    return ExitCode.FINISHED


class Reporter:
    """Writes the progress of preparation a few times per second, for the process that waits for
    it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Record that ``done`` of ``total`` items of ``what`` are done."""
        if time.monotonic() - self.written > 0.2 or done == total:
            self.written = time.monotonic()
            write_json(self.path, {"what": what, "done": done, "total": total})


def prepare_experiment(experiment: Experiment, progress: Progress) -> Json:
    """Return the entry of one model and task."""
    # the fake trains no model: a minute saved for tests of the rest
    is_trained = runs_trl(experiment.trainer)
    # A model may take hours to download, so wrong data or rewards are found before, unless its
    # tokenizer decides how they look.
    loaded = (
        find_model(experiment, progress) if is_trained and experiment.task.chat is None else None
    )
    data = load_data(experiment.task, loaded is not None and loaded.has_template)
    rewards = load_rewards(experiment.task)
    notes = list(data.notes)
    notes += try_rewards(
        rewards, [data.train[number] for number in range(min(TRIED, len(data.train)))]
    )
    entry: Json = {**data.counts(), "distinct_prompts": data.distinct()}
    hashes = {"train": hash_rows(data.train), "eval": hash_rows(data.held_out)}
    if is_trained:
        loaded = loaded or find_model(experiment, progress)
        entry |= prepare_model(experiment, loaded, data)
        hashes["model"] = hash_model(experiment, Path(loaded.path))
        prompts = [*data.train["prompt"], *data.held_out["prompt"]]
        notes += filter(
            None, [beyond_positions(experiment, entry), far_longer(loaded.tokenizer, prompts)]
        )
    entry["hashes"] = hashes
    if notes:
        entry["notes"] = notes
    return entry


def find_model(experiment: Experiment, progress: Progress) -> "Loaded":
    """Download the model if it is on the hub. Return its tokenizer and configuration."""
    from grposweep.train._models import find_model_folder, load_model

    # torch and TRL: only for a real model
    from grposweep.train.trl import calm

    calm()
    return load_model(experiment.model, find_model_folder(experiment.model, progress=progress))


def prepare_model(experiment: Experiment, loaded: "Loaded", data: Data) -> Json:
    """Return the model's shape, and what its tokenizer makes of the prompts. Raises UserError if it
    cannot read them.
    """
    from grposweep.train._models import read_shape

    check_prompts(experiment, loaded.tokenizer, data.train)
    check_answers(experiment, loaded.tokenizer, data.train["answer"])
    refuse_mistakes(find_unearnable(experiment.task.rewards, data.train["answer"]))
    prompts = chain(data.train["prompt"], data.held_out["prompt"])
    return {
        "model": read_shape(loaded.config),
        "longest_prompt": longest_prompt(
            loaded.tokenizer, prompts, experiment.model.chat_template_kwargs
        ),
        "has_chat_template": loaded.has_template,
        "chat": not isinstance(data.train[0]["prompt"], str),
    }


def check_prompts(experiment: Experiment, tokenizer: Any, train: Dataset) -> None:
    """Raise UserError for a chat without a template, or for the tiny model if prompts are not
    sums.
    """
    prompt = train[0]["prompt"]
    if not isinstance(prompt, str):
        if tokenizer.chat_template is None:
            raise UserError(without_template(experiment))
        check_rendering(experiment, tokenizer, train["prompt"])
        return
    ids = tokenizer(prompt)["input_ids"]
    if not ids or (tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids):
        raise UserError(
            f"task.kind={experiment.task.kind} with model.path={experiment.model.path}: its "
            f"tokenizer does not know all characters of the prompt {prompt[:60]!r}. Set "
            "model=tiny_text for a first try with any text, or another model."
        )


def hash_model(experiment: Experiment, folder: Path) -> str:
    """Return the identity of the weights: the recipe's hash, a hash of a local folder, or the hub's
    commit.
    """
    from grposweep.train._tiny import CREATED, recipe_hash

    if experiment.model.path in CREATED:
        return recipe_hash(experiment.model.path)
    if Path(experiment.model.path).is_dir():
        return hash_folder(Path(experiment.model.path))
    return folder.name


def hash_folder(folder: Path) -> str:
    """Return a hash of names, sizes and both ends of every file. It is fast for gigabytes of
    weights.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(EDGE)
            file.seek(max(size - EDGE, 0))
            digest.update(repr((path.name, size)).encode() + head + file.read())
    return digest.hexdigest()[:16]
