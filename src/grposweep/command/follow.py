"""Run an attempt in another program: start it, follow its log, pass on requests to stop, and report
how it ended.

No torch here: what the program needs is in its own environment.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from grporecipe.errors import ProgramFailed, UnknownMetricError, UserError
from grporecipe.files import read_json, without, write_json
from grposweep.command import _ray_cluster as ray_cluster
from grposweep.command._contract import (
    ExternalProgram,
    NodeContext,
    RayCluster,
    Trial,
    node_cpus,
)
from grposweep.command._environment import foreign_path, launch_texts, package_folder
from grposweep.command._frameworks import newest_saved
from grposweep.command._ray_cluster import (
    RayNode,
    StoppedEarly,
    free_port,
    make_folder,
    wait_for_head,
)
from grposweep.command.any_program import newest_of
from grposweep.command.asked import trained_setting
from grposweep.command.trial_recipe import build_program, framework_of, load_trial_recipe
from grposweep.config.trial_plan import plan_content
from grposweep.process import MARK, kill_group, signals_blocked, start_guard
from grposweep.process.redaction import RedactedProgram
from grposweep.process.variables import OF_RANKS
from grposweep.schema.registries import is_opaque
from grposweep.storage import paths
from grposweep.storage.checkpoints import keep_copy, put_back, set_aside
from grposweep.storage.inputs import original_path
from grposweep.storage.records import CallbackState, Heartbeat
from grposweep.train import process as watchdog
from grposweep.train.attempt import Attempt, Outcome

POLL_SECONDS = 0.5
RANK_FAILED = (
    r"torch/distributed/elastic/multiprocessing/api.py:\d+\].* (closing signal|failed \(exitcode)"
)
# lines; an earlier attempt's are further up
LONGEST_REPORT = 100
# that the other nodes wait for the first one's choice; it may start later
CHOICE_SECONDS = 300.0
# between asking a program without our Callback to end, and ending it
PATIENCE_SECONDS = 30.0
_TRACEBACK = "Traceback (most recent call last)"
# of torchrun
_RANK = r"^\[(?:\w+ ?\d*)\]:? ?"
# the lines that this process writes before the program's
_OURS = r"\$ |rank \d+ on \S+ is process "
# into a file, not into another stream
_REDIRECTED = r">>?\s*(?!/dev/)([^\s&;|>]+)"
_FRAME = r'File "([^"]+)", line (\d+)'
_LIBRARY = r"/(?:site-packages|dist-packages|lib/python3[\d.]*|package\d*/grposweep)/|^<"
# characters
LONGEST_ERROR = 300
WITHOUT_HOOK = (
    "its Python was started without our PYTHONPATH (a container, 'python -I'), or it does not "
    "train with GRPO. Pass PYTHONPATH and the variables that begin with GRPOSWEEP_ on to it."
)
NEVER_REPORTED = f"trainer.command: the program did not get this trial's values: {WITHOUT_HOOK}"
NO_TRAINING = (
    "trainer.command: the program did not get this trial's values, because it ended with exit code "
    "0 before its training. Correct what makes it skip that, such as a file that another trial "
    "left. Its last line: "
)
NOTHING_READ = (
    "trainer.metrics={trainer.metrics}: the program ended, and nothing there has a step called "
    "{trainer.step_key}. Set the file "
    "that it writes its metrics to, and trainer.step_key to the name of the step."
)
AFTER_A_STOP = (
    "the training was stopped at step {callback.step} of {callback.total}. What the command "
    "does after its training (saving, "
    "evaluation, upload) ran on an unfinished model. The same command continues the training."
)
# of its output, kept in result.json
LAST_LINES = 25
# The program starts ranks itself; the last three are ms-swift's.
NOT_INHERITED = (*OF_RANKS, "PYTHONPATH", "NPROC_PER_NODE", "NNODES", "NODE_RANK")


def train(attempt: Attempt) -> Outcome:
    """Run the program of a trial to its end or to a stop.

    Raises ProgramFailed if it ends with an error.
    """
    trial = _trial(attempt)
    program = build_program(trial)
    if program.ray is not None:
        return _train_on_ray(attempt, trial, program, program.ray)
    with _marked() as mark:
        child = _start(attempt, trial, mark, program.command, program.environment)
        watchdog.name_process(attempt.rank, child.pid)
        watch = ExternalProgramMonitor(attempt, program, child)
        code = watch.follow()
    return _outcome(attempt, trial, program, watch, code)


def _train_on_ray(
    attempt: Attempt, trial: Trial, program: ExternalProgram, cluster: RayCluster
) -> Outcome:
    """Run the program on the first of several nodes, in a Ray cluster of all of them; the others
    only hold theirs.
    """
    try:
        folder = make_folder() if attempt.is_main else wait_for_head(attempt)
        environment = {**program.environment, **ray_cluster.environment(attempt)}
        with _marked(folder) as mark:
            start = partial(_start, attempt, trial, mark, environment=environment)
            node = RayNode(attempt, cluster, folder, lambda command, log: start(command, log=log))
            if not attempt.is_main:
                node.worker()
                return Outcome(stopped=False, step=0)
            with node.head() as address:
                child = start(program.command, environment={**environment, "RAY_ADDRESS": address})
                watch = ExternalProgramMonitor(attempt, program, child)
                code = watch.follow()
    except StoppedEarly:
        return _stopped(attempt, trial, 0)
    return _outcome(attempt, trial, program, watch, code)


@contextlib.contextmanager
def _marked(*folders: Path) -> Iterator[str]:
    """Yield a mark for processes; at the end of the block, or of this process, they are killed and
    the folders removed.
    """
    mark = uuid.uuid4().hex
    guard = start_guard(mark, *folders)
    try:
        yield mark
    finally:
        kill_group(mark)
        # a pipe
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def _trial(attempt: Attempt) -> Trial:
    """Return the trial for the program's builder. In a job of several nodes this process is one of
    them.
    """
    context = NodeContext(
        processes=attempt.experiment.cluster.processes,
        node=attempt.rank,
        nodes=attempt.ranks,
        address=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        port=int(os.environ.get("MASTER_PORT", 0)),
        gpus=attempt.experiment.cluster.gpus_per_node,
        cpus=node_cpus(attempt.experiment.cluster),
    )
    recipe = load_trial_recipe(attempt.folder, attempt.experiment)
    trial = Trial(attempt.experiment.trainer, attempt.folder, recipe, context)
    is_alone = attempt.ranks == 1
    if is_alone:
        put_back(attempt.folder / paths.RESUMED, trial.output)
    chosen = choose_checkpoint(attempt, trial)
    is_asked = not is_opaque(trial.trainer) and framework_of(trial.folder) is None
    if chosen is not None and is_alone and is_asked:
        chosen = keep_copy(chosen, attempt.folder / paths.RESUMED)
    return replace(trial, checkpoint=chosen)


def choose_checkpoint(attempt: Attempt, trial: Trial) -> Path | None:
    """Return the checkpoint that the program is to resume from, the same on every node, or None.

    The first node chooses. The others read its choice from a file: each may still see an older
    state of the folder. Raises TimeoutError if they wait for it for more than CHOICE_SECONDS.
    """
    chosen = attempt.folder / paths.RESUME_CHOICE
    if attempt.is_main:
        ranks = attempt.experiment.cluster.processes
        if not is_opaque(trial.trainer):
            set_aside(trial.output, ranks, is_ours=False)
        newest = _newest(trial, ranks)
        if attempt.ranks > 1:
            kept = str(newest.relative_to(trial.output)) if newest else None
            write_json(chosen, {"attempt": attempt.number, "checkpoint": kept})
        return newest
    until = time.monotonic() + CHOICE_SECONDS
    while (choice := read_json(chosen) or {}).get("attempt") != attempt.number:
        if time.monotonic() > until:
            raise TimeoutError(
                f"the first node did not write {chosen} within {CHOICE_SECONDS:.0f} s"
            )
        time.sleep(POLL_SECONDS)
    return trial.output / choice["checkpoint"] if choice["checkpoint"] else None


def _start(
    attempt: Attempt,
    trial: Trial,
    mark: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a command in a process group of its own, its output in this process's log or in one of
    its own.
    """
    trial.output.mkdir(exist_ok=True)
    (trial.folder / paths.HOOKED).unlink(missing_ok=True)
    if log is None:
        print(f"$ {shlex.join(command)}", flush=True)
    dropped = (*NOT_INHERITED, "RAY_ADDRESS") if attempt.ranks > 1 else NOT_INHERITED
    own = trial.trainer.environment
    kept = without(os.environ, dropped)
    package = package_folder(attempt.folder, attempt.rank)
    given = foreign_path(own)
    ours = {
        "GRPOSWEEP_TRIAL": str(attempt.folder),
        "GRPOSWEEP_ATTEMPT": str(attempt.number),
        MARK: mark,
        **environment,
    }
    # for a program that starts its Python with variables of its own choice
    write_json(
        package / "variables.json",
        {name: value for name, value in ours.items() if name.startswith("GRPOSWEEP_")},
    )
    ours["PYTHONPATH"] = os.pathsep.join([str(package), *attempt.inputs.roots(given), *given])
    # TRL's colocated vLLM takes a fixed one otherwise, also in a single process
    port = {"MASTER_PORT": free_port()} if attempt.ranks == 1 else {}
    folder = Path(trial.trainer.workdir or ".")
    with (
        log.open("wb") if log else contextlib.nullcontext() as output,
        signals_blocked(signal.SIGUSR2),
    ):
        try:
            return RedactedProgram(
                list(command),
                output.fileno() if output else 1,
                cwd=folder,
                env={**kept, **port, **own, **ours},
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            raise UserError(
                f"trainer={trial.trainer.kind}: {command[0]} cannot be started in "
                f"{folder.resolve()} "
                f"({error.strerror}). Set trainer.workdir, or trainer.python for Ray."
            ) from error


@dataclass
class ExternalProgramMonitor:
    """Follows a running program: its log becomes our metrics, and requests of the controller become
    signals.
    """

    attempt: Attempt
    program: ExternalProgram
    child: "subprocess.Popen[bytes]"
    step: int = 0
    # time.monotonic()
    asked_at: float | None = None
    heard: bool = False
    # it saved checkpoints, and its trainer has not reported
    unreported: bool = False
    # the counter of our Callback's last sign of life
    beat: int | None = None

    def follow(self) -> int:
        """To its end; the exit code, negative for a signal."""
        while True:
            try:
                code = self.child.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            self._report()
            if code is not None:
                return code
            if (callback := self.callback) is not None and callback.left:
                self._signal(signal.SIGKILL)
            self._pass_on_request()

    @property
    def callback(self) -> CallbackState | None:
        """Return the report of the grposweep Callback on this attempt; None for a program without
        it.
        """
        state = CallbackState.find(self.attempt.folder)
        return state if state and state.attempt == self.attempt.number else None

    def _report(self) -> None:
        """New entries of the log; with our Callback in the program they are written already."""
        if (callback := self.callback) is not None:
            if not self.heard and self.attempt.is_main:
                self.heard = True
                # before, only the command's own values were known, or nothing
                if record := read_json(self.attempt.folder / paths.TRAINED_WITH):
                    plan = plan_content(trained_setting(record))
                    write_json(self.attempt.folder / paths.PLAN, plan)
            self.step = callback.step
            # as long as it beats in the trial's file, this process lives as well
            beat = Heartbeat.read(self.attempt.folder).counter
            if beat != self.beat:
                self.beat = beat
                watchdog.feed(self.attempt.experiment.cluster.stall_min)
            return
        entries = self.program.log()
        if entries and self.is_without_values:
            self.unreported = True
            self._signal(signal.SIGKILL)
            return
        if entries and not self.heard and self.attempt.is_main:
            self.heard = True
            # a log that resumes from a checkpoint holds its past as well, unless the program's
            # reader says otherwise
            self.attempt.metrics.rewind(self.program.resumed_at)
        for entry in entries:
            kind = entry.kind
            if not kind:
                # an evaluation has the objective
                metric = self.attempt.experiment.search.metric
                kind = "eval" if metric in entry.values else "train"
            self.attempt.log(kind, entry.step, dict(entry.values))
            self.step = max(self.step, entry.step)
        # that it runs is all the life that a program without our Callback shows
        self.attempt.beat(self.step)

    @property
    def is_without_values(self) -> bool:
        """Whether it trains although neither its trainer nor its command line got the trial's
        values.
        """
        entered = read_json(self.attempt.folder / paths.ENTERED) or {}
        return self.program.reports and entered.get("attempt") != self.attempt.number

    def _pass_on_request(self) -> None:
        """Pass a wish to stop on: our Callback waits for a rollout boundary, any other program gets
        SIGTERM, then more.
        """
        # Every node's process looks: one that is left would take the others' end for a failure.
        if self.asked_at is None and (
            self.attempt.terminated or self.attempt.control.asks_to_stop(self.step)
        ):
            self.asked_at = time.monotonic()
            if self.callback:
                write_json(self.attempt.folder / paths.STOP, {"attempt": self.attempt.number})
            else:
                self._signal(signal.SIGTERM)
        elif (
            self.asked_at is not None
            and not self.callback
            and time.monotonic() - self.asked_at > PATIENCE_SECONDS
        ):
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)


def _outcome(
    attempt: Attempt,
    trial: Trial,
    program: ExternalProgram,
    watch: ExternalProgramMonitor,
    code: int,
) -> Outcome:
    """Return how the attempt ended. A requested stop is not a failure of the program."""
    callback = watch.callback
    if attempt.ranks == 1:
        put_back(attempt.folder / paths.RESUMED, trial.output)
    if callback is not None and callback.refused:
        raise UserError(callback.refused)
    if (
        callback is None
        and watch.is_without_values
        and (watch.unreported or (code == 0 and watch.asked_at is None))
    ):
        if watch.unreported:
            raise UserError(NEVER_REPORTED)
        reason = f"{NO_TRAINING}{error_line(_last_lines(attempt))}"
        is_hooked = (attempt.folder / paths.HOOKED).exists()
        if not is_hooked:
            reason = f"{reason}. If it trains, {WITHOUT_HOOK}"
        raise UserError(reason)
    # Slurm sends SIGTERM to the program as well
    was_asked = watch.asked_at is not None or attempt.terminated
    stopped = callback.stopped if callback else was_asked and (code != 0 or not program.finishes)
    # a later step of the command may fail, an evaluation for example
    has_trained = callback is not None and callback.ended is True
    # `| tee log` hides the exit code
    is_cut = callback is not None and callback.ended is False and attempt.is_main and not was_asked
    if (code != 0 and not has_trained and not (was_asked and not callback)) or is_cut:
        lines = _last_lines(attempt)
        said = error_line(lines)
        if not said:
            folder = Path(trial.trainer.workdir or ".")
            texts = [text for _, text in launch_texts(trial.trainer.command or "", folder)]
            files = re.findall(_REDIRECTED, "\n".join(texts))
            said = f"its output is in {files[0]}" if files else ""
        raise ProgramFailed(code, lines[-LAST_LINES:], said)
    if code != 0 and has_trained and not stopped:
        print(
            f"the training ended, and a later step of the command failed with exit code {code}",
            flush=True,
        )
    if not stopped and is_opaque(trial.trainer) and not attempt.metrics.lines():
        raise UnknownMetricError(NOTHING_READ.format(trainer=trial.trainer))
    if stopped:
        if callback is not None and callback.ended and not callback.left:
            print(AFTER_A_STOP.format(callback=callback), flush=True)
        return _stopped(attempt, trial, watch.step)
    if attempt.is_main and (early := _early_end(attempt, trial, callback)):
        raise UserError(early)
    return Outcome(False, watch.step, trial.output.name)


def _early_end(attempt: Attempt, trial: Trial, callback: CallbackState | None) -> str:
    """Say if a program ended before its stated length; empty if not, or if its length is not known.

    Its last step is only known to within the steps between two lines of its log. A training with
    our Callback that a callback of the user's ends early has ended as the user wants it.
    """
    total = attempt.experiment.schedule.max_steps
    if callback is not None or total is None or not is_opaque(trial.trainer):
        return ""
    steps = sorted({int(line["step"]) for line in attempt.metrics.lines()})
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    step = steps[-1]
    spacing = 1 + max(gaps, default=1)
    if total - step < spacing:
        return ""
    return (
        f"schedule.max_steps={total}: the program ended with exit code 0 at step {step}, so its "
        f"training is not finished and not ranked. Set schedule.max_steps={step} if it is meant to "
        "end there, or take out what ends it."
    )


def _stopped(attempt: Attempt, trial: Trial, step: int) -> Outcome:
    """Return a stop, with the checkpoint that a further attempt resumes from."""
    newest = _newest(trial, attempt.experiment.cluster.processes)
    checkpoint = str(newest.relative_to(attempt.folder)) if newest else None
    return Outcome(True, step, checkpoint=checkpoint)


def _newest(trial: Trial, ranks: int) -> Path | None:
    """Return the checkpoint to resume from. Of a program of which nothing is known, it is the one
    with the highest number.
    """
    if is_opaque(trial.trainer):
        return newest_of(trial.trainer, trial.output)
    if (framework := framework_of(trial.folder)) is not None:
        return framework.newest(trial.output, ranks)
    return newest_saved(trial.output, ranks)


def _last_lines(attempt: Attempt) -> list[str]:
    """This process's log, which is the program's output."""
    try:
        text = (attempt.folder / paths.LOGS / f"rank-{attempt.rank}.log").read_text(
            encoding="utf-8", errors="replace"
        )
    except FileNotFoundError:
        # started by hand, its output on a terminal
        return []
    return without_report(text.splitlines())


def error_line(lines: Sequence[str]) -> str:
    """Return the words with which a log ends: its last exception with the file and line of the
    user's own code; without one its last line of an error, or else its last line.
    """
    said = [re.sub(_RANK, "", line).rstrip() for line in lines]
    start = max((n for n, line in enumerate(said) if _TRACEBACK in line), default=None)
    if start is None:
        last = [line.strip() for line in said if line and not re.match(_OURS, line)]
        errors = [line for line in last if "error" in line.lower()]
        return (errors or last or [""])[-1][:LONGEST_ERROR]
    rest = said[start + 1 :]
    frames = list(filter(None, (re.search(_FRAME, line) for line in rest)))
    own = [frame for frame in frames if not re.search(_LIBRARY, frame[1])] or frames
    location = f" ({original_path(own[-1][1])}, line {own[-1][2]})" if own else ""
    # a frame is indented, and so are the lines of code in it
    end = next((line for line in rest if line and not line[0].isspace()), "")
    return end[:LONGEST_ERROR] + location


def without_report(lines: list[str]) -> list[str]:
    """Without torchrun's long report that a rank failed, which follows what the rank itself
    said.
    """
    recent = len(lines) - LONGEST_REPORT
    for number, line in enumerate(lines):
        if number >= recent and re.search(RANK_FAILED, line):
            return lines[:number]
    return lines
