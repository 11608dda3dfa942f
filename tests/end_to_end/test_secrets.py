"""No secret of the environment or the command line reaches a file of a sweep."""

from pathlib import Path

import pytest

from support import Ended, run_in

HF, KEY, PASSWORD = "hf_" + "aB3dE" * 6, "0123456789abcdef" * 2 + "01234567", "correct-horse-battery"
SECRET = {"HF_TOKEN": HF, "WANDB_API_KEY": KEY, "MY_PASSWORD": PASSWORD}


def sweep(here: Path, *arguments: str) -> Ended:
    """Run the command with secrets in its environment."""
    return run_in(here, "trainer=fake", "name=s", *arguments, **SECRET)


def found(here: Path) -> list[str]:
    """The files that hold a secret."""
    files = [path for path in here.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if any(word.encode() in path.read_bytes() for word in SECRET.values())]


def test_a_sweep_writes_no_secret_of_its_environment(here: Path) -> None:
    """Finished and failed trials, scripts that would be submitted."""
    assert sweep(here, "trainer.fake.crash_above_lr=5e-3", "-m", "lr=1e-2,1e-3").code == 0
    assert sweep(here, "name=dry", "cluster=dry_run", "-m", "lr=1e-2,1e-3").code == 0
    assert found(here) == []


@pytest.mark.slow
def test_a_tracked_trial_writes_none_either(here: Path) -> None:
    """W&B's own files as well."""
    ended = sweep(here, "tracker=wandb", "lr=1e-3")
    assert ended.code == 0, ended.err
    assert list(here.rglob("*.wandb"))
    assert found(here) == []


@pytest.mark.parametrize(
    "argument",
    [
        f'cluster.setup=["export HF_TOKEN={HF}"]',
        f"+trainer.environment.HF_TOKEN={HF}",
        f"model.path=https://me:{PASSWORD}@host/model",
    ],
)
def test_a_secret_in_the_configuration_is_refused_before_anything_is_written(here: Path, argument: str) -> None:
    """One message, which does not repeat it."""
    ended = sweep(here, argument, "-m", "lr=1e-3,1e-4")
    assert ended.code == 2
    assert "looks like a secret" in ended.err
    assert not any(word in ended.out + ended.err for word in SECRET.values())
    assert not (here / "outputs").exists()


def test_a_secret_on_the_command_line_outside_of_the_configuration_is_not_recorded(here: Path) -> None:
    """Hydra's own keys are no part of an experiment, and of the recorded command."""
    assert sweep(here, f"+hydra.job.env_set.HF_TOKEN={HF}", "lr=1e-3").code == 0
    assert found(here) == []
