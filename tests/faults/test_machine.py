"""What a machine does to a sweep: clocks that jump, controllers that are suspended, moved folders,
limits, disks without room.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import (
    RUN,
    StartInterpreter,
    environment,
    grposweep,
    lines,
    read,
    run_in,
    trials,
    wait_for,
)

pytestmark = pytest.mark.slow
WORDS = (
    "trainer=fake",
    "name=s",
    "schedule=steps",
    "schedule.max_steps=20",
    "schedule.evaluations=2",
    "schedule.checkpoints=4",
    "search.parallel=1",
    "trainer.args.step_seconds=0.05",
    "-m",
    "lr=1e-3,2e-3",
)
# libfaketime answers Python's time.sleep with EINVAL where the steady clock is left alone, which
# real jumps do leave alone.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(id, now);
  FILE *file = id == CLOCK_REALTIME && getenv("CLOCK_OFFSET") ? fopen(getenv("CLOCK_OFFSET"), "r") : NULL;
  long seconds = 0;
  if (file) {
    if (fscanf(file, "%ld", &seconds) == 1) now->tv_sec += seconds;
    fclose(file);
  }
  return code;
}
"""


@pytest.fixture
def start(here: Path) -> Iterator[StartInterpreter]:
    """StartInterpreter the sweep; it ends with the test at the latest."""
    started: list[subprocess.Popen[str]] = []

    def call(variables: dict[str, str] | None = None, **settings: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, str(RUN), *WORDS]
        pipe = subprocess.PIPE
        # No bytecode: a limit on the size of files would cut it off, also that of other packages.
        used = environment(PYTHONDONTWRITEBYTECODE="1", **(variables or {}))
        started.append(
            subprocess.Popen(
                command,
                cwd=here,
                env=used,
                stdout=pipe,
                stderr=pipe,
                text=True,
                start_new_session=True,
                **settings,
            )
        )
        return started[-1]

    yield call
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def is_midway(here: Path, steps: int = 3) -> bool:
    """Whether a trial has logged some steps."""
    return any(
        file.read_text().count("\n") > steps
        for file in here.glob("outputs/s/trials/*/metrics.jsonl")
    )


def check_finished(sweep: Path) -> None:
    """Both trials have their results, and each step was logged once."""
    assert [read(trial / "result.json")["status"] for trial in trials(sweep)] == ["finished"] * 2
    for trial in trials(sweep):
        assert [
            line["step"] for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"
        ] == list(range(1, 21))


def compiled(source: Path, library: Path) -> Path:
    """A library to preload."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    words = [
        "cc",
        "-shared",
        "-fPIC",
        "-D_LARGEFILE64_SOURCE",
        "-o",
        str(library),
        str(source),
        "-ldl",
    ]
    subprocess.run(words, check=True)
    return library


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that adds the seconds in $CLOCK_OFFSET's file to the time of day; the steady clock
    stays.
    """
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    return compiled(folder / "clock.c", folder / "clock.so")


@pytest.mark.parametrize("hours", [5, -5])
def test_a_clock_that_jumps_by_hours_changes_nothing(
    start: StartInterpreter, here: Path, clock: Path, hours: int
) -> None:
    """No trial hangs, none is run twice, and what it costs is what it took; controller and trials
    see the jump.
    """
    offset = here / "offset"
    offset.write_text("0")
    process = start(variables={"LD_PRELOAD": str(clock), "CLOCK_OFFSET": str(offset)})
    wait_for(lambda: is_midway(here) or process.poll() is not None, 180)
    offset.write_text(str(hours * 3600))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    sweep = here / "outputs" / "s"
    check_finished(sweep)
    times = [line["time"] for trial in trials(sweep) for line in lines(trial / "runs.jsonl")]
    # the jump was seen
    assert max(times) - min(times) > 4 * 3600
    assert all(0 < read(trial / "result.json")["seconds"] < 600 for trial in trials(sweep))
    status = grposweep(here, "status", "s", "--json")
    assert status.code == 0, status.err


def test_a_suspended_controller_continues_when_it_is_continued(
    start: StartInterpreter, here: Path
) -> None:
    """Its trial ends meanwhile."""
    process = start()
    wait_for(lambda: is_midway(here), 180)
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: list(here.glob("outputs/s/trials/*/result.json")), 180)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    check_finished(here / "outputs" / "s")


def test_a_folder_that_was_moved_while_its_sweep_rested_continues(
    start: StartInterpreter, here: Path
) -> None:
    """After Ctrl-C, with all that it holds, at another path."""
    process = start()
    wait_for(lambda: is_midway(here), 180)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    moved = here.parent / "moved"
    here.rename(moved)
    here.mkdir()
    again = run_in(moved, *WORDS)
    assert again.code == 0, again.out + again.err
    check_finished(moved / "outputs" / "s")
    assert list(here.iterdir()) == []


def test_few_open_files_are_enough(start: StartInterpreter, here: Path) -> None:
    """Login nodes set such limits."""
    process = start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    check_finished(here / "outputs" / "s")


@pytest.mark.parametrize("size", [300, 4000])
def test_a_limit_on_file_size_is_reported_and_the_sweep_continues_later(
    start: StartInterpreter, here: Path, size: int
) -> None:
    """A quota on the size of files, in bytes; without it the same command finishes."""
    process = start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    out, err = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "Traceback" not in out + err
    assert "File too large" in out + err
    again = run_in(here, *WORDS)
    assert again.code == 0, again.out + again.err
    check_finished(here / "outputs" / "s")


@pytest.mark.parametrize("rule", ["fsync trial.json", "stat heartbeat"])
def test_a_file_system_that_stalls_under_a_controller_loses_nothing(
    start: StartInterpreter, here: Path, rule: str
) -> None:
    """One call does not return for as long as the test wants (a process as on a hard NFS mount:
    only SIGKILL ends it).

    Ctrl-C is answered, another controller is refused, the sweep can be looked at, and it continues
    where it was.
    """
    rules = here / "rules"
    rules.write_text(f"{rule} 600 1\n")
    # LD_PRELOAD takes no space
    library = compiled(Path(__file__).with_name("slow_disk.c"), here.parent / "slow.so")
    slow = {
        "LD_PRELOAD": str(library),
        "SLOW_BELOW": str(here / "outputs"),
        "SLOW_RULES": str(rules),
    }
    process = start(variables=slow)
    wait_for(lambda: (here / "rules.0.0").exists() or process.poll() is not None, 180)
    for words in (("status", "s", "--json"), ("list",)):
        looked = grposweep(here, *words)
        assert looked.code == 0, looked.out + looked.err
    other = run_in(here, *WORDS)
    assert (other.code, other.err.count("another controller")) == (2, 1), other.out + other.err
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    # the answer; without it the test never ends
    while "does not return" not in (line := process.stderr.readline()):
        assert line, "it ended without an answer"
    rules.unlink()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, out + err
    again = run_in(here, *WORDS)
    assert again.code == 0, again.out + again.err
    check_finished(here / "outputs" / "s")
    assert "damaged" not in grposweep(here, "status", "s").out


def test_a_file_system_that_is_slow_under_trials_changes_nothing(
    start: StartInterpreter, here: Path
) -> None:
    """Some calls take two seconds, and each one of controller and trials 5 ms."""
    slow_calls = (
        "write metrics.jsonl",
        "rename heartbeat",
        "rename result.json",
        "mkdir checkpoint-",
    )
    (here / "rules").write_text(
        "".join(f"{call} 2 1\n" for call in slow_calls) + "any / 0.005 -1\n"
    )
    # LD_PRELOAD takes no space
    library = compiled(Path(__file__).with_name("slow_disk.c"), here.parent / "slow.so")
    slow = {
        "LD_PRELOAD": str(library),
        "SLOW_BELOW": str(here / "outputs"),
        "SLOW_RULES": str(here / "rules"),
    }
    out, err = start(variables=slow).communicate(timeout=300)
    assert {path.name for path in here.glob("rules.*")} == {
        f"rules.{number}.0" for number in range(4)
    }, out + err
    check_finished(here / "outputs" / "s")
    for trial in trials(here / "outputs" / "s"):
        assert [
            line["attempt"] for line in lines(trial / "attempts.jsonl") if line["event"] == "intent"
        ] == [0]


@pytest.mark.parametrize("times", [3, 20])
def test_a_lease_that_is_stale_for_a_moment_does_not_end_its_sweep(
    start: StartInterpreter, here: Path, times: int
) -> None:
    """On NFS a file that is replaced while it is read is stale (ESTALE, 116); the lease is replaced
    every second.
    """
    # LD_PRELOAD takes no space
    library = compiled(Path(__file__).with_name("slow_disk.c"), here.parent / "slow.so")
    rules = here / "rules"
    process = start(
        variables={
            "LD_PRELOAD": str(library),
            "SLOW_BELOW": str(here / "outputs"),
            "SLOW_RULES": str(rules),
        }
    )
    wait_for(lambda: is_midway(here) or process.poll() is not None, 180)
    rules.write_text(f"read lease.json -116 {times}\n")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert (here / f"rules.0.{times - 1}").exists()
    # it reads five times
    assert ("Stale" in (here / "outputs" / "s" / "controller.log").read_text()) is (times == 20)
    check_finished(here / "outputs" / "s")


@pytest.mark.parametrize(("where", "code"), [("", 1), ("/s/study.journal", 0), ("/s/trials", 1)])
def test_a_disk_that_becomes_read_only_ends_a_sweep_that_continues_later(
    start: StartInterpreter, here: Path, where: str, code: int
) -> None:
    """The whole disk, or trials: one message, and once it can be written nothing is lost. The
    journal, a copy, ends none.
    """
    # LD_PRELOAD takes no space
    library = compiled(Path(__file__).with_name("slow_disk.c"), here.parent / "slow.so")
    below = here / "outputs"
    read_only = here / "read-only"
    process = start(
        variables={
            "LD_PRELOAD": str(library),
            "SLOW_BELOW": f"{below}{where}",
            "READ_ONLY": str(read_only),
        }
    )
    wait_for(lambda: is_midway(here) or process.poll() is not None, 180)
    read_only.touch()
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in out + err
    assert (process.returncode, (out + err).count("Read-only file system")) == (code, 1), out + err
    read_only.unlink()
    again = run_in(here, *WORDS)
    assert again.code == 0, again.out + again.err
    check_finished(here / "outputs" / "s")
    assert "damaged" not in grposweep(here, "status", "s").out


@pytest.fixture
def disk(here: Path) -> Iterator[Callable[[str], None]]:
    """Mount a small disk at outputs, and mount it again with other options; skipped where that is
    not allowed.
    """
    (here / "outputs").mkdir()

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(here / "outputs")]
        if (
            shutil.which("mount") is None
            or os.geteuid() != 0
            or subprocess.run(command, check=False).returncode
        ):
            pytest.skip("no disk can be mounted here")

    yield mount
    subprocess.run(["umount", "-l", str(here / "outputs")], check=False, capture_output=True)


@pytest.mark.parametrize("options", ["size=40k", "nr_inodes=12"])
def test_a_full_disk_is_reported_and_the_sweep_continues_later(
    disk: Callable[[str], None], start: StartInterpreter, here: Path, options: str
) -> None:
    """No blocks or no inodes; with room the same command finishes."""
    disk(options)
    out, err = start().communicate(timeout=300)
    assert "Traceback" not in out + err
    disk("remount,size=20m,nr_inodes=2000")
    again = run_in(here, *WORDS)
    assert again.code in (0, 1), again.out + again.err
    # trials that failed for the disk are tried again on request
    if again.code:
        assert grposweep(here, "retry", "s").code == 0
    check_finished(here / "outputs" / "s")


def test_a_read_only_disk_can_be_looked_at_and_is_one_message_for_what_writes(
    disk: Callable[[str], None], here: Path
) -> None:
    """A backup, or a disk after an error."""
    disk("size=20m")
    assert run_in(here, *WORDS).code == 0
    disk("remount,ro")
    for words in (("status", "s"), ("show", "s", "0"), ("export", "s"), ("best", "s")):
        ended = grposweep(here, *words)
        assert ended.code == 0, ended.out + ended.err
    for words in (("report", "s"), ("rerun", "s", "0")):
        ended = grposweep(here, *words)
        assert "Traceback" not in ended.out + ended.err
        assert ended.code in (0, 2), ended.out + ended.err
    again = run_in(here, *WORDS)
    assert (again.code, again.err.count("\n")) == (2, 1), again.err
