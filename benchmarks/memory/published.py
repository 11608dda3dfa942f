"""The memory estimator against published figures: runs that fitted, ran out of memory, or logged
their peak.

``python benchmarks/memory/published.py`` prints each run with its estimate, and for each family how
many verdicts are right and how far the figures are off. ``--json`` prints the rows as JSON lines.
The runs are in published.jsonl, each with its source.

A run is used for reporting only (held back) if the first byte of the SHA-256 of its id is below 85:
about a third. No constant was chosen by those, but they were seen: RESULTS.md says what followed. A
run whose source does not state a size that its memory depends on is incomplete, and counted apart.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from grporecipe.memory.catalog import find_model
from grporecipe.memory.estimate import GIB, estimate
from grporecipe.memory.fit import judge
from grporecipe.memory.host import find_host_memory
from grporecipe.model.setting import Runtime, Setting

HERE = Path(__file__).resolve().parent
# of 256
HELD_BACK = 85
# what fits, and what does not (verl examples/tuning, April 2025, H100)
BISECTIONS = {
    "Qwen2.5-7B-Instruct": (100, 101),
    "Qwen2.5-14B-Instruct": (58, 59),
    "Qwen2.5-32B-Instruct": (44, 45),
    "Qwen2.5-72B-Instruct": (22, 23),
}


@dataclass(frozen=True)
class Comparison:
    """One published run: what its source says (``fits`` or ``gib``), and the estimate with its
    interval in GiB.

    ``reserved`` is what torch reserved: it keeps blocks while a GPU has room, so it is shown and
    not compared.
    """

    id: str
    family: str
    complete: bool
    held_back: bool
    gpu_gib: float | None
    fits: bool | None
    gib: float | None
    reserved: float | None
    estimate: float
    low: float
    high: float
    phase: str

    @property
    def error(self) -> float | None:
        """Return how far the estimate is off the figure, as a share of it."""
        return None if self.gib is None else self.estimate / self.gib - 1

    @property
    def verdict(self) -> bool | None:
        """Return whether the estimate says that the run fits; None where its interval holds the
        GPU's memory.
        """
        return None if self.gpu_gib is None else judge(self.low, self.high, self.gpu_gib)

    @property
    def is_false(self) -> bool:
        """Return whether the estimate says the opposite of what was published, beyond its
        interval.
        """
        ran = self.fits if self.gib is None else True
        return ran is not None and self.verdict is not None and self.verdict is not ran


def read_rows(path: Path = HERE / "published.jsonl") -> list[dict[str, Any]]:
    """Return the published runs."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_setting(row: dict[str, Any]) -> Setting | None:
    """Return the setting of a run; None where its model is not known."""
    model, fields = find_model(row["model"]), row["runtime"]
    if model is None or not isinstance(row["gpus"], int):
        return None
    runtime = Runtime(**{**fields, "offloads": frozenset(fields.get("offloads", ()))})
    own = {
        "evaluates": False,
        "architecture": model,
        "runtime": runtime,
        "gpu_memory_gib": row["gpu_gib"],
    }
    return Setting(version=tuple(row["version"] or (1, 16, 0))).replace({**own, **row["setting"]})


def compare(rows: Iterable[dict[str, Any]]) -> list[Comparison]:
    """Return the runs that can be estimated, each with its estimate."""
    found = []
    for row in rows:
        s = read_setting(row)
        memory = None if s is None else estimate(s)
        outcome = row["outcome"]
        if memory is None or not outcome.keys() & {"fits", "gib"}:
            continue
        found.append(
            Comparison(
                row["id"],
                row["family"],
                row["complete"],
                sha256(row["id"].encode()).digest()[0] < HELD_BACK,
                row["gpu_gib"],
                *(outcome.get(name) for name in ("fits", "gib", "reserved_gib")),
                memory.peak / GIB,
                memory.low / GIB,
                memory.high / GIB,
                memory.peak_phase,
            )
        )
    return found


def table(found: Iterable[Comparison]) -> str:
    """Return a line a run."""
    lines = [
        "| run | published | estimate GiB | interval | phase | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for each in found:
        ran = {True: "fits", False: "out of memory", None: ""}[each.fits]
        kept = f" ({each.reserved:.1f} GiB reserved)" if each.reserved is not None else ""
        published = (
            f"{each.gib:.1f} GiB ({each.error:+.0%}){kept}" if each.gib is not None else ran + kept
        )
        words = {True: "fits", False: "does not fit", None: "may fit"}[each.verdict]
        marks = " (held back)" * each.held_back + " (incomplete)" * (not each.complete)
        wrong = ", WRONG" if each.is_false else ""
        of = "" if each.gpu_gib is None else f" of {each.gpu_gib:g}"
        lines.append(
            f"| {each.id}{marks} | {published} | {each.estimate:.1f}{of} | "
            f"{each.low:.1f}-{each.high:.1f} | {each.phase} | {words}{wrong} |"
        )
    return "\n".join(lines)


def summary(found: Iterable[Comparison]) -> str:
    """Return a line a family: how many verdicts are right, open or false, and the errors of
    figures.
    """
    families: dict[str, list[Comparison]] = defaultdict(list)
    for each in found:
        families[each.family].append(each)
        families["all"].append(each)
    lines = [
        "| family | runs | false fits | false refusals | within the interval | figures | median "
        "error | 90 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family, runs in sorted(families.items(), key=lambda item: (item[0] == "all", item[0])):
        errors = sorted(abs(each.error) for each in runs if each.error is not None)
        figures = (
            f"{median(errors):.0%} | {errors[ceil(0.9 * len(errors)) - 1]:.0%}" if errors else " | "
        )
        fits, refused = (
            sum(each.is_false and each.verdict is verdict for each in runs)
            for verdict in (True, False)
        )
        unsure = sum(each.verdict is None for each in runs)
        lines.append(
            f"| {family} | {len(runs)} | {fits} | {refused} | {unsure} | {len(errors)} | "
            f"{figures} |"
        )
    return "\n".join(lines)


def compare_host(rows: Iterable[dict[str, Any]]) -> str:
    """Return a line a run whose main memory a node was logged."""
    lines = ["| run | main memory GiB | estimate | error |", "|---|---|---|---|"]
    for row in rows:
        s, logged = read_setting(row), row["outcome"].get("host_gib")
        host = None if s is None or logged is None else find_host_memory(s)
        if host is not None:
            gib = host.peak / GIB
            lines.append(f"| {row['id']} | {logged:.0f} | {gib:.0f} | {gib / logged - 1:+.0%} |")
    return "\n".join(lines)


def largest_batch(row: dict[str, Any]) -> int:
    """Return how many sequences a GPU a run could have by the estimate, the other sizes as they
    are.
    """
    s = read_setting(row)
    assert s is not None
    assert s.gpu_memory_gib is not None
    sizes = {"per_device_train_batch_size", "experience_batch_size"}
    size = 1
    while True:
        memory = estimate(s.replace(dict.fromkeys(sizes, (size + 1) * s.sequence_parallel_size)))
        if memory is None or memory.peak > s.gpu_memory_gib * GIB:
            return size
        size += 1


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="the rows as JSON lines")
    asked = parser.parse_args()
    found = compare(read_rows())
    if asked.json:
        print("\n".join(json.dumps({**asdict(each), "error": each.error}) for each in found))
        return 0
    print(table(found))
    complete = [each for each in found if each.complete]
    for title, runs in (
        (
            "complete, used while the model was written",
            [each for each in complete if not each.held_back],
        ),
        ("complete, held back", [each for each in complete if each.held_back]),
        ("incomplete: sizes are assumed", [each for each in found if not each.complete]),
    ):
        print(f"\n{title}\n\n{summary(runs)}")
    print(f"\nmain memory of a node\n\n{compare_host(read_rows())}")
    print(
        "\nverl's bisections, in sequences a GPU\n\n| model | fits | does not fit | estimate | "
        "error |\n|---|---|---|---|---|"
    )
    by_id = {row["id"]: row for row in read_rows()}
    for model, (fits, too_many) in BISECTIONS.items():
        found = largest_batch(
            next(row for name, row in by_id.items() if name.startswith(f"verl-tuning-{model}-"))
        )
        print(f"| {model} | {fits} | {too_many} | {found} | {found / fits - 1:+.0%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
