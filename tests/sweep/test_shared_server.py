"""The vLLM server that trials share, as the controller sees it; what it does for trials is in
tests/gpu_stack.
"""

from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import write_json
from grposweep.config.compose import load_experiment
from grposweep.launchers.base import End
from grposweep.schema import Experiment, Generation, Lora, Model
from grposweep.search.early_stopping import StoppingPolicy
from grposweep.storage.folders import SweepFolder
from grposweep.sweep._controller import Controller
from grposweep.sweep._shared_server import SharedServer
from in_process import Sweep
from support import read, trials
from toy_launcher import Place, open_controller

SHARED = Generation(use_vllm=True, vllm_mode="server", vllm_shared_gpus=1)


def experiment(rank: int = 16, path: str = "org/model", **generation: object) -> Experiment:
    """A trial of a sweep that shares its server."""
    shared = Generation(**(vars(SHARED) | generation))  # type: ignore[arg-type]
    return Experiment(model=Model(path=path, lora=Lora(r=rank)), generation=shared)


@pytest.fixture
def place() -> Place:
    """The launcher, with places for two trials at once."""
    return Place()


@pytest.fixture
def controller(place: Place, tmp_path: Path) -> Controller:
    """One that has ticked once: the server and two trials run."""
    found = open_controller(SweepFolder(tmp_path), place, StoppingPolicy(), "lr=1e-3,2e-3,3e-3")
    found.server = SharedServer.of(tmp_path, [experiment()], {}, place)
    found.tick()
    return found


def answer(sweep: Path) -> None:
    """The server writes where it is."""
    write_json(sweep / "servers/shared/address.json", {"url": "http://n1:8000"})


def test_the_server_starts_once_and_before_the_first_trial(
    controller: Controller, place: Place
) -> None:
    """As a job of one process."""
    controller.tick()
    assert [job.folder.name for job in place.jobs] == [
        "shared",
        *sorted(job.folder.name for job in place.jobs[1:]),
    ]
    assert len(place.jobs) == 3
    assert place.jobs[0].arguments == ["serve", str(place.jobs[0].folder)]


def test_a_server_that_is_lost_starts_again_while_trials_run(
    controller: Controller, place: Place
) -> None:
    """Three times; then something is wrong with it."""
    for time in range(3):
        answer(controller.folder.path)
        place.ends[str(0 if time == 0 else 2 + time)] = End(1)
        controller.tick()
        assert place.jobs[-1].serves
        assert place.jobs[-1].attempt == time + 1
    answer(controller.folder.path)
    place.ends["5"] = End(1)
    with pytest.raises(UserError, match="ended 4 times"):
        controller.tick()


def test_a_server_that_never_answers_ends_the_sweep(controller: Controller, place: Place) -> None:
    """Its trials would wait for it, one after the other."""
    place.ends["0"] = End(1)
    with pytest.raises(
        UserError, match=r"ended before it answered; .*servers/shared/logs says why"
    ):
        controller.tick()


def test_the_next_controller_finds_the_server(
    controller: Controller, place: Place, tmp_path: Path
) -> None:
    """Slurm jobs continue without a controller, and so does what they sample from."""
    controller.server.close(is_used=True)  # type: ignore[union-attr]
    again = SharedServer.of(tmp_path, [experiment()], {}, place)
    assert again is not None
    again.start()
    assert (len(place.jobs), again.job_id) == (3, "job-0")
    again.close(is_used=False)
    assert "0" in place.ends


def test_one_server_takes_the_highest_rank_and_the_longest_sequences(
    place: Place, tmp_path: Path
) -> None:
    """Of all trials."""
    trials = [experiment(8, vllm_max_model_length=512), experiment(32, vllm_max_model_length=256)]
    server = SharedServer.of(tmp_path, trials, {}, place)
    assert server is not None
    server.start()
    written = load_experiment(server.folder.path / "config.yaml")
    assert (written.model.lora.r, written.generation.vllm_max_model_length) == (32, 512)
    assert written.generation.vllm_max_loras == place.slots == 2


def test_no_more_trials_run_at_once_than_the_server_has_places_for(
    place: Place, tmp_path: Path
) -> None:
    """A trial needs one."""
    SharedServer.of(tmp_path, [experiment(vllm_max_loras=1)], {}, place)
    assert place.slots == 1


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (experiment(path="org/other"), "model.path=org/model and org/other"),
        (experiment(vllm_shared_gpus=0), "some trials share a vLLM server"),
    ],
    ids=["another base model", "none"],
)
def test_trials_that_cannot_share_a_server_are_refused(
    other: Experiment, what: str, place: Place, tmp_path: Path
) -> None:
    """Before anything starts."""
    with pytest.raises(UserError, match=what):
        SharedServer.of(tmp_path, [experiment(), other], {}, place)


@pytest.mark.slow
def test_a_sweep_of_the_fake_trainer_needs_no_server(sweep_here: Sweep) -> None:
    """It is for trying a sweep out, and samples nothing."""
    words = (
        "trainer=fake",
        "name=s",
        "generation=vllm_shared",
        "model.lora.r=16",
        "lr=1e-4,1e-3",
        "tracker=none",
    )
    sweep = sweep_here(*words, "schedule.budget_completions=512")
    assert [read(trial / "result.json")["status"] for trial in trials(sweep)] == [
        "finished",
        "finished",
    ]
    assert not (sweep / "servers").exists()
