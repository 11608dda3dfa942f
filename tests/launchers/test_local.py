"""The local launcher over both kinds of processes: one suite, warm and fresh."""

import errno
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from command_server import share_warm_server
from grporecipe.errors import ExitCode, UserError
from grporecipe.files import append_line
from grposweep.config.compose import load_experiment, render_experiment
from grposweep.launchers.base import End, EndState, Job, LauncherBusy
from grposweep.launchers.local import (
    TRAINING,
    TRL,
    Local,
    build_processes,
    choose_gpus,
    gpu_order,
    visible_gpus,
)
from grposweep.process import SOURCE, ForkServer, SpawnedProcesses
from grposweep.schema import Cluster, Experiment, Generation
from support import is_running, wait_for


@pytest.fixture(params=["warm", "fresh"])
def local(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    """A launcher on the CPU."""
    share_warm_server(monkeypatch)
    launcher = Local(
        ForkServer(TRAINING) if request.param == "warm" else SpawnedProcesses(), [], slots=2
    )
    yield launcher
    launcher.close()


def trial(outputs: Path, name: str = "0000-a", **fake: object) -> Path:
    """A trial folder for the fake trainer: 50 steps."""
    folder = outputs / "trials" / name
    experiment = Experiment()
    experiment.trainer.kind = "fake"
    experiment.batch.per_device_train_batch_size = experiment.batch.gradient_accumulation_steps = 8
    experiment.schedule.max_steps = 50
    for name, value in fake.items():
        experiment.trainer.args[name] = value
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(render_experiment(experiment))
    append_line(folder / "attempts.jsonl", {"attempt": 0})
    return folder


def hanging(local: Local, outputs: Path) -> str:
    """An attempt that trains and never ends."""
    folder = trial(outputs, hang_at=2)
    job_id = local.submit(Job(folder, 0, Cluster()))
    wait_for((folder / "heartbeat").exists)
    return job_id


def ended(local: Local, job_id: str) -> int:
    """The exit code, once there is one."""
    codes: list[int] = []
    wait_for(
        lambda: (end := local.poll(job_id)) is not None and not codes.append(end.code), seconds=30
    )
    return codes[0]


def test_a_copy_of_the_code_without_the_warm_server_starts_fresh_processes(tmp_path: Path) -> None:
    """A rerun's copy may be of an earlier release; only ``python -m grposweep.train`` is promised
    forever.
    """
    experiment = Experiment()
    assert isinstance(build_processes(experiment), ForkServer)
    experiment.cluster.code = str(tmp_path)
    assert isinstance(build_processes(experiment), SpawnedProcesses)


def test_a_crash_has_its_code_and_its_words_in_the_log(local: Local, tmp_path: Path) -> None:
    """Exit code 1."""
    folder = trial(tmp_path, crash_at=3)
    assert ended(local, local.submit(Job(folder, 0, Cluster()))) == 1
    assert "staged" in (folder / "logs" / "rank-0.log").read_text()


def test_a_cancelled_attempt_is_ended_by_a_signal(local: Local, tmp_path: Path) -> None:
    """Deaf to everything else."""
    job_id = hanging(local, tmp_path)
    local.cancel(job_id)
    assert ended(local, job_id) == -9


def test_closing_ends_what_still_runs(local: Local, tmp_path: Path) -> None:
    """No process outlives its controller."""
    job_id = hanging(local, tmp_path)
    local.close()
    wait_for(lambda: not is_running(int(job_id.removeprefix("local-"))), seconds=5)


REFUSES = """
import os
fork = os.fork
def limited():
    if os.path.exists({full!r}):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = limited
"""


@pytest.mark.slow
def test_a_warm_server_that_can_start_no_process_now_keeps_those_that_run(tmp_path: Path) -> None:
    """A login node's limit of processes (ulimit -u), which root does not have. Later the trial
    starts.
    """
    full = tmp_path / "full"
    (tmp_path / "sitecustomize.py").write_text(REFUSES.format(full=str(full)))
    local = Local(
        ForkServer(TRAINING, environment={"PYTHONPATH": f"{tmp_path}:{SOURCE}"}), [], slots=2
    )
    jobs = [
        Job(trial(tmp_path, name, step_seconds=0.02), 0, Cluster()) for name in ("0000-a", "0001-b")
    ]
    first = local.submit(jobs[0])
    full.touch()
    with pytest.raises(LauncherBusy, match="Resource temporarily unavailable; 'ulimit -u'"):
        local.submit(jobs[1])
    full.unlink()
    second = local.submit(jobs[1])
    assert [ended(local, first), ended(local, second)] == [0, 0]
    local.close()


def test_a_trial_whose_process_cannot_start_now_leaves_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can start later."""
    local = Local(SpawnedProcesses(), ["0"], slots=1)
    job = Job(trial(tmp_path), 0, Cluster())

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(LauncherBusy, match="ulimit -u"):
        local.submit(job)
    monkeypatch.undo()
    assert ended(local, local.submit(job)) == 0


class Recorder(SpawnedProcesses):
    """Fresh processes whose variables are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.environments: list[Mapping[str, str]] = []

    def start(self, arguments: list[str], environment: Mapping[str, str], log: Path | None) -> int:
        """Keep them, and start the process."""
        self.environments.append(environment)
        return super().start(arguments, environment, log)

    @property
    def seen(self) -> list[str]:
        """The GPUs that each process sees."""
        return [environment["CUDA_VISIBLE_DEVICES"] for environment in self.environments]


@pytest.mark.slow
def test_gpus_are_divided_and_given_back(tmp_path: Path) -> None:
    """Two attempts at once see different GPUs; the third one gets what the first gave back."""
    recorder = Recorder()
    local = Local(recorder, ["5", "7"], slots=2)
    folders = [trial(tmp_path, f"000{n}-a") for n in range(3)]
    first, second = (local.submit(Job(folder, 0, Cluster())) for folder in folders[:2])
    assert ended(local, first) == 0
    third = local.submit(Job(folders[2], 0, Cluster()))
    assert recorder.seen == ["5", "7", "5"]
    assert ended(local, second) == ended(local, third) == 0


def test_ranks_see_all_gpus_of_their_trial_as_torchrun_shows_them(tmp_path: Path) -> None:
    """NCCL and vLLM's tensor parallelism look at the GPUs of the other ranks."""
    recorder = Recorder()
    local = Local(recorder, ["4", "5", "6", "7"], slots=2)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
    local.submit(Job(trial(tmp_path), 0, Cluster(processes=2)))
    local.close()
    told = [tuple(environment[name] for name in names) for environment in recorder.environments]
    assert told == [("0", "0", "2", "2", "4,5"), ("1", "1", "2", "2", "4,5")]


def test_ranks_have_the_users_variables(tmp_path: Path) -> None:
    """Those of cluster.environment."""
    recorder = Recorder()
    local = Local(recorder, ["0"], slots=1)
    local.submit(Job(trial(tmp_path), 0, Cluster(environment={"NCCL_DEBUG": "INFO"})))
    local.close()
    assert recorder.environments[0]["NCCL_DEBUG"] == "INFO"


@pytest.mark.slow
def test_a_trial_waits_until_enough_gpus_are_free(tmp_path: Path) -> None:
    """One of two is taken; a trial of two ranks starts when it is given back."""
    local = Local(Recorder(), ["0", "1"], slots=2)
    short, wide = (trial(tmp_path, f"000{n}-a") for n in range(2))
    first = local.submit(Job(short, 0, Cluster()))
    with pytest.raises(LauncherBusy, match="waits for 2 GPUs, and 1 of 2 are free"):
        local.submit(Job(wide, 0, Cluster(processes=2)))
    with pytest.raises(UserError, match=r"cluster\.processes=3: .* this machine has 2"):
        local.submit(Job(wide, 0, Cluster(processes=3)))
    assert ended(local, first) == 0
    local.submit(Job(wide, 0, Cluster(processes=2)))
    local.close()


SERVED = Generation(use_vllm=True, vllm_mode="server", vllm_gpus=1)


def served(outputs: Path, command: str, processes: int = 1) -> Path:
    """A trial folder of the fake trainer, whose server is a shell line."""
    folder = trial(outputs, step_seconds=0.02)
    experiment = load_experiment(folder / "config.yaml")
    experiment.generation = replace(SERVED, vllm_server_command=command)
    experiment.cluster.processes = processes
    (folder / "config.yaml").write_text(render_experiment(experiment))
    return folder


@pytest.mark.slow
def test_a_trial_has_a_server_on_gpus_of_its_own_that_ends_with_it(tmp_path: Path) -> None:
    """Ranks know where it is; its GPUs are given back once it has ended."""
    recorder = Recorder()
    local = Local(recorder, ["0", "1", "2"], slots=1)
    folder = served(tmp_path, "echo on $GRPOSWEEP_VLLM_PORT; sleep 60", processes=2)
    assert ended(local, local.submit(Job(folder, 0, Cluster(processes=2), SERVED))) == 0
    assert recorder.seen == ["2", "0,1", "0,1"]
    port = int((folder / "logs" / "vllm.log").read_text().removeprefix("on "))
    rank = recorder.environments[1]
    assert rank["GRPOSWEEP_VLLM_SERVER"] == f"http://127.0.0.1:{port}"
    assert {"localhost", "127.0.0.1"} <= set(rank["no_proxy"].split(","))
    assert port - 1 == int(rank["MASTER_PORT"]) == int(rank["GRPOSWEEP_PORT"])
    # all three GPUs
    local.submit(Job(trial(tmp_path, "0001-b"), 0, Cluster(processes=3)))
    local.close()


@pytest.mark.slow
def test_a_server_that_ends_early_ends_its_trial(tmp_path: Path) -> None:
    """Its ranks would wait for completions."""
    local = Local(SpawnedProcesses(), ["0", "1"], slots=1)
    folder = served(tmp_path, "exit 7")
    job_id = local.submit(Job(folder, 0, Cluster(), SERVED))
    ends: list[End] = []
    wait_for(lambda: (end := local.poll(job_id)) is not None and not ends.append(end), seconds=30)
    assert ends[0].kind is EndState.SERVER_ENDED
    assert not (folder / "result.json").exists()


CONTROLLER = """
import sys, time
from pathlib import Path
from grposweep.process import SpawnedProcesses
folder = Path(sys.argv[1])
SpawnedProcesses().start(["serve", str(folder)], {}, folder / "vllm.log")
time.sleep(60)
"""


def test_the_engines_of_a_server_end_with_a_killed_controller(tmp_path: Path) -> None:
    """The kernel ends the server alone; its engine would keep the GPU's memory."""
    folder = served(tmp_path, f"sleep 60 & echo $! > {tmp_path}/engine; wait")
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(folder)])
    engine = tmp_path / "engine"
    wait_for(lambda: engine.exists() and engine.read_text().endswith("\n"), seconds=30)
    assert is_running(int(engine.read_text()))
    controller.kill()
    controller.wait()
    wait_for(lambda: not is_running(int(engine.read_text())), seconds=10)


class Staged(SpawnedProcesses):
    """Processes that end when a test says so; ``full`` is how many start before the disk is
    full.
    """

    def __init__(self, full: int = 9) -> None:
        super().__init__()
        self.full, self.started, self.codes = full, 0, dict[int, int]()
        self.told: Mapping[str, str] = {}

    def start(self, arguments: list[str], environment: Mapping[str, str], log: Path | None) -> int:  # noqa: ARG002
        """Return a number that no process can have."""
        if self.started == self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.started = self.started + 1
        self.told = environment
        return 2**30 + self.started

    def poll(self, pid: int, timeout: float = 0.0) -> int | None:  # noqa: ARG002
        """Return what the test has set."""
        return self.codes.get(pid - 2**30)


@pytest.mark.parametrize(("first", "end"), [(2, 1), (1, ExitCode.SERVER_ENDED)])
def test_the_process_that_ended_first_is_the_cause_though_the_others_are_killed(
    tmp_path: Path, first: int, end: int
) -> None:
    """A killed server may be gone before a killed rank, which gives its GPU's memory back."""
    staged = Staged()
    local = Local(staged, ["0", "1", "2"], slots=1)
    # the server, then two ranks
    job_id = local.submit(Job(tmp_path, 0, Cluster(processes=2), SERVED))
    staged.codes[first] = 1
    assert local.poll(job_id) is None
    for killed in (1, 2, 3):
        staged.codes.setdefault(killed, -9)
        ended = local.poll(job_id)
    assert ended is not None
    assert ended.code == end


def test_an_attempt_that_cannot_start_gives_its_gpus_back(tmp_path: Path) -> None:
    """The controller tries again while a disk is full."""
    staged = Staged(full=1)
    local = Local(staged, ["0", "1"], slots=1)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            local.submit(Job(tmp_path, 0, Cluster(), SERVED))
        staged.started = 0
    staged.full = 9
    local.submit(Job(tmp_path, 0, Cluster(environment={"no_proxy": "intern"}), SERVED))
    assert staged.told["no_proxy"] == "intern,localhost,127.0.0.1"


def test_a_server_without_gpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs for two ranks leave none."""
    experiment = Experiment(generation=SERVED, cluster=Cluster(processes=2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(
        UserError,
        match=r"vllm_gpus=1 for its server, and this machine has 2\. Set cluster\.processes=1",
    ):
        Local.build(experiment, tmp_path).admit(experiment)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(
        UserError, match=r"none is left for the vLLM server.*generation\.vllm_server_base_url"
    ):
        Local.build(experiment, tmp_path).admit(experiment)


@pytest.mark.parametrize(
    ("free", "count", "group"),
    [
        ([0, 1, 2, 3], 2, [0, 1]),
        # 1 and 2 would split two pairs
        ([1, 2, 3], 2, [2, 3]),
        ([0, 2, 3, 5], 2, [2, 3]),
        ([1, 3, 6], 2, [1, 3]),
        ([3], 1, [3]),
    ],
)
def test_a_trial_gets_neighbouring_gpus(free: list[int], count: int, group: list[int]) -> None:
    """Pairs and quartets share NVLink and NUMA nodes; distant GPUs are better than waiting."""
    assert choose_gpus(free, count) == group


@pytest.mark.parametrize(
    ("visible", "processes", "parallel", "slots"),
    [("0,1,2,3,4", 2, None, 2), ("0,1,2,3,4", 2, 4, 2), ("0,1,2,3", 1, None, 4), ("", 1, None, 1)],
)
def test_all_gpus_are_used_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    visible: str,
    processes: int,
    parallel: int | None,
    slots: int,
) -> None:
    """As many trials at once as GPUs suffice for, also if search.parallel is more; one without a
    GPU.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    experiment = Experiment()
    experiment.cluster.processes = processes
    experiment.search.parallel = parallel
    assert Local.build(experiment, tmp_path).slots == slots


@pytest.mark.parametrize(
    ("visible", "found"), [("", []), ("-1", []), ("3", ["3"]), ("0,2", ["0", "2"])]
)
def test_gpus_are_those_that_the_environment_shows(
    monkeypatch: pytest.MonkeyPatch, visible: str, found: list[str]
) -> None:
    """CUDA_VISIBLE_DEVICES decides; cluster.gpus=0 switches them off."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus("auto") == found
    assert visible_gpus(0) == []


Machine = Callable[..., None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """``machine("0, GPU-a, 5, 81559", processes="GPU-a, 77, 900")``: what nvidia-smi lists here."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*gpus: str, processes: str = "", tool: str = "nvidia-smi") -> None:
        lines = ["#!/bin/sh", 'case "$1" in', f"*compute-apps*) echo '{processes}' ;;"]
        lines += [f"*query-gpu*) printf '%s\\n' {shlex.join(gpus)} ;;", "esac"]
        (tools / tool).write_text("\n".join(lines))
        (tools / tool).chmod(0o755)

    return install


TWO = ("0, GPU-a, 5, 81559", "1, GPU-b, 5, 81559")


def test_a_gpu_on_which_another_process_holds_memory_is_left_out(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message names them and says how to use them anyway; neither our own processes nor desktop
    programs count.
    """
    machine(*TWO, processes=f"GPU-a, 999999, 900\nGPU-b, {os.getppid()}, 900\nGPU-b, 999998, 100")
    assert visible_gpus("auto") == ["1"]
    assert gpu_order() == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    said = capfd.readouterr().err
    assert "GPU 0: process 999999" in said
    assert "Set CUDA_VISIBLE_DEVICES to use them" in said


def test_much_used_memory_counts_where_processes_cannot_be_listed(
    machine: Machine,
) -> None:
    """As in a container; what a display takes does not."""
    machine("0, GPU-a, 1200, 24564", "1, GPU-b, 20000, 24564")
    assert visible_gpus("auto") == ["0"]
    machine(
        "0, GPU-a, 1200, 24564", "1, GPU-b, 20000, 24564", processes=f"GPU-b, {os.getpid()}, 19000"
    )
    # most of it is ours
    assert visible_gpus("auto") == ["0", "1"]


def test_a_machine_whose_gpus_are_all_taken_is_refused(machine: Machine) -> None:
    """Training on the CPU instead would be no favour."""
    machine(*TWO, processes="GPU-a, 999998, 900\nGPU-b, 999999, 900")
    with pytest.raises(
        UserError, match=r"CUDA_VISIBLE_DEVICES=0,1 to share these GPUs, or cluster\.gpus=0"
    ):
        visible_gpus("auto")
    assert visible_gpus(0) == []


def test_more_free_gpus_than_there_are_cannot_be_had(machine: Machine) -> None:
    """The message names how many are free."""
    machine(*TWO, processes="GPU-a, 999999, 900")
    assert visible_gpus(1) == ["1"]
    with pytest.raises(UserError, match=r"cluster\.gpus=2: only 1 are free"):
        visible_gpus(2)


def test_a_driver_that_fails_is_no_silent_training_on_the_cpu(
    machine: Machine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Missing GPUs are an error if they are required, else one line. A driver without GPUs is a
    machine without.
    """
    machine()
    tool = tmp_path / "tools" / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Driver/library version mismatch'\nexit 18\n")
    with pytest.raises(
        UserError, match=r"cluster\.gpus=2: nvidia-smi fails \(Driver/library version mismatch\)"
    ):
        visible_gpus(2)
    assert visible_gpus("auto") == []
    assert capfd.readouterr().err.count("Trials run on the CPU") == 1
    tool.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert visible_gpus("auto") == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi"])
def test_a_machine_with_amd_gpus_is_refused_unless_they_are_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    """They are not listed, and all trials would share them."""
    machine(tool=tool)
    with pytest.raises(UserError, match=f"this machine has {tool}.*CUDA_VISIBLE_DEVICES=0,1"):
        visible_gpus("auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_gpus("auto") == ["0"]
    assert gpu_order() == {}


def warm_server(code: Path, server: str, main: str = "") -> ForkServer:
    """A server of the test's own, and what a process with a new interpreter runs."""
    package = code / "grposweep" / "train"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    files = {"__init__.py": "", "warm_server.py": server, "__main__.py": main}
    for name, text in files.items():
        (package / name).write_text(text)
    return ForkServer([], code=code)


SERVER = """
import sys
for answer in ['{"started": 7}\\n{"ended": 7, "code": 0}', '{"started": 7}']:
    sys.stdin.readline()
    print(answer, flush=True)
sys.stdin.read()
"""


def test_a_process_that_gets_the_number_of_an_ended_one_has_not_ended(tmp_path: Path) -> None:
    """Process numbers come round again in long sweeps. A server of the test's own gives two
    processes the same one.
    """
    warm = warm_server(tmp_path, SERVER)
    assert warm.start([], {}, None) == 7
    assert warm.poll(7, timeout=10.0) == 0
    assert warm.start([], {}, None) == 7
    assert warm.poll(7) is None
    warm.close()


# What bitsandbytes 0.50 does when it is imported on a machine with a GPU; torch's own start of CUDA
# would fail here.
BITSANDBYTES = """
import torch

torch.cuda._lazy_init = lambda: setattr(torch.cuda, "_initialized", True)
torch.cuda._lazy_init()
"""


@pytest.mark.slow
def test_a_warm_server_whose_imports_start_cuda_gives_way_to_fresh_processes_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """TRL imports bitsandbytes if it is installed. Here it is a stand-in, and the trials see no
    CUDA.
    """
    installed = tmp_path / "installed"
    (installed / "bitsandbytes").mkdir(parents=True)
    (installed / "bitsandbytes" / "__init__.py").write_text(BITSANDBYTES)
    (installed / "bitsandbytes-0.50.2.dist-info").mkdir()
    (installed / "bitsandbytes-0.50.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bitsandbytes\nVersion: 0.50.2\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(installed))
    local = Local(ForkServer([*TRAINING, *TRL]), [], slots=2)
    folders = [trial(tmp_path, name) for name in ("0000-a", "0001-b")]
    jobs = [local.submit(Job(folder, 0, Cluster())) for folder in folders]
    assert [ended(local, job) for job in jobs] == [0, 0]
    local.close()
    assert capfd.readouterr().err.count("cluster.warm: ") == 1


SAYS_NO = """
import sys
sys.stdin.readline()
print('{"cannot_fork": "CUDA is there"}', flush=True)
"""


def test_processes_that_cannot_be_forked_are_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each with a new interpreter, its log and its exit code; a deaf one ends when the server is
    closed.
    """
    main = (
        "import sys, time; print(sys.argv[1], flush=True); time.sleep(float(sys.argv[1])); "
        "sys.exit(3)"
    )
    warm = warm_server(tmp_path, SAYS_NO, main)
    short, long = (
        warm.start([seconds], {}, tmp_path / f"{seconds}.log") for seconds in ("0", "60")
    )
    assert warm.poll(short, timeout=10.0) == 3
    assert (tmp_path / "0.log").read_text() == "0\n"
    assert warm.poll(long) is None
    warm.close()
    assert not is_running(long)
    assert capfd.readouterr().err.count("CUDA is there") == 1


KILLED = """
import os, sys
sys.stdin.readline()
print('{"started": 7}', flush=True)
sys.stdin.readline()
os.kill(os.getpid(), 9)
"""


def test_a_warm_server_that_is_killed_gives_way_to_fresh_processes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its processes died with it, further ones start, and the end is clean."""
    warm = warm_server(tmp_path, KILLED, "exit(3)")
    first = warm.start([], {}, None)
    second = warm.start([], {}, None)
    assert warm.poll(first) == -signal.SIGKILL
    assert warm.lost(first)
    assert not warm.lost(second)
    assert warm.poll(second, timeout=10.0) == 3
    assert warm.poll(warm.start([], {}, None), timeout=10.0) == 3
    warm.close()
    assert "its server ended with code -9" in capfd.readouterr().err


def test_the_end_of_a_killed_warm_server_is_clean(tmp_path: Path) -> None:
    """What it was asked last is still in the pipe."""
    warm = warm_server(tmp_path, KILLED)
    warm.start([], {}, None)
    # the test's own death of it
    warm._server.kill()
    warm._server.wait()
    assert warm._server.stdin is not None
    warm._server.stdin.write(b"asked and never sent")
    warm.close()


@pytest.mark.slow
def test_signals_that_ask_for_a_stop_end_ranks_in_order_and_not_their_server(
    tmp_path: Path,
) -> None:
    """A shutdown sends them to all processes at once. The server would take its children with
    it.
    """
    local = Local(ForkServer(TRAINING), [], slots=2)
    folders = [trial(tmp_path, name, step_seconds=0.05) for name in ("0000-a", "0001-b")]
    jobs = [local.submit(Job(folder, 0, Cluster())) for folder in folders]
    server = local.processes._server  # type: ignore[attr-defined]
    for pid in (server.pid, *(int(job.removeprefix("local-")) for job in jobs)):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
    assert [ended(local, job) for job in jobs] == [ExitCode.STOPPED] * 2
    assert server.poll() is None
    local.close()


@pytest.mark.slow
def test_the_death_of_the_warm_server_is_no_failure_of_its_trials(tmp_path: Path) -> None:
    """Both die with it. Each gets another attempt, in a process of its own."""
    local = Local(ForkServer(TRAINING), [], slots=2)
    folders = [trial(tmp_path, name, step_seconds=0.05) for name in ("0000-a", "0001-b")]
    jobs = [local.submit(Job(folder, 0, Cluster())) for folder in folders]
    local.processes._server.kill()  # type: ignore[attr-defined]
    ends: list[End] = []
    for job in jobs:
        wait_for(
            lambda job=job: (end := local.poll(job)) is not None and not ends.append(end),
            seconds=30,
        )
    assert [(end.kind, end.again) for end in ends] == [(EndState.FORK_SERVER_DIED, True)] * 2
    again = local.submit(Job(trial(tmp_path, "0002-c"), 1, Cluster()))
    assert ended(local, again) == 0
    local.close()


def test_a_rank_that_the_kernel_kills_while_memory_is_short_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts what it kills for that reason; without such a kill it was a user or a
    program.
    """
    counters = tmp_path / "vmstat"
    monkeypatch.setattr("grposweep.process.KERNEL_COUNTERS", counters)
    kinds = []
    for after in (3, 4):
        counters.write_text("pgfault 12\noom_kill 3\n")
        staged = Staged()
        local = Local(staged, [], slots=1)
        job_id = local.submit(Job(tmp_path, 0, Cluster()))
        counters.write_text(f"pgfault 15\noom_kill {after}\n")
        staged.codes[1] = -9
        end = local.poll(job_id)
        assert end is not None
        kinds.append(end.kind)
    assert kinds == [EndState.NONE, EndState.OUT_OF_MEMORY]
