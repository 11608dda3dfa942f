"""The rules compared with EasyR1's and verl's own code (make easyr1, make verl).

    python benchmarks/frameworks/in_prompts.py easyr1|verl

Draws recipes that fit, breaks each in a known way, draws others at random, and lets lint and the
real code judge them; then the fixes. Writes its section of RESULTS.md, and recipes with the real
verdicts for the tests. Exit code 1 where anything differs.
"""

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "tests"), str(HERE)]

from results import write_section  # noqa: E402  # found through the line above

from real_dotted import PEERS, Asker, Comparison, Peer, compare  # noqa: E402  # same

PYTHON = PROJECT / ".venvs" / "verl" / "bin" / "python"
COUNT, SEED = 240, 1
# recipes of each kind and verdict that the tests keep
KEPT = 3
WHAT = {
    "verl": "Hydra composes verl's own configuration, its classes and `validate_config` judge "
    "it; the assertions that come "
    "after minutes (workers, trainer) are copied and applied too, and those on KL are its own "
    "functions",
    "easyr1": "OmegaConf merges its own classes, then `RayPPOTrainer.__init__`, the workers' "
    "`_init_dist_mesh`, "
    "`DataProto.chunk` and `split`, `compute_policy_loss` and `compute_kl` run; Ray, vLLM and "
    "process groups are stand-ins",
}
BODY = """`make {name}`, {date}: {versions}. {count} recipes drawn so that they fit (seed {seed}), each of them broken in
one of {kinds} ways, and {count} with sizes drawn at random. {what}.

| recipes | of them mutants | accepted | refused | fixes judged | differences | seconds |
|---|---|---|---|---|---|---|
| {recipes:,} | {mutants:,} | {accepted:,} | {refused:,} | {fixes:,} | {differences} | {seconds:.0f} |

| linter | precision | recall | recipes judged rightly |
|---|---|---|---|
| `grposweep lint` | {precision:.3f} | {recall:.3f} | {right:.1%} |
| one that always says ok | - | 0 | {fine:.1%} |

Counted as broken although {name} accepts them silently: {silent}.
"""


def main(name: str) -> int:
    """Compare, write, and say whether the two sides agree."""
    peer, start = PEERS[name], time.monotonic()
    asker = Asker(str(PYTHON), name, dict(os.environ))
    done = compare(peer, asker, COUNT, SEED)
    asker.close()
    write_section(f"{name}: configuration and checks", _body(peer, done, time.monotonic() - start))
    kept = PROJECT / "tests" / "frameworks" / f"{name}_verdicts.jsonl"
    kept.write_text("".join(json.dumps(line) + "\n" for line in done.kept(KEPT)))
    print(
        f"{len(done.judged)} recipes, {done.accepted} accepted, {done.fixes} fixes, "
        f"{len(done.differences)} differences"
    )
    print(*done.differences[:20], sep="\n")
    return 1 if done.differences else 0


def _body(peer: Peer, done: Comparison, seconds: float) -> str:
    precision, recall, right, fine = done.rates(peer)
    versions = ", ".join(f"{package} {number}" for package, number in done.versions.items())
    return BODY.format(
        name=peer.name,
        date=datetime.now(UTC).date(),
        versions=versions,
        count=COUNT,
        seed=SEED,
        what=WHAT[peer.name],
        kinds=len(peer.mutations),
        recipes=len(done.judged),
        mutants=done.mutants,
        accepted=done.accepted,
        seconds=seconds,
        refused=len(done.judged) - done.accepted,
        fixes=done.fixes,
        differences=len(done.differences),
        right=right,
        fine=fine,
        precision=precision,
        recall=recall,
        silent=", ".join(sorted(peer.silent)),
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
