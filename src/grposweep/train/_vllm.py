"""vLLM as a trial uses it: a server of the trial's own, its address, the weights that TRL sends,
and a check that they arrive.

No torch here: the check is tested with logs alone.
"""

import math
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import Json, read_json, write_json
from grposweep.config.compose import load_experiment
from grposweep.config.precision import read_precision
from grposweep.process import end_children_with
from grposweep.process.redaction import redact_own_output
from grposweep.schema import Experiment, Generation
from grposweep.storage import paths
from grposweep.train.process import ADDRESS, PORT, port_for_weights

POLL_SECONDS = 1.0


def serve_model(folder: Path) -> None:
    """Become the trial's server, on port $GRPOSWEEP_VLLM_PORT: ``python -m grposweep.train serve
    <trial folder>``.

    Its engines are processes of their own, and end with it. Its output is redacted.
    """
    redact_own_output()
    experiment = load_experiment(folder / paths.CONFIG)
    if experiment.generation.vllm_server_command is not None:
        command = ["bash", "-c", experiment.generation.vllm_server_command]
        os.execvpe("bash", command, {**os.environ, **end_children_with(os.getpid())})
    # torch; only here
    from grposweep.train._models import find_model_folder
    from grposweep.train.attempt import prepared_weights, read_own_setting

    path = str(find_model_folder(experiment.model, prepared_weights(folder, experiment)))
    length = read_own_setting(folder, experiment).vllm_max_model_length
    # vLLM's development mode holds the endpoints by which TRL sends its weights.
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", **end_children_with(os.getpid())}
    if experiment.generation.vllm_shared_gpus:
        port = find_port()
        command = [*server_command(experiment, path, port, length), *adapter_options(experiment)]
        # Without an address vLLM looks for its own by a route to the internet, which a node may not
        # have.
        own = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_HOST_IP": os.environ.get("VLLM_HOST_IP", "127.0.0.1"),
        }
        sys.exit(keep_serving(folder, command, environment | own, port))
    command = server_command(experiment, path, int(os.environ["GRPOSWEEP_VLLM_PORT"]), length)
    os.execve(sys.executable, command, environment)


def find_port() -> int:
    """Return the port of the sweep's server: the one that the job has for it, or one that is free
    now.
    """
    if PORT in os.environ:
        return int(os.environ[PORT]) + 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def adapter_options(experiment: Experiment) -> list[str]:
    """Return the options of ``vllm serve`` for adapters of several trials.

    vLLM takes certain ranks only, and keeps adapters that it does not compute with in main memory.
    """
    most = experiment.generation.vllm_max_loras or 1
    rank = async_grpo_module().round_lora_rank(experiment.model.lora.r)
    return [
        "--enable-lora",
        f"--max-loras={most}",
        f"--max-cpu-loras={2 * most}",
        f"--max-lora-rank={rank}",
    ]


def async_grpo_module() -> ModuleType:
    """Return TRL's module of the asynchronous trainer, whose functions handle LoRA adapters in
    vLLM. TRL 1.18 moved it.
    """
    try:
        return import_module("trl.trainer.async_grpo_trainer")
    except ModuleNotFoundError:
        return import_module("trl.experimental.async_grpo.async_grpo_trainer")


# without a new adapter of any trial, such as after the controller of Slurm jobs has ended
IDLE_SECONDS = 3600.0


def keep_serving(folder: Path, command: list[str], environment: dict[str, str], port: int) -> int:
    """Run the sweep's server until nothing uses it, and start it again when it ends. Return the
    exit code.

    Its address is in the folder while it answers. A server that ends before it has answered is not
    started again.
    """
    url = f"http://{os.environ.get(ADDRESS, '127.0.0.1')}:{port}"
    reach_directly(url)
    trials = folder.parent.parent / paths.TRIALS
    began = time.time()
    while True:
        (folder / paths.SERVER_ADDRESS).unlink(missing_ok=True)
        print(f"starting the server at {url}: {shlex.join(command)}", flush=True)
        server = subprocess.Popen(command, env=environment)
        answered = False
        while server.poll() is None:
            if not answered and health(url) is None:
                answered = True
                write_json(folder / paths.SERVER_ADDRESS, {"url": url})
            used = max(
                (path.stat().st_mtime for path in trials.glob(f"*/{paths.ADAPTERS}")), default=began
            )
            if time.time() - max(used, began) > IDLE_SECONDS:
                server.terminate()
                server.wait()
                return ExitCode.FINISHED
            time.sleep(POLL_SECONDS)
        if not answered:
            return ExitCode.SERVER_ENDED
        print(f"the server has ended with exit code {server.returncode}", flush=True)


def shared_address(generation: Generation, sweep: Path) -> str:
    """Return the address of the sweep's server once it answers. Raises UserError if it has not
    within its time.

    It may answer at another address after its node was lost.
    """
    path = sweep / paths.SHARED_SERVER / paths.SERVER_ADDRESS
    until = time.monotonic() + generation.vllm_server_timeout
    while True:
        url = (read_json(path) or {}).get("url")
        if url is not None:
            reach_directly(url)
            if health(url) is None:
                return str(url)
        if time.monotonic() >= until:
            raise UserError(
                f"generation.vllm_shared_gpus={generation.vllm_shared_gpus}: the sweep's vLLM "
                f"server has not answered within {generation.vllm_server_timeout} s; "
                f"{path.parent / paths.LOGS} says why. One that needs longer: set "
                "generation.vllm_server_timeout. The sweep's command starts it again."
            )
        time.sleep(POLL_SECONDS)


def server_command(
    experiment: Experiment, path: str, port: int, length: int | None = None
) -> list[str]:
    """Return the command of TRL's own ``trl vllm-serve`` for this model and sequences of up to
    ``length`` tokens.

    Source: trl 1.16 scripts/vllm_serve.py, build_command.
    """
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    model = experiment.model
    generation = experiment.generation
    arguments = ScriptArguments(
        model=path,
        tensor_parallel_size=generation.vllm_tensor_parallel_size,
        data_parallel_size=max(generation.vllm_gpus // generation.vllm_tensor_parallel_size, 1),
        port=port,
        gpu_memory_utilization=generation.vllm_gpu_memory_utilization,
        dtype=read_precision(model).computed,
        max_model_len=length,
        trust_remote_code=model.trust_remote_code,
    )
    return [*build_command(arguments), *generation.vllm_server_args]


def server_address(generation: Generation, sweep: Path) -> Json:
    """Return TRL's keys of a vLLM server, none without one.

    A server that the job started is named in the environment. The sweep's is waited for.
    """
    if not generation.is_served:
        return {}
    address = os.environ.get("GRPOSWEEP_VLLM_SERVER") or generation.vllm_server_base_url
    if generation.vllm_shared_gpus:
        address = shared_address(generation, sweep)
    return {
        "vllm_server_base_url": address,
        "vllm_server_timeout": float(generation.vllm_server_timeout),
        # Two jobs on one node must not meet on the port over which weights are sent.
        "vllm_group_port": port_for_weights(),
    }


def wait_for_server(url: str, seconds: float) -> None:
    """Return once the vLLM server answers. Raises UserError if it has not within ``seconds``.

    TRL's client (1.16, generation/vllm_client.py, check_server) has no limit while something else
    answers, such as a proxy.
    """
    until = time.monotonic() + seconds
    while (answer := health(url)) is not None:
        if time.monotonic() >= until:
            raise UserError(
                f"generation.vllm_mode=server: no vLLM server answers at {url} after {seconds:g} s "
                f"({answer} at /health; a proxy may answer in its place). Correct the address, or "
                "add its host to no_proxy. A server that needs longer to start: set "
                "generation.vllm_server_timeout."
            )
        time.sleep(POLL_SECONDS)


def reach_directly(url: str) -> None:
    """Keep this process's requests to a server from a cluster's proxy, which knows no nodes."""
    hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if (host := str(urlsplit(url).hostname)) not in hosts.split(","):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, (hosts, host)))


def health(url: str) -> str | None:
    """Return None if a vLLM server answers, or else what came instead of its answer."""
    # comes with TRL, whose client obeys the same proxies
    import requests

    try:
        status = requests.get(f"{url.rstrip('/')}/health", timeout=10).status_code
    except requests.RequestException as error:
        return type(error).__name__
    return None if status == requests.codes.ok else f"HTTP status {status}"


def copy_merged_weights(engine: Any) -> None:
    """Let TRL's ``VLLMGeneration`` copy each weight as it yields it, for a server and an adapter.

    TRL merges the adapter, yields views of the merged weights, and unmerges in place when the last
    one is taken. vLLM packs views and copies a buffer (1 GiB) when it is full or the iteration has
    ended. So the last buffer, which is all of a smaller model, is sent unmerged, and the server
    samples from the base model. No release is known to be right, so every release gets the copies;
    they are at most as large as vLLM's buffers. Sources: trl 1.11 (the first) to 1.16 (the newest)
    generation/vllm_generation.py, _iter_named_params; vllm 0.31
    distributed/weight_transfer/packed_tensor.py.
    """
    stream = engine._iter_named_params

    def copies() -> Iterator[tuple[str, Any]]:
        for name, weight in stream():
            yield name, weight.clone()

    engine._iter_named_params = copies


DIFFERENCE = "sampling/sampling_logp_difference/mean"
"""TRL's mean over a rollout's tokens of |log p(trainer) - log p(vLLM)|, in nats."""
# nats per token, in each of the last rollouts
LIMIT = 0.05
# the limit if the first difference is large: top_p and min_p renormalise, and vLLM alone does
TIMES_FIRST = 4
# rollouts
LAST = 3


@dataclass
class StaleWeightsGuard:
    """End a trial whose vLLM samples from weights other than the trainer's.

    A difference of rounding does not grow: 4e-7 between float32 engines; where vLLM has bfloat16,
    5e-3 on average and 3e-2 in single rollouts of a few tokens, at learning rates from 1e-3 to 1
    (which destroys the policy). An engine that gets no weights begins with the trainer's (both
    loaded the same files) and departs with every optimizer step: 4e-7, 2e-1, 4e-1 in the first
    rollouts at 1e-3, 5e-3 to 9e-2 in six at 1e-4. (All measured with the tiny model.) So it is
    stale if the last three differences exceed the limit, and half of all exceed a quarter of it and
    twice the first: a training that diverges late breaks the second condition. No importance
    sampling correction helps at such differences.
    """

    mode: str
    # the difference in the trial's first rollout
    first: float | None = None
    # those of this attempt's rollouts after an optimizer step
    _differences: list[float] = field(default_factory=list)

    def begin(self, lines: list[Json]) -> None:
        """Read the first rollout's difference from the metrics of earlier attempts, if there are
        any.
        """
        self.first = next(
            (line[DIFFERENCE] for line in lines if line.get(DIFFERENCE) is not None), None
        )

    def check(self, logs: Json) -> None:
        """Take the log of an optimizer step. Raises UserError if the engine's weights are stale."""
        # missing: no vLLM, its correction is off, or no rollout in this step
        value = logs.get(DIFFERENCE)
        if value is None or not math.isfinite(value):
            return
        if self.first is None:
            self.first = value
            return
        self._differences.append(value)
        limit = max(LIMIT, TIMES_FIRST * self.first)
        last = self._differences[-LAST:]
        if (
            len(last) == LAST
            and min(last) > limit
            and median(self._differences) > max(limit / 4, 2 * self.first)
        ):
            raise UserError(self._explain(last, limit))

    def _explain(self, last: list[float], limit: float) -> str:
        numbers = ", ".join(f"{value:.2g}" for value in last)
        cause = "another trial may use the server, or " if self.mode == "server" else ""
        return (
            f"generation.vllm_mode={self.mode}: the engine's weights are stale. {DIFFERENCE} was "
            f"{self.first:.2g} in the first rollout and {numbers} in the last {LAST} (limit "
            f"{limit:.2g}; engines in sync stay near the first): vLLM samples from other weights "
            "than those trained. Set generation.use_vllm=false, or find what keeps the weights "
            f"from it: {cause}TRL and vLLM do not fit together. If the policy itself has diverged, "
            "lower the learning rate."
        )
