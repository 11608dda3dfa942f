"""What a sweep of thousands of trials costs its controller: CPU seconds, memory, and the time of
coming back to it.

The controller is the whole one, from the command line to the leaderboard; its attempts are staged:
a launcher in this process writes the files that an attempt of the fake trainer leaves (their cost
is counted), and says that it ended.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from grporecipe.errors import ExitCode
from grporecipe.files import write_json
from grposweep.launchers.base import End, Job, Launcher
from grposweep.search.space import read_space
from grposweep.storage.folders import SweepFolder
from grposweep.storage.results import end_run, start_run
from grposweep.sweep._resume import open_study
from grposweep.train.records import HeartbeatFile, MetricsFile

SEARCHED = [
    "lr=tag(log,interval(1e-6,1e-2))",
    "kl.beta=interval(0,0.1)",
    "kl=low",
    "batch=small,medium",
]
SPACES = {
    "grid": [
        "lr=" + ",".join(f"{1e-5 * 1.05**i:.4g}" for i in range(100)),
        "seed=" + ",".join(map(str, range(50))),
    ],
    "one_factor": [
        "lr=" + ",".join(f"{1e-5 * 1.007**i:.6g}" for i in range(1000)),
        "search.seeds=5",
    ],
    **dict.fromkeys(("tpe", "random"), SEARCHED),
}
AT_ONCE = 8


class Staged(Launcher):
    """Attempts that are over as soon as they begin."""

    kind = "staged"
    slots = AT_ONCE

    def submit(self, job: Job) -> str:
        """Leave what the fake trainer leaves: two evaluations, a heartbeat, a result."""
        folder, metrics = job.folder, MetricsFile(job.folder, job.attempt)
        # one_factor's base has no change
        rate = float(json.loads((folder / "trial.json").read_text())["point"].get("lr", 3e-4))
        objective = 0.8 - 0.2 * abs(math.log10(rate / 1e-3))
        start_run(folder, job.attempt, 1)
        for step, reward in ((0, 0.2), (10, objective)):
            metrics.write("eval", step, 8 * step, {"eval_reward": reward, "eval_reward_se": 0.01})
        HeartbeatFile(folder, 10).beat(10, force=True)
        end_run(folder, job.attempt)
        result = {
            "status": "finished",
            "attempt": job.attempt,
            "objective": objective,
            "start": 0.2,
            "step": 10,
        }
        write_json(folder / "result.json", {**result, "seconds": 0.01, "failure": None})
        return f"staged-{folder.name}"

    def poll(self, job_id: str) -> End:  # noqa: ARG002 - the contract's arguments
        """Over."""
        return End(ExitCode.FINISHED)

    def cancel(self, job_id: str) -> None:
        """There is nothing to end."""


def control(arguments: list[str]) -> None:
    """Be the command, with staged attempts; the last line of the output says what it cost."""
    from grposweep.cli.composed import composer
    from grposweep.config.compose import open_session
    from grposweep.config.points import Points
    from grposweep.search.parse import parse_space, split_tokens
    from grposweep.sweep import run
    from grposweep.sweep.validate import validate_sweep

    run.build_launcher = lambda *_: Staged()  # type: ignore[assignment,return-value]
    run.POLL_SECONDS = 0.0
    with open_session() as session:
        space, fixed = parse_space(list(split_tokens(arguments)), {}, session.loader)
        points = Points(composer(session.loader, "config"), fixed)
        run.run_sweep(validate_sweep(space, points, fixed), fixed, "s")
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "mb": used.ru_maxrss / 1024}))


def command(here: Path, arguments: list[str]) -> dict[str, float]:
    """Run it in a process of its own; CPU seconds, the most memory in MB, seconds on the clock."""
    since = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--controller", *arguments],
        cwd=here,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "TERM": "dumb"},
    )
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.perf_counter() - since}


def measure(sampler: str, trials: int) -> None:
    """One row: the sweep, and the same command again, which builds the study from the trial
    folders.
    """
    arguments = [
        "trainer=fake",
        "name=s",
        *SPACES[sampler],
        f"search.sampler={sampler}",
        f"search.trials={trials}",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        whole = command(here, arguments)
        again = command(here, arguments)
        folder = SweepFolder(here / "outputs" / "s")
        space = read_space((folder.settings() or {})["space"])
        since = time.process_time()
        built = len(open_study(folder, space, "maximize", "eval_reward").trials)
        seconds = time.process_time() - since
        assert built >= trials
    print(
        f"| {sampler} | {trials:,} | {whole['cpu'] * 1000 / trials:.1f} | "
        f"{max(whole['mb'], again['mb']):.0f} | {again['seconds']:.1f} | {seconds:.1f} |",
        flush=True,
    )


def main() -> None:
    """The table."""
    if sys.argv[1:2] == ["--controller"]:
        control(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--samplers", nargs="+", choices=SPACES, default=list(SPACES))
    options = parser.parse_args()
    print(
        "| sampler | trials | CPU s for 1,000 trials | most MB | the command again, s | the "
        "study built, CPU s |"
    )
    print("|---|---|---|---|---|---|")
    for sampler in options.samplers:
        measure(sampler, options.trials)


if __name__ == "__main__":
    main()
