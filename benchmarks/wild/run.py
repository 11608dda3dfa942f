"""The linter on real files of public repositories whose verdicts are known: false alarms, errors
found, files read.

    python benchmarks/wild/run.py --repositories FOLDER [--verdicts wild.jsonl] [--show
    false-alarms|missed|unread] [--to FILE]

FOLDER holds each repository as OWNER+NAME, checked out at the commit in ``wild.jsonl`` (`fetch.py`
makes it). Nothing of a repository is run. Each file is linted as a user would: by its path, from
the root of its repository.
"""

import argparse
import json
import os
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.linting.linter import lint_recipe
from grporecipe.reading.load import Options, load_recipes

# verdicts of files that their own code accepts
RUNS = ("no_error", "false_alarm")
BROKEN = ("true_error", "has_other_errors", "miss")
# a normal GRPO launch that was not read
LAUNCH = "unusable_bad"
# no GRPO launch: it should be refused
NO_LAUNCH = "unusable_ok"


def kind(row: dict[str, Any]) -> str:
    """Return what a verdict asks of the linter: "runs", "broken", "doubtful", "launch", "other" or
    "unjudged".

    Doubtful are files said to have other errors whose own Hydra composes them: what was named were
    rules of another release.
    """
    verdict = row["verdict"]
    if verdict == "has_other_errors" and row["verl_own"] == "ok":
        return "doubtful"
    known = {RUNS: "runs", BROKEN: "broken", (LAUNCH,): "launch", (NO_LAUNCH,): "other"}
    return next((name for starts, name in known.items() if verdict.startswith(starts)), "unjudged")


def lint(path: Path) -> tuple[str, Counter[str], float]:
    """Return "read", "refused" or "crash: ...", the errors by code, and the CPU seconds."""
    since = time.process_time()
    try:
        results = [lint_recipe(recipe) for recipe in load_recipes(path, Options())]
    except UserError:
        return "refused", Counter(), time.process_time() - since
    except Exception as error:  # noqa: BLE001 - a crash is a finding, and the other files are still to be linted
        return f"crash: {type(error).__name__}: {error}", Counter(), time.process_time() - since
    problems = [problem for result in results for problem in result.diagnostics]
    codes = Counter(problem.code for problem in problems if problem.severity == "error")
    return "read", codes, time.process_time() - since


def main() -> None:
    """Print the tables; write each file's answer where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repositories", type=Path, required=True)
    parser.add_argument("--verdicts", type=Path, default=Path(__file__).with_name("wild.jsonl"))
    parser.add_argument("--only", default="", help="repositories whose name contains this")
    parser.add_argument("--show", choices=("false-alarms", "missed", "unread", "crashes"))
    parser.add_argument("--to", type=Path, help="a JSON line per file")
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.verdicts.read_text(encoding="utf-8").splitlines()]
    answers = list(
        judge([row for row in rows if asked.only in row["repo"]], asked.repositories.resolve())
    )
    if asked.to:
        asked.to.write_text(
            "".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8"
        )
    print_tables(answers)
    wanted = {
        "false-alarms": "false alarm",
        "missed": "missed",
        "unread": "unread",
        "crashes": "crash",
    }.get(asked.show)
    for answer in answers:
        if answer["outcome"] == wanted:
            print(
                f"{answer['repo']} {answer['path']} {answer['codes']} {answer['status']}  "
                f"{answer['why']}"
            )


def judge(rows: list[dict[str, Any]], repositories: Path) -> "list[dict[str, Any]]":
    """Return each row with today's answer: its status, codes, CPU seconds and outcome."""
    found = []
    for row in rows:
        root = repositories / row["repo"].replace("/", "+")
        if not (root / row["path"]).is_file():
            continue
        os.chdir(root)
        status, codes, seconds = lint(Path(row["path"]))
        answer = {
            **row,
            "status": status,
            "codes": dict(codes),
            "seconds": seconds,
            "kind": kind(row),
        }
        answer["outcome"] = outcome(answer)
        found.append(answer)
    return found


def outcome(answer: dict[str, Any]) -> str:
    """Return how an answer compares with the verdict."""
    if answer["status"].startswith("crash"):
        return "crash"
    read, errors = answer["status"] == "read", bool(answer["codes"])
    match answer["kind"]:
        case "runs":
            return "unread" if not read else "false alarm" if errors else "right"
        case "broken" | "doubtful":
            return "right" if errors else "missed"
        case "launch":
            return "right" if read else "unread"
        case "other":
            return "judged" if read else "right"
    return "unjudged"


def print_tables(answers: list[dict[str, Any]]) -> None:
    """Print outcomes by framework, false alarms by code, and the time a file."""
    by: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for answer in answers:
        for framework in (answer["framework"] or "not read before", "all"):
            by[framework, answer["kind"]][answer["outcome"]] += 1
    print(
        (
            "| framework | files that | number | right | false alarm | missed | unread | judged | "
            "crash |\n"
        )
        + "|---" * 9
        + "|"
    )
    for (framework, what), counts in sorted(by.items()):
        if what == "unjudged":
            continue
        total = sum(counts.values())
        cells = [
            f"{counts[name]} ({counts[name] / total:.0%})"
            for name in ("right", "false alarm", "missed", "unread", "judged", "crash")
        ]
        print(f"| {framework} | {what} | {total} | " + " | ".join(cells) + " |")
    alarms = Counter(
        code for answer in answers if answer["outcome"] == "false alarm" for code in answer["codes"]
    )
    print(
        "\nfalse alarms, files by code: "
        + ", ".join(f"{code} {count}" for code, count in alarms.most_common())
    )
    seconds = sorted(answer["seconds"] for answer in answers)
    if seconds:
        print(
            f"CPU a file: median {seconds[len(seconds) // 2] * 1e3:.0f} ms, longest "
            f"{seconds[-1]:.2f} s"
        )


if __name__ == "__main__":
    main()
