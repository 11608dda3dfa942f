"""The rules compared with ms-swift's own argument classes: python benchmarks/frameworks/ms_swift.py
(make ms-swift).

Draws recipes, breaks each in a known way, and lets lint and the real classes judge them, in
ms-swift's own environment; then the fixes. Writes its section of RESULTS.md, and the recipes with
the real verdicts for the tests. Exit code 1 where anything differs.
"""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "tests"), str(HERE)]

from results import write_section  # noqa: E402  # same

from real_ms_swift import LATE, MUTATIONS, Comparison, compare  # noqa: E402  # found through the line above

PYTHON = PROJECT / ".venvs" / "ms-swift" / "bin" / "python"
TINY = PROJECT / "outputs" / "ms-swift-tiny"
VERDICTS = PROJECT / "tests" / "frameworks" / "ms_swift_verdicts.jsonl"
COUNT, SEED = 500, 1
# drawn recipes and mutants of each kind that the tests keep
KEPT = 8

BODY = """`make ms-swift`, {date}: ms-swift {ms-swift}, trl {trl}, transformers {transformers}, torch {torch}. {count} recipes
drawn at random (seed {seed}), and each of them broken in one of {kinds} ways; ms-swift's parser and its `RLHFArguments` judge
them with everything real but the number of processes. Accepted recipes are read as ms-swift reads them: sizes, schedule,
loss, KL, evaluation.

| recipes | accepted | refused | read alike | fixes judged | differences | seconds |
|---|---|---|---|---|---|---|
| {recipes:,} | {accepted:,} | {refused:,} | {derived:,} | {fixes:,} | {differences} | {seconds:.0f} |

| linter | precision | recall | recipes judged rightly |
|---|---|---|---|
| `grposweep lint` | {precision:.3f} | {recall:.3f} | {right:.1%} |
| one that always says ok | - | 0 | {fine:.1%} |

Mutants that ms-swift's classes take and that fail in training only ({late}) count as correct where lint refuses them.
"""


def main() -> int:
    """Compare, write, and say whether the two sides agree."""
    subprocess.run([sys.executable, str(HERE / "tiny" / "prepare.py"), str(TINY)], check=True)
    start = time.monotonic()
    done = compare(str(PYTHON), str(TINY), COUNT, SEED)
    write_section("ms-swift: argument classes", _body(done, time.monotonic() - start))
    VERDICTS.write_text("".join(json.dumps(line) + "\n" for line in done.kept(KEPT)))
    print(f"{done.accepted} accepted, {done.refused} refused, {len(done.differences)} differences")
    print(*done.differences[:20], sep="\n")
    return 1 if done.differences else 0


def _body(done: Comparison, seconds: float) -> str:
    counts = {
        "count": COUNT,
        "seed": SEED,
        "kinds": len(MUTATIONS),
        "recipes": done.accepted + done.refused,
    }
    return BODY.format(
        date=datetime.now(UTC).date(),
        seconds=seconds,
        late=", ".join(LATE),
        differences=len(done.differences),
        accepted=done.accepted,
        refused=done.refused,
        derived=done.derived,
        fixes=done.fixes,
        right=done.right,
        fine=done.fine,
        precision=done.precision,
        recall=done.recall,
        **counts,
        **done.versions,
    )


if __name__ == "__main__":
    sys.exit(main())
