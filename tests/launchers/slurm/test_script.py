"""The sbatch script, as a user reads it: a golden file whose diff shows every change."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grposweep.config.compose import to_experiment
from grposweep.launchers.base import Job
from grposweep.launchers.dry_run import DryRun
from grposweep.launchers.slurm._script import (
    mount_sources,
    python_command,
    render_script,
    service_options,
    submit_environment,
)
from grposweep.launchers.slurm._sweep_jobs import write_controller
from grposweep.process import PROJECT
from grposweep.schema import Cluster, Experiment, Generation
from support import shellcheck

GOLDEN = Path(__file__).parent
ACCEPT = "ACCEPT_SCRIPT=1 python -m pytest tests/launchers/slurm/test_script.py"
EVERYTHING = Cluster(
    kind="slurm",
    nodes=2,
    gpus_per_node=4,
    processes=8,
    cpus_per_gpu=6,
    threads=2,
    mem_gb=200,
    walltime_min=240,
    partition="gpu",
    account="lab",
    qos="high",
    constraint="a100|h100",
    exclude="n[3-4]",
    setup=["module load cuda"],
    container=["--container-image=/images/a b.sqsh"],
    extra=["--exclusive"],
    python="/opt/venv/bin/python",
    gres_type="a100",
    environment={"NCCL_SOCKET_IFNAME": "ib0", "NOTE": "it's here"},
)


SERVER = Generation(use_vllm=True, vllm_mode="server", vllm_gpus=2, vllm_tensor_parallel_size=2)
ONE_NODE = Cluster(
    kind="slurm",
    gpus_per_node=8,
    processes=6,
    cpus_per_gpu=6,
    gres_type="h100",
    python="apptainer exec --nv --bind '/my data' image.sif python",
)
LAST_NODE = Cluster(
    kind="slurm", nodes=3, gpus_per_node=2, processes=4, cpus_per_gpu=6, python="python"
)
SCRIPTS = {
    "trial.sbatch": (EVERYTHING, Generation()),
    "vllm_one_node.sbatch": (ONE_NODE, SERVER),
    "vllm_last_node.sbatch": (LAST_NODE, SERVER),
}


def check_syntax(script: str) -> None:
    """Let bash read a script without running it."""
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def rendered(folder: Path, cluster: Cluster) -> str:
    """The script of a trial in the sweep's own folder."""
    return render_script(Job(folder, 0, cluster), folder, folder)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_the_one_that_was_read_last(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes with every option set; a vLLM server on two of a node's GPUs, and on the last of
    three nodes.
    """
    monkeypatch.chdir("/")
    sweep = Path("/runs/a sweep")
    (cluster, generation) = SCRIPTS[name]
    script = render_script(
        Job(sweep / "trials" / "0007-3f9a1c", 2, cluster, generation),
        sweep,
        sweep / "code" / "7be1",
    )
    if os.environ.get("ACCEPT_SCRIPT"):
        (GOLDEN / name).write_text(script)
    assert script == (GOLDEN / name).read_text(), f"read the difference; to accept it: {ACCEPT}"


@pytest.mark.parametrize(
    ("cluster", "generation"),
    [*SCRIPTS.values(), (Cluster(kind="slurm"), Generation())],
    ids=[*SCRIPTS, "nothing"],
)
def test_the_script_is_valid_shell(
    cluster: Cluster, generation: Generation, tmp_path: Path
) -> None:
    """Also for hostile folders."""
    folder = tmp_path / 'it\'s "x" %j $HOME `id`\nnew line' / "trials" / "0007-3f9a1c"
    script = render_script(Job(folder, 0, cluster, generation), folder.parent.parent, folder)
    check_syntax(script)
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert not [line for line in lines if "%" in line or "'" in line]


def test_the_server_that_trials_share_is_a_job_that_says_where_it_is(tmp_path: Path) -> None:
    """One process with all of its GPUs, at the address by which Slurm reaches its node."""
    cluster = Cluster(kind="slurm", gpus_per_node=2, processes=2)
    script = render_script(
        Job(tmp_path, 0, cluster, starts_ranks=True, serves=True), tmp_path, tmp_path
    )
    assert f"-m grposweep.train serve {tmp_path} &" in script
    assert script.index("GRPOSWEEP_ADDRESS=$(address_of") < script.index("srun --export")
    assert {"#SBATCH --gres=gpu:2", "#SBATCH --ntasks-per-node=1"} <= set(script.splitlines())
    check_syntax(script)


def test_a_job_inherits_nothing_of_the_job_that_submits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller may itself be a job; a user's default account counts where the configuration
    names none.
    """
    for name in (
        "SLURM_NTASKS",
        "SBATCH_TIMELIMIT",
        "SBATCH_ACCOUNT",
        "SBATCH_PARTITION",
        "RANK",
        "SLURM_CONF",
    ):
        monkeypatch.setenv(name, "outer")
    found = submit_environment(Cluster(kind="slurm", partition="gpu"))
    assert {name for name, value in found.items() if value == "outer"} == {
        "SLURM_CONF",
        "SBATCH_ACCOUNT",
    }
    assert str(PROJECT / "src") in found["PYTHONPATH"]


PORTS = {"32768 60999": (10000, 32768), "10000 60000": (60001, 65536), "1024 65000": (10000, 30000)}


@pytest.mark.parametrize("outgoing", PORTS)
def test_ports_are_none_that_outgoing_connections_take(outgoing: str, tmp_path: Path) -> None:
    """Three for each job; on a system that leaves none, any."""
    (tmp_path / "range").write_text(outgoing.replace(" ", "\t") + "\n")
    script = rendered(tmp_path, Cluster(kind="slurm"))
    start = script.index("read -r first_outgoing")
    end = script.index("srun --export")
    block = script[start:end].replace(
        "/proc/sys/net/ipv4/ip_local_port_range", str(tmp_path / "range")
    )
    first, end_ = PORTS[outgoing]
    found = set()
    for job in (71234, 71235, 99999):
        text = f"set -euo pipefail; SLURM_JOB_ID={job}; {block}\necho $GRPOSWEEP_PORT"
        port = int(
            subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True).stdout
        )
        found |= {port, port + 1, port + 2}
    assert len(found) == 9
    assert first <= min(found) <= max(found) < end_


TOOLS = {
    "scontrol": "echo n1",
    "sinfo": "echo localhost",
    "sleep": "/bin/sleep 0.05",
    "srun": """
name=ranks
[[ "$*" == *' serve '* ]] && name=server
{ echo "$*"; env; } >"$STEPS/$name"
[[ $name == ranks ]] || exec "$PYTHON" -S "$STUB"
""",
}
STUB = """
import http.server, os
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("", int(os.environ["GRPOSWEEP_VLLM_PORT"])), Answers).serve_forever()
"""


def test_a_server_and_its_clients_know_their_addresses_and_no_proxy_stands_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole script, on stand-ins for Slurm's tools and for the server."""
    (tmp_path / "stub.py").write_text(STUB)
    for name, text in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / name).chmod(0o755)
    job = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "n1",
        "no_proxy": "own.net",
        "http_proxy": "http://x:1",
    }
    place = {"STEPS": str(tmp_path), "STUB": str(tmp_path / "stub.py"), "PYTHON": sys.executable}
    (tmp_path / "trials" / "0007-3f9a1c" / "logs").mkdir(parents=True)
    # a folder that is there
    cluster = replace(ONE_NODE, python=f"apptainer exec --nv --bind {tmp_path} image.sif python")
    script = render_script(
        Job(tmp_path / "trials" / "0007-3f9a1c", 0, cluster, SERVER), tmp_path, tmp_path
    )
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **job, **place}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, cwd=tmp_path, check=False, timeout=60
    )
    assert done.returncode == 0
    ranks, server = ((tmp_path / name).read_text().splitlines() for name in ("ranks", "server"))
    assert {
        "no_proxy=own.net,localhost,localhost,127.0.0.1",
        "NO_PROXY=own.net,localhost,localhost,127.0.0.1",
    } < set(ranks)
    assert "VLLM_HOST_IP=127.0.0.1" in server
    assert not [line for line in ranks if line.startswith("VLLM_HOST_IP")]
    assert "--export=ALL" in ranks[0]
    assert "--gres=gpu:h100:2" in server[0]
    assert "--gres=gpu:h100:6" in ranks[0]
    assert (
        f"apptainer exec --nv --bind {tmp_path} image.sif python -P -m grposweep.train serve"
        in server[0]
    )


def test_jobs_that_do_not_train_have_their_own_partition_and_ask_for_no_gpu(tmp_path: Path) -> None:
    """GPU partitions often refuse them; what the trials' jobs ask for beyond their shape may be
    GPUs.
    """
    cluster = Cluster(
        kind="slurm",
        partition="gpu",
        account="lab",
        qos="high",
        constraint="a100",
        mem_gb=500,
        gres_type="a100",
        service_partition="cpu",
        service_mem_gb=16,
    )
    options = service_options(cluster, "x")
    assert {"--partition=cpu", "--account=lab", "--mem=16G"} < set(options)
    assert not [
        option for option in options if option.startswith(("--gres", "--qos", "--constraint"))
    ]
    assert {"--partition=gpu", "--qos=high"} < set(
        service_options(replace(cluster, service_partition=None), "x")
    )


def test_a_path_with_blanks_is_one_word(tmp_path: Path) -> None:
    """If there is such a file; other text is a command of several words."""
    (tmp_path / "my python").touch()
    assert (
        python_command(Cluster(python=str(tmp_path / "my python"))) == f"'{tmp_path}/my python' -P"
    )
    assert (
        python_command(Cluster(python="apptainer exec a.sif python"))
        == "apptainer exec a.sif python -P"
    )


def test_the_guides_apptainer_command_makes_a_script_that_starts_ranks_in_the_image(
    tmp_path: Path,
) -> None:
    """The words of docs/guides/slurm.md, as a dry run renders them."""
    page = (PROJECT / "docs" / "guides" / "slurm.md").read_text()
    command = page.partition("interpreter is several words:\n\n```sh\n")[2].partition("```")[0]
    words = [
        word
        for word in shlex.split(command)
        if word.startswith(("cluster.python=", "cluster.setup="))
    ]
    cluster = to_experiment(OmegaConf.from_dotlist(["cluster.kind=slurm", *words])).cluster
    script = rendered(tmp_path, cluster)
    check_syntax(script)
    assert "\nmodule load apptainer\n" in script
    assert (
        "\n  apptainer exec --nv --bind /scratch /images/grpo.sif python -P -m grposweep.train "
        f"{tmp_path} &\n"
    ) in script


@pytest.mark.parametrize(
    ("set_", "walltime", "lead", "patience"),
    [
        (None, 240, 600, 540),
        (None, 20, 120, 90),
        (None, None, 120, 90),
        (None, 5, 60, 45),
        (30, 240, 30, 23),
    ],
)
def test_a_job_is_warned_early_enough_for_a_rollout_and_a_checkpoint(
    set_: int | None, walltime: int | None, lead: int, patience: int, tmp_path: Path
) -> None:
    """A tenth of the time limit unless set; it waits for a boundary for most of that."""
    cluster = Cluster(kind="slurm", warn_seconds=set_, walltime_min=walltime)
    script = rendered(tmp_path, cluster)
    assert f"#SBATCH --signal=B:USR1@{lead}\n" in script
    assert f"(sleep {patience} && requeue)" in script


def run_setup(tmp_path: Path, cluster: Cluster) -> tuple[int, str]:
    """Run the head of an attempt's script up to its training; return the exit code and the log."""
    folder = tmp_path / "trials" / "0007-3f9a1c"
    (folder / "logs").mkdir(parents=True)
    script = render_script(Job(folder, 0, cluster), tmp_path, tmp_path).partition(
        "\nset -euo pipefail"
    )[0]
    # where the lines end, so does the trap
    (tmp_path / "slurm_script").write_text(f"{script}\nfalse\nexit 0")
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1"}
    command = ["bash", str(tmp_path / "slurm_script")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, check=False, timeout=60)
    return done.returncode, (folder / "logs" / "job.log").read_text()


def test_a_setup_line_that_fails_ends_the_job_and_is_named(tmp_path: Path) -> None:
    """As bad input: the next attempt would fail as well. Lines after it do not run."""
    code, log = run_setup(
        tmp_path, Cluster(setup=["source '/no such/file' # conda", "touch after"])
    )
    assert code == 2
    assert "cluster.setup: this line failed with exit code 1 on" in log
    assert "source '/no such/file' # conda" in log
    assert not (tmp_path / "after").exists()


WORKING = {
    "lines": ["A=$UNSET", "export B=1 \\", "  C=2", "# nothing", "echo $B$C $A"],
    "if": ["if [ -f missing ]; then", "  source missing", "else", "  echo 12", "fi"],
    "for": ["for x in 1 2", "do", "  printf $x", "done", "echo"],
    "while": ["while read -r x; do", "  echo $x", "done <<<12"],
    "case": ["case $HOSTNAME in", "  '')", "    false ;;", "  *)", "    echo 12 ;;", "esac"],
    "and": ["true &&", "  echo 12"],
    "or": ["false ||", "  echo 12"],
    "pipe": ["echo 12 |", "  cat"],
    "heredoc": ["cat <<END", "12", "END"],
    "one_text": ["if false; then\n  false\nelse\n  echo 12\nfi"],
    "allowed": ["false || true", "source missing || true", "echo 12"],
    "condition": ["false && echo 3", "! true", "echo 12"],
    "function": ["module() {", "  false", "  echo $1", "}", "module 12"],
    "sourced": ["source ./inner"],
    "open_end": ["echo 12 \\"],
}


@pytest.mark.parametrize("form", WORKING)
def test_setup_lines_of_any_form_run(form: str, tmp_path: Path) -> None:
    """Blocks over several lines, unset variables, failures that are allowed or inside what a line
    runs.
    """
    (tmp_path / "inner").write_text("false\nX=$(false)\necho 12\n")
    code, log = run_setup(tmp_path, Cluster(setup=WORKING[form]))
    assert code == 0, log
    assert log.splitlines()[-1].strip() == "12"
    assert "cluster.setup:" not in log


FAILING = {
    "middle": (["echo 12", "ls '/no such' # it", "touch after"], "ls '/no such' # it"),
    "if": (["if true; then", "  no_such_command", "  touch after", "fi"], "  no_such_command"),
    "for": (["for x in 1 2", "do", "  test $x = 2", "done", "touch after"], "  test $x = 2"),
    "and": (["true &&", "  false", "touch after"], "  false"),
    "function": (
        ["module() {", "  return 1", "}", "module load cuda", "touch after"],
        "module load cuda",
    ),
    "sourced": (["source ./inner", "touch after"], "source ./inner"),
}


@pytest.mark.parametrize("form", FAILING)
def test_the_setup_line_that_failed_is_named_in_any_form(form: str, tmp_path: Path) -> None:
    """In a block, in a function or sourced file that returns a failure; nothing after it runs."""
    (tmp_path / "inner").write_text("true\nfalse\n")
    lines, failed = FAILING[form]
    code, log = run_setup(tmp_path, Cluster(setup=lines))
    assert code == 2, log
    assert re.search(rf"failed with exit code \d+ on \S+: {re.escape(failed)}\n", log), log
    assert not (tmp_path / "after").exists()


def test_a_mount_that_the_node_lacks_is_named(tmp_path: Path) -> None:
    """Of pyxis and of Apptainer; names that are no paths are left to them."""
    (tmp_path / "there").touch()
    pyxis = [
        "--container-image=nvcr.io#x",
        f"--container-mounts={tmp_path}/there:/a,/no/data:/data:ro",
        "--no-home",
    ]
    code, log = run_setup(tmp_path, Cluster(container=pyxis))
    assert code == 2
    assert "/no/data does not exist on" in log
    assert mount_sources(
        Cluster(python="apptainer exec -B '/a b:/c' --bind=/d,rel image.sif python")
    ) == [
        "'/a b'",
        "/d",
    ]
    # bash names the open quotation mark
    assert mount_sources(Cluster(python="apptainer exec 'image.sif")) == []


def test_output_before_the_log_is_open_is_kept(tmp_path: Path) -> None:
    """In a file that exists before the job starts; a name with one of Slurm's patterns is not
    used.
    """
    for name in ("plain", "100%j"):
        logs = tmp_path / name / "logs"
        logs.mkdir(parents=True)
        script = render_script(
            Job(tmp_path / name, 0, Cluster(extra=["--exclusive"])), tmp_path, tmp_path
        )
        assert (f"#SBATCH --output={logs}/slurm.out\n#SBATCH --open-mode=append" in script) == (
            name == "plain"
        )
        assert (logs / "slurm.out").exists() == (name == "plain")


def every_script(tmp_path: Path) -> dict[str, str]:
    """All kinds of scripts, by name."""
    scripts = {
        name: render_script(Job(tmp_path, 0, *options), tmp_path, tmp_path)
        for name, options in SCRIPTS.items()
    }
    scripts["controller"] = write_controller(
        EVERYTHING, tmp_path, ["python", "run.py", "lr=1,2"]
    ).read_text()
    return scripts


def test_shellcheck_finds_nothing_in_the_scripts(tmp_path: Path) -> None:
    """Of trials, with and without a vLLM server, and of a controller."""
    for name, script in every_script(tmp_path).items():
        assert shellcheck(script) == "", name


def test_a_dry_run_writes_the_controllers_script(tmp_path: Path) -> None:
    """As the real command would submit it: with the launcher that is rehearsed."""
    experiment = Experiment(
        cluster=Cluster(kind="dry_run", controller="job", setup=["module load cuda"])
    )
    launcher = DryRun.build(experiment, tmp_path)
    assert launcher.submit_controller is not None
    said = launcher.submit_controller(["python", "run.py", "cluster=dry_run", "lr=1,2"])
    assert said.endswith(f"sbatch --parsable --chdir={Path.cwd()} {tmp_path}/controller.sbatch")
    script = (tmp_path / "controller.sbatch").read_text()
    assert "\npython run.py cluster=slurm lr=1,2 &\n" in script
    assert "' ERR\nmodule load cuda\n" in script
    experiment.cluster.controller = "here"
    assert DryRun.build(experiment, tmp_path).submit_controller is None
