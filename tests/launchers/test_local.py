"""The local launcher over both kinds of processes: one suite, warm and fresh."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from grposweep.config.compose import render_experiment
from grposweep.errors import UserError
from grposweep.files import append_line, read_json
from grposweep.launchers.base import Job
from grposweep.launchers.local import TRAINING, TRL, Local, build_processes, visible_gpus
from grposweep.process import ForkServer, SpawnedProcesses
from grposweep.schema import Cluster, Experiment
from support import is_running, wait_for


@pytest.fixture(params=["warm", "fresh"])
def local(request: pytest.FixtureRequest) -> Iterator[Local]:
    """A launcher on the CPU."""
    launcher = Local(ForkServer(TRAINING) if request.param == "warm" else SpawnedProcesses(), [], slots=2)
    yield launcher
    launcher.close()


def trial(folder: Path, **fake: object) -> Path:
    """A trial folder for the fake trainer: 50 steps."""
    experiment = Experiment()
    experiment.trainer.kind = "fake"
    experiment.batch.per_device_train_batch_size = experiment.batch.gradient_accumulation_steps = 8
    experiment.schedule.max_steps = 50
    for name, value in fake.items():
        setattr(experiment.trainer.fake, name, value)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(render_experiment(experiment))
    append_line(folder / "attempts.jsonl", {"attempt": 0})
    return folder


def ended(local: Local, job_id: str) -> int:
    """The exit code, once there is one."""
    codes: list[int] = []
    wait_for(lambda: (end := local.poll(job_id)) is not None and not codes.append(end.code), seconds=30)
    return codes[0]


def test_a_copy_of_the_code_without_the_warm_server_starts_fresh_processes(tmp_path: Path) -> None:
    """A rerun's copy may be of an earlier release; only ``python -m grposweep.train`` is promised for ever."""
    experiment = Experiment()
    assert isinstance(build_processes(experiment), ForkServer)
    experiment.cluster.code = str(tmp_path)
    assert isinstance(build_processes(experiment), SpawnedProcesses)


def test_an_attempt_runs_to_its_end(local: Local, tmp_path: Path) -> None:
    """Exit code 0 and a result."""
    folder = trial(tmp_path / "trials" / "0000-a")
    assert ended(local, local.submit(Job(folder, 0, Cluster()))) == 0
    assert read_json(folder / "result.json")["status"] == "finished"


def test_a_crash_has_its_code_and_its_words_in_the_log(local: Local, tmp_path: Path) -> None:
    """Exit code 1."""
    folder = trial(tmp_path / "trials" / "0000-a", crash_at=3)
    assert ended(local, local.submit(Job(folder, 0, Cluster()))) == 1
    assert "staged" in (folder / "logs" / "rank-0.log").read_text()


def test_a_cancelled_attempt_is_ended_by_a_signal(local: Local, tmp_path: Path) -> None:
    """Deaf to everything else."""
    folder = trial(tmp_path / "trials" / "0000-a", hang_at=2)
    job_id = local.submit(Job(folder, 0, Cluster()))
    wait_for(lambda: (folder / "heartbeat").exists())
    local.cancel(job_id)
    assert ended(local, job_id) == -9


def test_closing_ends_what_still_runs(local: Local, tmp_path: Path) -> None:
    """No process outlives its controller."""
    folder = trial(tmp_path / "trials" / "0000-a", hang_at=2)
    job_id = local.submit(Job(folder, 0, Cluster()))
    wait_for(lambda: (folder / "heartbeat").exists())
    local.close()
    wait_for(lambda: not is_running(int(job_id.removeprefix("local-"))), seconds=5)


class Recorder(SpawnedProcesses):
    """Fresh processes that remember what each was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def start(self, arguments: list[str], environment: Mapping[str, str], log: Path | None) -> int:
        """As ever, remembered."""
        self.told.append(environment["CUDA_VISIBLE_DEVICES"])
        return super().start(arguments, environment, log)


def test_gpus_are_divided_and_given_back(tmp_path: Path) -> None:
    """Two attempts at once see different GPUs; the third one gets what the first gave back."""
    recorder = Recorder()
    local = Local(recorder, ["5", "7"], slots=2)
    folders = [trial(tmp_path / "trials" / f"000{n}-a") for n in range(3)]
    first, second = (local.submit(Job(folder, 0, Cluster())) for folder in folders[:2])
    assert ended(local, first) == 0
    third = local.submit(Job(folders[2], 0, Cluster()))
    assert recorder.told == ["5", "7", "5"]
    assert ended(local, second) == ended(local, third) == 0


def test_more_ranks_than_gpus_are_bad_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One message that names what would fit."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    experiment = Experiment()
    experiment.cluster.processes = 4
    with pytest.raises(UserError, match=r"cluster\.processes=2"):
        Local.build(experiment, tmp_path)


def test_fewer_trials_run_at_once_than_asked_where_gpus_are_few(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Five GPUs, two a trial, four at once asked for: two."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    experiment = Experiment()
    experiment.cluster.processes = 2
    experiment.search.parallel = 4
    assert Local.build(experiment, tmp_path).slots == 2


@pytest.mark.parametrize(("visible", "found"), [("", []), ("-1", []), ("3", ["3"]), ("0,2", ["0", "2"])])
def test_gpus_are_those_that_the_environment_shows(
    monkeypatch: pytest.MonkeyPatch, visible: str, found: list[str]
) -> None:
    """CUDA_VISIBLE_DEVICES decides; cluster.gpus=0 switches them off."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus("auto") == found
    assert visible_gpus(0) == []


SERVER = """
import sys
for answer in ['{"started": 7}\\n{"ended": 7, "code": 0}', '{"started": 7}']:
    sys.stdin.readline()
    print(answer, flush=True)
sys.stdin.read()
"""


def test_a_process_that_gets_the_number_of_an_ended_one_has_not_ended(tmp_path: Path) -> None:
    """Process numbers come round again in long sweeps. A server of the test's own gives two processes the same one."""
    (tmp_path / "grposweep" / "train").mkdir(parents=True)
    for name, text in {"__init__.py": "", "train/__init__.py": "", "train/warm_server.py": SERVER}.items():
        (tmp_path / "grposweep" / name).write_text(text)
    warm = ForkServer([], code=tmp_path)
    assert warm.start([], {}, None) == 7
    assert warm.poll(7, timeout=10.0) == 0
    assert warm.start([], {}, None) == 7
    assert warm.poll(7) is None
    warm.close()


# What bitsandbytes 0.50 does when it is imported on a machine with a GPU; torch's own start of CUDA would fail here.
BITSANDBYTES = """
import torch

torch.cuda._lazy_init = lambda: setattr(torch.cuda, "_initialized", True)
torch.cuda._lazy_init()
"""


@pytest.mark.slow
def test_a_warm_server_whose_imports_start_cuda_gives_way_to_fresh_processes_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """TRL imports bitsandbytes wherever it is installed. Here it is a stand-in, and the trials see no CUDA."""
    installed = tmp_path / "installed"
    (installed / "bitsandbytes").mkdir(parents=True)
    (installed / "bitsandbytes" / "__init__.py").write_text(BITSANDBYTES)
    (installed / "bitsandbytes-0.50.2.dist-info").mkdir()
    (installed / "bitsandbytes-0.50.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bitsandbytes\nVersion: 0.50.2\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(installed))
    local = Local(ForkServer([*TRAINING, *TRL]), [], slots=2)
    folders = [trial(tmp_path / "trials" / name) for name in ("0000-a", "0001-b")]
    jobs = [local.submit(Job(folder, 0, Cluster())) for folder in folders]
    assert [ended(local, job) for job in jobs] == [0, 0]
    local.close()
    assert capfd.readouterr().err.count("cluster.warm: ") == 1


SAYS_NO = """
import sys
sys.stdin.readline()
print('{"cannot_fork": "CUDA is there"}', flush=True)
"""


def test_processes_that_cannot_be_forked_are_started(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each with a new interpreter, its log and its exit code; a deaf one ends when the server is closed."""
    (tmp_path / "grposweep" / "train").mkdir(parents=True)
    main = "import sys, time; print(sys.argv[1], flush=True); time.sleep(float(sys.argv[1])); sys.exit(3)"
    texts = {"__init__.py": "", "train/__init__.py": "", "train/warm_server.py": SAYS_NO, "train/__main__.py": main}
    for name, text in texts.items():
        (tmp_path / "grposweep" / name).write_text(text)
    warm = ForkServer([], code=tmp_path)
    short, long = (warm.start([seconds], {}, tmp_path / f"{seconds}.log") for seconds in ("0", "60"))
    assert warm.poll(short, timeout=10.0) == 3
    assert (tmp_path / "0.log").read_text() == "0\n"
    assert warm.poll(long) is None
    warm.close()
    assert not is_running(long)
    assert capfd.readouterr().err.count("CUDA is there") == 1
