"""No secret of the environment, the command line, a diff or another program's output reaches a file
of a sweep.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from command.conftest import RECIPE, SCRIPT, TRAINS
from grporecipe.redaction import redact
from grposweep.process.redaction import RedactedProgram
from support import Ended, grposweep, run_in, sampled, wait_for

HF, KEY, PASSWORD = (
    "hf_" + "aB3dE" * 6,
    "0123456789abcdef" * 2 + "01234567",
    "correct-horse-battery",
)
SECRET = {"HF_TOKEN": HF, "WANDB_API_KEY": KEY, "MY_PASSWORD": PASSWORD}


def sweep(here: Path, *arguments: str) -> Ended:
    """Run the command with secrets in its environment."""
    return run_in(here, "trainer=fake", "name=s", *arguments, **SECRET)


def found(here: Path) -> list[str]:
    """The files that hold a secret."""
    files = [path for path in here.rglob("*") if path.is_file()]
    assert files
    return [
        str(path)
        for path in files
        if any(word.encode() in path.read_bytes() for word in SECRET.values())
    ]


def test_a_sweep_writes_no_secret_of_its_environment(here: Path) -> None:
    """Finished and failed trials, scripts that would be submitted."""
    assert sweep(here, "trainer.args.crash_above_lr=5e-3", "-m", "lr=1e-2,1e-3").code == 0
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
def test_a_secret_in_the_configuration_is_refused_before_anything_is_written(
    here: Path, argument: str
) -> None:
    """One message, which does not repeat it."""
    ended = sweep(here, argument, "-m", "lr=1e-3,1e-4")
    assert ended.code == 2
    assert "looks like a secret" in ended.err
    assert not any(word in ended.out + ended.err for word in SECRET.values())
    assert not (here / "outputs").exists()


def test_a_secret_on_the_command_line_outside_of_the_configuration_is_not_recorded(
    here: Path,
) -> None:
    """Hydra's own keys are no part of an experiment, and of the recorded command."""
    assert sweep(here, f"+hydra.job.env_set.HF_TOKEN={HF}", "lr=1e-3").code == 0
    assert found(here) == []


KEY_LINES = "\n".join(["MIIEowIBAAKCAQEA" + "x1Y" * 16] * 3)
CANARIES = {
    "a private key": f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_LINES}\n-----END RSA PRIVATE KEY-----",
    "a private key in a diff": (
        f"+-----BEGIN PRIVATE KEY-----\n+{KEY_LINES.replace(chr(10), chr(10) + '+')}\n"
    ),
    "a header": "headers={'Authorization': 'Bearer x1Yx1Yx1Yx1Yx1Y'}",
    "a password in a diff": "+  password: x1Yx1Yx1Yx1Y\n",
    "a query": "GET https://host/v1?user=me&api_key=x1Yx1Yx1Yx1Y&page=1",
    "a keyword": 'login(hub_token="x1Yx1Yx1Yx1Y")',
    "an address": "postgresql://me:x1Yx1Y@host/db",
    "an address of a webhook": (
        "https://hooks.slack.com/services/T0x1Y/B0x1Y/x1Yx1Yx1Yx1Y posts to a host"
    ),
    "a cookie": "COOKIE=session-x1Yx1Yx1Yx1Y",
    "a login of npm": "NPM_AUTH=x1Yx1Yx1Yx1Y",
    "a licence": "MY_LICENSE: x1Yx1Yx1Yx1Y",
    "a variable of the environment": "the key is x1Yx1Yx1Yx1Yx1Yx1Y, it says",
}


@pytest.mark.parametrize("name", CANARIES)
def test_a_secret_in_a_diff_or_a_log_is_not_written(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is around it stays."""
    monkeypatch.setenv("MY_API_KEY", "x1Yx1Yx1Yx1Yx1Yx1Y")
    shown = redact(f"before\n{CANARIES[name]}\nafter")
    assert "x1Y" not in shown
    assert shown.startswith("before\n")
    assert shown.endswith("\nafter")
    assert "host" in shown or "host" not in CANARIES[name]


PRINTS = """
import os, sys
key = os.environ["MY_API_KEY"]
os.write(1, f"begin {key[:9]}".encode())
os.write(1, f"{key[9:]} end\\n".encode())
os.write(2, b"\\xff" + f" 5%\\r {key} 6%\\r".encode())
os.write(1, b"last " + key.encode())
sys.exit(3)
"""


def test_the_output_of_another_program_is_written_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what it writes in pieces, in bytes that are no text, and without an end of line."""
    monkeypatch.setenv("MY_API_KEY", "x1Yx1Yx1Yx1Yx1Yx1Y")
    log = tmp_path / "log"
    with log.open("wb") as file:
        program = RedactedProgram(
            [sys.executable, "-c", PRINTS], file.fileno(), stdin=subprocess.DEVNULL
        )
        assert program.wait(60) == 3
    assert log.read_bytes() == b"begin *** end\n\xff 5%\r *** 6%\rlast ***"


@pytest.mark.slow
def test_a_script_that_prints_its_secrets_leaves_none_behind(here: Path) -> None:
    """Its log and the report of its failure, and the refusal of a command that ends so when it is
    asked.
    """
    prints = "print(dict(os.environ))\nraise ValueError(os.environ['HF_TOKEN'])\n"
    (here / "recipe.yaml").write_text(RECIPE)
    words = ("trainer=command", TRAINS, "+trainer.environment.GRPOSWEEP_ASK_MODE=real")
    (here / "train.py").write_text("import os\n" + prints)
    refused = run_in(here, *words, "cluster.gpus=0", **SECRET)
    assert (refused.code, "ValueError: ***" in refused.err, SECRET["HF_TOKEN"] in refused.err) == (
        2,
        True,
        False,
    )
    (here / "train.py").write_text(
        SCRIPT.replace("trainer.train()\n", prints).replace("json.dump(", "print(")
    )
    ended = run_in(here, *words, "name=s", "cluster.gpus=0", **SECRET)
    assert ended.code == 1, ended.out + ended.err
    (log,) = here.rglob("rank-0.log")
    assert "ValueError: ***" in log.read_text()
    assert found(here) == []


@pytest.mark.slow
@pytest.mark.parametrize("is_warm", ["true", "false"])
def test_a_vllm_server_that_prints_its_secrets_leaves_none_behind(here: Path, is_warm: str) -> None:
    """Its log holds the rest of what it and its children say, to the last line."""
    command = f"env; {sys.executable} -c 'import os; print(os.environ)'; echo last; exit 3"
    words = ("use_vllm=true", "vllm_mode=server", "vllm_gpus=1", f'vllm_server_command="{command}"')
    given = [
        *(f"generation.{word}" for word in words),
        f"cluster.warm={is_warm}",
        "trainer.args.step_seconds=60",
    ]
    ended = run_in(here, "trainer=fake", "name=s", *given, CUDA_VISIBLE_DEVICES="0,1", **SECRET)
    assert "its vLLM server ended" in ended.out + ended.err
    (log,) = here.rglob("vllm.log")
    wait_for(lambda: log.read_text().endswith("last\n"), seconds=10)
    assert "HF_TOKEN=***" in log.read_text()
    assert found(here) == []


OF_A_RECIPE = "a1b2c3d4e5f60718a1b2c3d4e5f60718a1b2c3d4"
COMMON = "num_generations: 8\nper_device_train_batch_size: 8\nlearning_rate: 1.0e-6\n"
RECIPES = {
    "recipe.yaml": COMMON
    + "".join(
        f"{key}: {OF_A_RECIPE}\n" for key in ("hf_token", "wandb_api_key", "push_to_hub_token")
    ),
    "twice.yaml": f"{COMMON}hub_token: {OF_A_RECIPE}\nhub_token: other{OF_A_RECIPE}\n",
    "verl.sh": "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
    f"trainer.wandb_key={OF_A_RECIPE} "
    f"+trainer.api_key={OF_A_RECIPE} data.train_batch_size=128 actor_rollout_ref.rollout.n=8\n",
    "train.py": (
        f"from trl import GRPOConfig\nGRPOConfig(push_to_hub_token='{OF_A_RECIPE}', "
        "num_generations=8)\n"
    ),
}
COMMANDS = [
    "lint",
    "lint --format json",
    "lint --format github",
    "lint --diff",
    "plan",
    "plan --format json",
]


@pytest.mark.parametrize("name", sampled(RECIPES, 4))
def test_no_command_prints_a_secret_of_a_recipe(here: Path, name: str) -> None:
    """The recipe itself keeps its value when it is fixed."""
    (here / name).write_text(RECIPES[name])
    for command in COMMANDS:
        ended = grposweep(here, *command.split(), name)
        assert OF_A_RECIPE[:20] not in ended.out + ended.err, command
    assert OF_A_RECIPE not in grposweep(here, "lint", "--fix", "--unsafe-fixes", name).out
    assert OF_A_RECIPE in (here / name).read_text()
