"""Everything that needs a GPU, in parts: tests, the memory grid, packed trials, learning curves and
the default search.

    python benchmarks/gpu/run.py MODEL [--seconds 540] [--parts tests,memory,packing,curves,search]
    [--to FOLDER] [--rehearsal]

MODEL is a folder with SmolLM2-135M-Instruct (``make real-model``). Nothing is downloaded, and
nothing is installed. Each part adds lines to FOLDER/results.jsonl and FOLDER/grid.jsonl as they
come. The same command continues what was stopped: measured points, tests and trials are not run
again. ``--rehearsal`` does all of it in small, on a CPU. gpu_report.py makes the tables.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(PROJECT / "src")]

from sums import write_prompts  # noqa: E402  # it is in this folder

from grposweep.sweep._early_stopping import SIGNALS, CurveReader  # noqa: E402

CARD = """import torch
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU")
print(",".join(map(str, range(torch.cuda.device_count()))))
"""
# trials that share the GPU
PACKED = 8
TRIALS, STEPS, EVALUATIONS = 24, 40, 5
PACKING_STEPS = 8
SPACE = ("lr=tag(log,interval(1e-6,1e-4))", "batch.num_generations=4,8,16", "kl=none,low")
BATCH = (
    "batch.per_device_train_batch_size=64",
    "batch.gradient_accumulation_steps=1",
    "batch.steps_per_generation=1",
)
SWEEP = (
    "task=jsonl",
    "task.answer_column=answer",
    f"task.rewards=[{HERE / 'sums.py'}:last_number]",
    "task.chat=true",
    "task.max_completion_length=16",
    "task.eval_prompts=64",
    *BATCH,
    "batch.num_generations_eval=4",
    "batch.per_device_eval_batch_size=256",
    "generation.temperature=1.0",
    "tracker=none",
    "trainer.keep=none",
    "schedule.budget_completions=null",
    "search.guards=false",
)
SMALL = (
    "batch.per_device_train_batch_size=16",
    "task.eval_prompts=4",
    "batch.per_device_eval_batch_size=16",
)


@dataclass(frozen=True)
class Run:
    """What a part gets: the model's folder, where lines go, the time when it must be over, and
    whether it is a rehearsal.
    """

    model: Path
    to: Path
    end: float
    rehearsal: bool
    card: str
    devices: str
    """All GPUs by number: named, they are shared with other processes."""

    @property
    def seconds(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    def write(self, part: str, **found: Any) -> None:
        """Add a line."""
        line = json.dumps({"part": part, "card": self.card, **found})
        print(line, flush=True)
        with (self.to / "results.jsonl").open("a") as file:
            file.write(line + "\n")

    def lines(self, part: str) -> list[dict[str, Any]]:
        """Return the lines of a part so far."""
        path = self.to / "results.jsonl"
        found = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        )
        return [line for line in found if line["part"] == part and line["card"] == self.card]

    def command(self, words: list[str], name: str, **environment: str) -> int:
        """Run a command with its output in a file of its own; interrupt it when time is over.
        Return its exit code.
        """
        with (self.to / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.to,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
            try:
                return process.wait(timeout=max(self.seconds, 1))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            try:
                return process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()

    def sweep(
        self, name: str, *words: str, trials_at_once: int = PACKED, **environment: str
    ) -> Path:
        """Run or continue a sweep on the sums; return its folder."""
        prompts = self.to / "sums.jsonl"
        write_prompts(prompts)
        share = [f"search.parallel={trials_at_once}"]
        if self.card != "CPU":
            share += [f"cluster.trials_per_gpu={trials_at_once}"]
        named = [
            "-m",
            f"name={name}",
            f"outputs={self.to}",
            "model=smollm2_135m",
            f"model.path={self.model}",
            f"task.path={prompts}",
        ]
        small = SMALL if self.rehearsal else ()
        code = self.command(
            [str(PROJECT / "src" / "run.py"), *named, *SWEEP, *share, *words, *small],
            name,
            **environment,
        )
        if code not in (0, 1, 130):
            print((self.to / f"{name}.log").read_text()[-3000:], file=sys.stderr)
        return self.to / name


def run_tests(run: Run) -> None:
    """The tests of a GPU, those of neighbours last and alone; one line a test."""
    done = {line["test"] for line in run.lines("tests") if line["outcome"] != "failed"}
    for number, (files, workers) in enumerate(
        ((["test_on_a_gpu.py", "test_models_on_gpus.py"], 4), (["test_neighbours.py"], 0))
    ):
        report = run.to / f"tests_{number}.xml"
        paths = [str(PROJECT / "tests" / "gpu" / file) for file in files]
        chosen = [
            "--rootdir",
            str(PROJECT),
            "-m",
            "gpu",
            "-n",
            str(workers),
            f"--junitxml={report}",
            *paths,
        ]
        skip = [word for test in done for word in ("--deselect", f"tests/gpu/{test}")]
        run.command(
            ["-m", "pytest", "-c", str(PROJECT / "pyproject.toml"), *chosen, *skip],
            "tests",
            CUDA_VISIBLE_DEVICES="0",
        )
        for case in ElementTree.parse(report).iter("testcase") if report.is_file() else ():
            outcomes = [child for child in case if child.tag in ("failure", "error", "skipped")]
            outcome = (
                {"failure": "failed", "error": "failed", "skipped": "skipped"}[outcomes[0].tag]
                if outcomes
                else "passed"
            )
            why = str(outcomes[0].get("message"))[:300] if outcomes else ""
            file = str(case.get("classname")).rsplit(".", 1)[-1]
            run.write(
                "tests",
                test=f"{file}.py::{case.get('name')}",
                outcome=outcome,
                seconds=float(case.get("time") or 0),
                why=why,
            )


def run_memory(run: Run) -> None:
    """The grid of memory; at most three minutes of it."""
    if run.card == "CPU":
        run.command([str(PROJECT / "benchmarks" / "memory" / "gpu_grid.py"), "--list"], "memory")
        return
    words = [
        str(PROJECT / "benchmarks" / "memory" / "gpu_grid.py"),
        "--to",
        str(run.to / "grid.jsonl"),
    ]
    run.command([*words, "--seconds", str(min(run.seconds - 10, 180))], "memory")


def run_packing(run: Run) -> None:
    """Seconds of a step with one trial, with eight that take turns, and with eight under NVIDIA's
    MPS where it is installed.
    """
    count = 2 if run.rehearsal else PACKED
    steps = 2 if run.rehearsal else PACKING_STEPS
    words = (
        f"schedule.max_steps={steps}",
        "schedule.evaluations=1",
        "batch.num_generations=8",
        "kl=none",
        "search=grid",
    )
    rates = [f"{number}e-6" for number in range(1, count + 1)]
    done = {(line["trials"], line["mps"]) for line in run.lines("packing")}
    for trials, mps in ((1, False), (count, False), (count, True)):
        if (trials, mps) in done or (mps and not start_mps()):
            continue
        lr = "lr=" + ",".join(rates[:trials])
        folder = run.sweep(f"packing_{trials}_{mps}".lower(), *words, lr, trials_at_once=trials)
        if mps:
            stop_mps()
        found = [
            line
            for path in folder.glob("trials/*/metrics.jsonl")
            for line in read(path)
            if line["kind"] == "train"
        ]
        seconds = [line["time/step"] for line in found if line["step"] > 2 or run.rehearsal]
        if seconds:
            step = statistics.median(seconds)
            run.write(
                "packing",
                trials=trials,
                mps=mps,
                step_seconds=round(step, 3),
                seconds_a_trial_step=round(step / trials, 3),
            )


def start_mps() -> bool:
    """Start NVIDIA's Multi-Process Service; return whether it runs."""
    try:
        return (
            subprocess.run(
                ["nvidia-cuda-mps-control", "-d"], capture_output=True, check=False
            ).returncode
            == 0
        )
    except OSError:
        return False


def stop_mps() -> None:
    """Stop it, if it runs."""
    try:
        subprocess.run(
            ["nvidia-cuda-mps-control"],
            input=b"quit\n",
            capture_output=True,
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return


def run_curves(run: Run) -> None:
    """Curves of random points, whole; eight at once."""
    faster = min(
        run.lines("packing"), key=lambda line: line["seconds_a_trial_step"], default={"mps": False}
    )
    trials, steps, evaluations = (2, 2, 1) if run.rehearsal else (TRIALS, STEPS, EVALUATIONS)
    under_mps = faster["mps"] and start_mps()
    words = (f"schedule.max_steps={steps}", f"schedule.evaluations={evaluations}")
    folder = run.sweep(
        "curves",
        *SPACE,
        *words,
        "search=random",
        "search.stopping=none",
        f"search.trials={trials}",
        "search.seed=1",
        trials_at_once=min(PACKED, trials),
    )
    if under_mps:
        stop_mps()
    done = {line["trial"] for line in run.lines("curves")}
    for trial in sorted(folder.glob("trials/*")):
        result = trial / "result.json"
        if (
            trial.name not in done
            and result.is_file()
            and json.loads(result.read_text())["status"] == "finished"
        ):
            run.write("curves", trial=trial.name, mps=under_mps, **read_curve(trial))


def run_search(run: Run) -> None:
    """The default search on the same space: what it finds, and what it costs."""
    trials, steps = (2, 2) if run.rehearsal else (12, STEPS)
    folder = run.sweep(
        "search",
        *SPACE,
        f"schedule.max_steps={steps}",
        f"search.trials={trials}",
        trials_at_once=min(PACKED, trials),
    )
    results = [json.loads(path.read_text()) for path in folder.glob("trials/*/result.json")]
    lines = [read(path) for path in folder.glob("trials/*/metrics.jsonl")]
    trained = sum(line["kind"] == "train" for found in lines for line in found)
    kept = [{key: result[key] for key in ("status", "objective", "step")} for result in results]
    run.write("search", results=kept, share=round(trained / (trials * steps), 3))


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON file of lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_curve(trial: Path) -> dict[str, Any]:
    """Return one finished trial as benchmarks/curves keeps it."""
    from omegaconf import OmegaConf

    config, result = (
        OmegaConf.load(trial / "config.yaml"),
        json.loads((trial / "result.json").read_text()),
    )
    reader = CurveReader(trial / "metrics.jsonl", "eval_reward")
    reader.update()
    point = {
        "lr": float(f"{config.lr:.6g}"),
        "num_generations": config.batch.num_generations,
        "beta": config.kl.beta,
    }
    return {
        "task": "sums",
        "point": point,
        "seed": config.seed,
        "start": None if reader.start is None else round(reader.start, 5),
        "steps": reader.steps,
        "held_out": shorten(reader.held_out),
        "held_out_se": shorten(reader.errors),
        **{name: shorten(reader.signals[name]) for name in SIGNALS},
        "completions_per_step": reader.completions[-1] / reader.steps[-1],
        "seconds": round(result["gpu_seconds"], 2),
    }


def shorten(values: Iterator[float | None] | list[float | None]) -> list[float | None]:
    """Keep four digits."""
    return [None if value is None else float(f"{value:.4g}") for value in values]


PARTS: dict[str, Callable[[Run], None]] = {
    "tests": run_tests,
    "memory": run_memory,
    "packing": run_packing,
    "curves": run_curves,
    "search": run_search,
}


def main() -> int:
    """Run the parts that there is time for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="the folder that make real-model writes")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument(
        "--seconds", type=float, default=540, help="stop in time; the same command continues"
    )
    parser.add_argument("--to", type=Path, default=PROJECT / "build" / "gpu")
    parser.add_argument("--rehearsal", action="store_true", help="small numbers, on a CPU too")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}.")
    said = subprocess.run(
        [sys.executable, "-c", CARD], capture_output=True, text=True, check=True
    ).stdout
    card, devices = said.splitlines()
    if card == "CPU" and not asked.rehearsal:
        parser.error("no GPU is visible to torch. --rehearsal does all of it in small on a CPU.")
    if not (asked.model / "config.json").is_file():
        parser.error(f"{asked.model} holds no model. Run make real-model.")
    asked.to.mkdir(parents=True, exist_ok=True)
    run = Run(
        asked.model.resolve(),
        asked.to.resolve(),
        time.monotonic() + asked.seconds,
        asked.rehearsal,
        card,
        devices,
    )
    for name in asked.parts:
        if run.seconds < 20:
            print(f"no time is left for {name}: the same command continues", file=sys.stderr)
            break
        began = time.monotonic()
        PARTS[name](run)
        run.write("took", of=name, seconds=round(time.monotonic() - began, 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
