"""What TRL is told of vLLM, and the server that a trial starts."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

from grporecipe.errors import UserError
from grposweep.schema import Experiment, Generation, Model
from grposweep.train._models import Loaded
from grposweep.train._trl_config import grpo_arguments
from grposweep.train._vllm import server_address, server_command, wait_for_server
from grposweep.train.attempt import load_attempt

from .conftest import MakeTrial

# torch and TRL take 8 s to import
pytestmark = pytest.mark.slow


def test_a_server_of_the_job_outranks_the_configured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script says where it is; two jobs on a node send their weights over different ports."""
    monkeypatch.setenv("GRPOSWEEP_VLLM_SERVER", "http://n2:31234")
    monkeypatch.setenv("GRPOSWEEP_PORT", "31233")
    options = server_address(
        Generation(use_vllm=True, vllm_mode="server", vllm_gpus=1, vllm_server_timeout=300),
        Path("sweep"),
    )
    assert options["vllm_server_base_url"] == "http://n2:31234"
    assert options["vllm_server_timeout"] == 300
    assert options["vllm_group_port"] == 31235


def test_colocated_vllm_gets_its_share_of_the_memory(make_trial: MakeTrial) -> None:
    """And nothing of a server."""
    folder = make_trial(
        "generation.use_vllm=true",
        "generation.vllm_tensor_parallel_size=2",
        "generation.vllm_gpu_memory_utilization=0.4",
        "generation.vllm_max_model_length=1536",
    )
    options = grpo_arguments(
        load_attempt(folder), Loaded("model", None, None, {"dtype": "float32"})
    )
    assert (options["vllm_tensor_parallel_size"], options["vllm_gpu_memory_utilization"]) == (
        2,
        0.4,
    )
    assert options["vllm_max_model_length"] == 1536
    assert "vllm_server_base_url" not in options


def test_the_server_is_the_one_that_trl_would_start() -> None:
    """Its GPUs in tensor parallel groups, the endpoints for weights among its options."""
    model = Model(path="org/model", revision="abc", dtype="bfloat16", trust_remote_code=True)
    generation = Generation(
        use_vllm=True, vllm_mode="server", vllm_gpus=4, vllm_tensor_parallel_size=2
    )
    generation.vllm_server_args = ["--enforce-eager"]
    command = server_command(Experiment(model=model, generation=generation), "/models/x", 31234)
    assert command[command.index("serve") + 1] == "/models/x"
    assert command[command.index("--port") + 1] == "31234"
    # the path is the snapshot of that revision
    assert "--revision" not in command
    assert (
        command[command.index("--tensor-parallel-size") + 1]
        == command[command.index("--data-parallel-size") + 1]
        == "2"
    )
    assert {"--weight-transfer-config", "--trust-remote-code"} <= set(command)
    assert command[-1] == "--enforce-eager"
    assert Path(command[0]).name.startswith("python")


def test_a_proxy_that_answers_for_the_server_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TRL's client tries again forever as long as something answers."""
    monkeypatch.setattr(
        requests, "get", lambda *_arguments, **_named: SimpleNamespace(status_code=503)
    )
    with pytest.raises(
        UserError, match=r"http://n2:8000 after 0 s \(HTTP status 503 at /health.*no_proxy"
    ):
        wait_for_server("http://n2:8000", 0)
    asked: list[str] = []
    monkeypatch.setattr(
        requests, "get", lambda url, **_named: asked.append(url) or SimpleNamespace(status_code=200)
    )
    wait_for_server("http://n2:8000/", 0)
    assert asked == ["http://n2:8000/health"]
