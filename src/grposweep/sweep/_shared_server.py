"""The vLLM server that all trials of a sweep share: a job that the controller starts, follows and
ends.
"""

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Config, write_text
from grposweep.config.compose import render_experiment
from grposweep.config.identity import prepared_key
from grposweep.config.to_setting import read_model_length
from grposweep.launchers.base import Job, Launcher, note_cancelled
from grposweep.schema import Experiment
from grposweep.schema.registries import runs_trl
from grposweep.storage import paths
from grposweep.storage.folders import TrialFolder
from grposweep.storage.records import AttemptEventKind

logger = logging.getLogger(__name__)
# of the server's jobs, after which the sweep ends
MOST_ENDS = 3

# What decides which server a trial can use, with its name in a message.
SAME = (
    "model.path",
    "model.revision",
    "model.dtype",
    "model.mixed_precision",
    "model.trust_remote_code",
)


@dataclass
class SharedServer:
    """One sweep's server. Its folder has the files of a trial's attempts, and its address while it
    answers.
    """

    folder: TrialFolder
    launcher: Launcher
    experiment: Experiment
    job_id: str = ""
    number: int = 0
    ends: int = 0

    @classmethod
    def of(
        cls,
        sweep: Path,
        experiments: list[Experiment],
        prepared: Config,
        launcher: Launcher,
    ) -> "SharedServer | None":
        """Return the server that a sweep's experiments share, not started yet; None if they ask for
        none.

        ``prepared`` has what preparation counted, by `prepared_key`. The server takes the highest
        rank and the longest sequences of the trials. ``launcher.slots`` becomes what it has places
        for. Raises UserError if one server cannot serve them all.
        """
        # trainer=fake samples nothing
        experiments = [item for item in experiments if runs_trl(item.trainer)]
        sharing = [item for item in experiments if item.generation.vllm_shared_gpus]
        if not sharing:
            return None
        first = sharing[0]
        for item in experiments:
            mistake = _differs(first, item)
            if mistake:
                raise UserError(
                    f"{mistake}. Search one value in a sweep, or set generation=vllm_server."
                )
        lengths = [
            read_model_length(item, prepared.get(prepared_key(item), {})) for item in sharing
        ]
        longest = None if None in lengths else max(map(int, filter(None, lengths)))
        generation = replace(
            first.generation,
            vllm_max_loras=_fit(sharing, launcher),
            vllm_max_model_length=longest,
        )
        rank = max(item.model.lora.r for item in sharing)
        model = replace(first.model, lora=replace(first.model.lora, r=rank))
        folder = TrialFolder(sweep / paths.SHARED_SERVER)
        # by which trials divide its cost
        search = replace(first.search, parallel=launcher.slots)
        return cls(
            folder, launcher, replace(first, generation=generation, model=model, search=search)
        )

    def start(self) -> None:
        """Start it if it does not run. Raises LauncherBusy, or UserError if it can never run."""
        if self.job_id:
            return
        begun = self.folder.open_attempt()
        if begun is not None and (
            job_id := self.launcher.find(self._job(begun.number), begun.job_id)
        ):
            self.job_id = job_id
            self.number = begun.number
            return
        (self.folder.path / paths.LOGS).mkdir(parents=True, exist_ok=True)
        write_text(self.folder.path / paths.CONFIG, render_experiment(self.experiment))
        (self.folder.path / paths.SERVER_ADDRESS).unlink(missing_ok=True)
        self.number = self.folder.next_attempt()
        self._note(AttemptEventKind.INTENT)
        self.job_id = self.launcher.submit(self._job(self.number))
        self._note(AttemptEventKind.STARTED, job_id=self.job_id)
        logger.info("the shared vLLM server is started as %s", self.job_id)

    def watch(self, is_used: bool) -> None:
        """Start it again if its job has ended while trials run. Raises UserError if it never
        answered, or ended too often.
        """
        end = self.launcher.poll(self.job_id) if self.job_id else None
        if end is None:
            return
        self.job_id = ""
        self.ends = self.ends + 1
        self._note(AttemptEventKind.ENDED, code=end.code, kind=end.kind)
        answered = (self.folder.path / paths.SERVER_ADDRESS).exists()
        logger.warning("the shared vLLM server has ended (exit code %d)", end.code)
        if not answered or self.ends > MOST_ENDS:
            how = "ended before it answered" if not answered else f"ended {self.ends} times"
            raise UserError(
                f"generation=vllm_shared: the sweep's vLLM server {how}; "
                f"{self.folder.path / paths.LOGS} says why. "
                "Trials resume from their checkpoints when the sweep's command is given again."
            )
        if is_used:
            self.start()

    def close(self, is_used: bool) -> None:
        """End it, unless trials continue without this controller; then it ends when they have sent
        nothing for an hour.
        """
        if self.job_id and not (is_used and self.launcher.outlives):
            self.launcher.cancel(self.job_id)
            note_cancelled(self.folder, self.number)
            (self.folder.path / paths.SERVER_ADDRESS).unlink(missing_ok=True)

    def _job(self, number: int) -> Job:
        """Return its job: one process, with all of the server's GPUs."""
        gpus = self.experiment.generation.vllm_shared_gpus
        cluster = self.experiment.cluster
        per_node = gpus if cluster.gpus_per_node else 0
        shape = replace(cluster, processes=gpus, nodes=1, gpus_per_node=per_node, tasks_per_node=1)
        return Job(self.folder.path, number, shape, starts_ranks=True, serves=True)

    def _note(self, event: AttemptEventKind, **content: Any) -> None:
        if not self.launcher.is_dry:
            self.folder.note_attempt(self.number, event, time=time.time(), **content)


def _differs(first: Experiment, item: Experiment) -> str:
    """Return why one server cannot serve both; empty if it can."""
    if not item.generation.vllm_shared_gpus:
        return "generation.vllm_shared_gpus: some trials share a vLLM server, and others do not"
    for path in SAME:
        name = path.partition(".")[2]
        one = getattr(first.model, name)
        other = getattr(item.model, name)
        if one != other:
            return (
                f"{path}={one} and {other}: the trials of a sweep share one vLLM server, "
                "which has one base model"
            )
    return ""


def _fit(sharing: list[Experiment], launcher: Launcher) -> int:
    """Return the adapters that the server holds, and let the launcher run no more trials at once
    than those suffice for.

    A trial samples from its newest adapter.
    """
    most = sharing[0].generation.vllm_max_loras
    if most is None:
        return int(launcher.slots)
    launcher.slots = min(launcher.slots, most)
    return most
