"""Files that trainings depend on: a change is noticed, and attempts read the sweep's copy."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import write_json
from grposweep.schema import Experiment, Model, Task
from grposweep.storage import paths
from grposweep.storage.inputs import (
    SAMPLED,
    WHOLE_BYTES,
    Inputs,
    TrialInputs,
    digest_of,
    find_inputs,
)


def write_trial(sweep: Path, inputs: Inputs) -> TrialInputs:
    """A trial that was written with these inputs, as its attempts read it."""
    trial = sweep / "trials" / "0000"
    trial.mkdir(parents=True)
    write_json(trial / paths.PROVENANCE, {"files": inputs.digests, "copies": inputs.copies or ""})
    return TrialInputs.read(trial)


def test_a_changed_file_of_a_local_model_folder_is_noticed(tmp_path: Path) -> None:
    """Also by an attempt that starts later: the sweep keeps no copy of a model."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    experiment = replace(Experiment(), model=replace(Model(), path=str(model)))
    before = find_inputs([experiment])
    trial = write_trial(tmp_path / "sweep", before.keep(tmp_path / "sweep"))
    trial.check()
    (model / "config.json").write_text('{"hidden_size": 8}')
    assert before.changed(find_inputs([experiment])) == [str(model)]
    with pytest.raises(UserError, match="model has changed since the sweep recorded it"):
        trial.check()


def test_a_large_file_is_hashed_by_samples(tmp_path: Path) -> None:
    """Its size and its first and last bytes count; a sparse file stands for it."""
    digests = []
    for number, (size, at) in enumerate(
        ((WHOLE_BYTES + 1, 0), (WHOLE_BYTES + 1, WHOLE_BYTES), (WHOLE_BYTES + 2, 0))
    ):
        large = tmp_path / f"{number}.bin"
        with large.open("wb") as file:
            os.truncate(large, size)
            file.seek(at)
            file.write(b"x")
        digests.append(digest_of(large))
    assert all(digest.startswith(SAMPLED) for digest in digests)
    assert len(set(digests)) == 3


def test_an_attempt_reads_the_copy_of_data_that_was_edited_while_it_waited(tmp_path: Path) -> None:
    """The original may change: the copy has what the sweep recorded."""
    data = tmp_path / "train.jsonl"
    sweep = tmp_path / "sweep"
    data.write_text('{"prompt": "1"}\n')
    sweep.mkdir()
    task = replace(Task(), path=str(data))
    trial = write_trial(sweep, find_inputs([replace(Experiment(), task=task)]).keep(sweep))
    data.write_text('{"prompt": "2"}\n')
    trial.check()
    copy = Path(str(trial.task(task).path))
    assert copy.is_relative_to(sweep)
    assert copy.read_text() == '{"prompt": "1"}\n'
