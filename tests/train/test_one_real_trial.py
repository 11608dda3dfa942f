"""One real training: GRPO on the tiny model, in this process. test_trl.py has the others."""

import pytest

from grporecipe.errors import ExitCode
from grposweep.config.compose import load_experiment
from grposweep.storage.provenance import TIMES
from grposweep.sweep._metric_names import known_names

from .conftest import MakeTrial, metrics_of, result_of


@pytest.mark.slow
@pytest.mark.usefixtures("cool_tiny")
def test_a_finished_trial_keeps_its_model_and_reports_its_objective(make_trial: MakeTrial) -> None:
    """keep=best: the model stays until the controller knows the winner, checkpoints go."""
    # torch and TRL take 8 s to import, in the one worker that runs this
    import torch

    from grposweep.train.run import run_attempt

    threads = torch.get_num_threads()
    folder = make_trial()
    assert run_attempt(folder) == ExitCode.FINISHED
    # a setting of the process
    torch.set_num_threads(threads)
    result = result_of(folder)
    lines = metrics_of(folder)
    assert [(line["kind"], line["step"], line["completions"]) for line in lines] == [
        ("eval", 0, 0),
        *[
            ("train", 1, 8),
            ("train", 2, 16),
            ("eval", 2, 16),
            ("train", 3, 24),
            ("train", 4, 32),
            ("eval", 4, 32),
        ],
    ]
    assert (result["objective"], result["objective_se"]) == (
        lines[-1]["eval_reward"],
        lines[-1]["eval_reward_se"],
    )
    assert (folder / "model" / "model.safetensors").is_file()
    assert not (folder / "checkpoints").exists()
    names = known_names(load_experiment(folder / "config.yaml"))
    assert names is not None
    assert {
        name for line in lines for name, value in line.items() if isinstance(value, float)
    } - set(TIMES) <= names
