"""The vLLM server that the trials of a sweep share: a trial sends it adapters under names of its
own, and never pauses others.

A new version of an adapter has a new name. Under an old one vLLM would keep the attention keys of
the version before (https://github.com/vllm-project/vllm/issues/42125), or read the files again for
each request (https://github.com/vllm-project/vllm/pull/41482).
"""

import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import requests
import torch
import trl.trainer.grpo_trainer
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from grporecipe.errors import UserError
from grporecipe.files import Json
from grposweep.storage import paths
from grposweep.train._vllm import async_grpo_module, shared_address
from grposweep.train.attempt import Attempt

# requests of a trial
AT_ONCE = 64
# of one generation, after the server has ended or lost the adapter
RECOVERIES = 3


class AdapterClient(VLLMClient):  # type: ignore[misc]  # trl is not typed
    """TRL's client of a server that holds the adapters of several trials. It samples from this
    trial's newest one.
    """

    def __init__(self, attempt: Attempt, url: str, seconds: float) -> None:
        self.attempt = attempt
        self.folder = attempt.folder / paths.ADAPTERS
        super().__init__(base_url=url, connection_timeout=seconds)
        self.model, self.first_name, self.version = "", name_adapter(attempt), 0
        drop_adapters(attempt, url)

    def generate(
        self, prompts: list[list[int]], generation_kwargs: Any = None, **options: Any
    ) -> Json:
        """Return TRL's lists of ``n`` completions for each prompt. Raises RuntimeError if the
        server does not come back.

        Each prompt is a request with a seed of its own, drawn from the trial's random numbers. So
        its samples do not follow from what the server does for other trials, up to the rounding of
        batches of other shapes.
        """
        seeds = torch.randint(2**62, (len(prompts),)).tolist()

        def ask(number: int) -> Json | Exception:
            own = {**(generation_kwargs or {}), "seed": seeds[number]}
            try:
                return dict(
                    super(AdapterClient, self).generate(
                        [prompts[number]], generation_kwargs=own, **options
                    )
                )
            except Exception as error:  # noqa: BLE001 - TRL raises Exception itself
                return error

        with ThreadPoolExecutor(AT_ONCE) as pool:
            answered = list(pool.map(ask, range(len(prompts))))
            for _ in range(RECOVERIES):
                lost = [
                    number
                    for number, answer in enumerate(answered)
                    if isinstance(answer, Exception)
                ]
                if not lost or is_refused(answered[lost[0]]):
                    break
                self.load_newest()
                for number, answer in zip(lost, pool.map(ask, lost), strict=True):
                    answered[number] = answer
        answers = [answer for answer in answered if not isinstance(answer, Exception)]
        if len(answers) < len(answered):
            raise next(answer for answer in answered if isinstance(answer, Exception))
        rows: dict[str, list[Any]] = {name: [] for name in answers[0]}
        for answer in answers:
            for name, values in rows.items():
                values += answer[name]
        return rows

    def load_newest(self) -> None:
        """Wait until the server answers, and load the newest version if it does not have it, also
        if it ends meanwhile.
        """
        for left in reversed(range(RECOVERIES)):
            self.base_url = shared_address(
                self.attempt.experiment.generation, self.attempt.folder.parent.parent
            )
            try:
                if self.model not in loaded_adapters(self.attempt, self.base_url):
                    self.load(self.model)
                return
            except requests.RequestException:
                if not left:
                    raise

    def publish(self) -> None:
        """Sample from the version that was saved last. The one before is dropped; its files stay
        for one more version.
        """
        before = self.model
        self.model = self.next_name()
        self.version += 1
        self.load_newest()
        if before:
            unload(self.base_url, [before])
        for path in self.folder.iterdir():
            if path.name not in (before, self.model):
                shutil.rmtree(path, ignore_errors=True)

    def next_name(self) -> str:
        """Return the name of the next version."""
        return f"{self.first_name}-v{self.version}"

    def load(self, name: str) -> None:
        """Load a version from its folder, which the server must be able to read."""
        content = {"lora_name": name, "lora_path": str((self.folder / name).resolve())}
        answer = self.session.post(f"{self.base_url}/v1/load_lora_adapter", json=content)
        if not answer.ok:
            raise UserError(
                f"the shared vLLM server at {self.base_url} does not load this trial's adapter "
                f"(HTTP status {answer.status_code}: {' '.join(answer.text.split())[:300]}). It "
                f"reads it from {content['lora_path']}: is that folder on a file system that the "
                "server's node has as well?"
            )


def name_adapter(attempt: Attempt) -> str:
    """Return the name of a trial's adapters without the version. An attempt that is restarted does
    not meet its old ones.
    """
    return f"{_prefix(attempt)}{secrets.token_hex(3)}"


def _prefix(attempt: Attempt) -> str:
    return f"{attempt.folder.parent.parent.name}.{attempt.folder.name}."


def loaded_adapters(attempt: Attempt, url: str) -> list[str]:
    """Return the names of the trial's adapters that the server has."""
    names = [entry["id"] for entry in requests.get(f"{url}/v1/models", timeout=60).json()["data"]]
    return [name for name in names if name.startswith(_prefix(attempt))]


def drop_adapters(attempt: Attempt, url: str) -> None:
    """Free the places of all adapters of the trial. A server that does not answer has lost them
    anyway.
    """
    with suppress(requests.RequestException):
        unload(url, loaded_adapters(attempt, url))


def unload(url: str, names: list[str]) -> None:
    """Free the places of adapters."""
    for name in names:
        with suppress(requests.RequestException):
            requests.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=60)


def is_refused(error: Any) -> bool:
    """Return whether the server has refused a request for itself; an adapter that it does not know
    has status 404.
    """
    said = str(error)
    return said.startswith("Request failed: 4") and not said.startswith("Request failed: 404")


class SharedEngine(VLLMGeneration):  # type: ignore[misc]  # trl is not typed
    """TRL's access to a vLLM server, which sends the adapter instead of merged weights."""

    def __init__(self, attempt: Attempt, **options: Any) -> None:
        self.attempt = attempt
        super().__init__(**options)

    def _init_vllm(self) -> None:
        """Connect to the server; its base weights never change, so there is no group to send
        weights over.
        """
        check_adapter(self.accelerator.unwrap_model(self.model))
        if self.accelerator.is_main_process:
            self.vllm_client = AdapterClient(
                self.attempt, str(self.server_base_url), self.server_timeout
            )
        self.accelerator.wait_for_everyone()

    def sync_weights(self) -> None:
        """Save the adapter on all ranks, and have the server load it under a new name."""
        names = [""]
        if self.accelerator.is_main_process:
            names = [self.vllm_client.next_name()]
        if self.accelerator.num_processes > 1:
            torch.distributed.broadcast_object_list(names, src=0)
        model = self.accelerator.unwrap_model(self.model)
        folder = self.attempt.folder / paths.ADAPTERS / names[0]
        async_grpo_module().save_lora_adapter(
            model, self.accelerator, model.active_adapters[0], str(folder)
        )
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self.vllm_client.publish()
        self.accelerator.wait_for_everyone()


def check_adapter(model: Any) -> None:
    """Raise UserError if vLLM cannot apply the adapter that is trained, as TRL judges it."""
    try:
        async_grpo_module().validate_lora_for_vllm_sync(model)
    except ValueError as error:
        raise UserError(
            "generation.vllm_shared_gpus: the shared vLLM server cannot apply this adapter. TRL "
            f"says: {error} Change model.lora, or set generation=vllm_server, which merges it."
        ) from error


@contextmanager
def shared_engine(attempt: Attempt) -> Iterator[None]:
    """Let a GRPOTrainer that is built meanwhile use the sweep's server, if it has one."""
    own = trl.trainer.grpo_trainer.VLLMGeneration
    if attempt.experiment.generation.vllm_shared_gpus:
        trl.trainer.grpo_trainer.VLLMGeneration = partial(SharedEngine, attempt)
    try:
        yield
    finally:
        trl.trainer.grpo_trainer.VLLMGeneration = own


def release_adapters(attempt: Attempt, arguments: Any) -> None:
    """Free the places of a trial that has ended, and remove the files of its adapters."""
    if attempt.is_main and attempt.experiment.generation.vllm_shared_gpus:
        drop_adapters(attempt, str(arguments.vllm_server_base_url))
        shutil.rmtree(attempt.folder / paths.ADAPTERS, ignore_errors=True)
