"""What writers and controllers that were killed leave lying about."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from grposweep.files import age_seconds, is_draft
from grposweep.search.journal import LOCK_SECONDS, lock_age, remove_lock
from grposweep.sweep.doctor.finding import Finding
from grposweep.sweep.folder import SweepFolder

OLD_SECONDS = 60.0  # a living writer's draft is there for milliseconds


def check_lease(folder: SweepFolder) -> Iterator[Finding]:
    """The lease of a controller that is not at work any more; whoever takes it over mends that."""
    if (folder.path / "lease.json").exists():
        yield Finding("lease.json was left by a controller that died", "take it over and give it back", lambda: None)


def check_leftovers(folder: SweepFolder) -> Iterator[Finding]:
    """Drafts, and a dead writer's lock; only where nobody is at work."""
    for path in _drafts(folder.path):
        yield Finding(f"{path.relative_to(folder.path)} is the draft of a writer that died", "delete it", path.unlink)
    if lock_age(folder.journal) > LOCK_SECONDS:
        yield Finding(
            "study.journal.lock was left by a program that died", "remove it", partial(remove_lock, folder.journal)
        )


def _drafts(root: Path) -> Iterator[Path]:
    """Drafts in the sweep's folder and in its trials' own, not in what trainers write below."""
    for folder in (root, root / "prepare", *sorted((root / "trials").glob("*/"))):
        for path in sorted(folder.glob(".*")):
            if path.is_file() and is_draft(path.name) and age_seconds(path) > OLD_SECONDS:
                yield path
