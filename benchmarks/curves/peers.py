"""Other searchers, each in an environment of its own under .venvs, asked in a process of their
own.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from outcome import Outcome
from pool import Pool

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]


@dataclass(frozen=True)
class Peer:
    """A program that searches a pool, and the make target that installs what it needs."""

    program: str
    target: str

    @property
    def python(self) -> Path:
        """Return its interpreter."""
        return PROJECT / ".venvs" / self.target / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        """Return whether the interpreter exists."""
        return self.python.exists()


PEERS = {"neps_asha": Peer("neps_asha.py", "neps")}


def rehearse_peer(pool: Pool, peer: Peer, seeds: Sequence[int], trials: int) -> list[Outcome]:
    """Return all repeats of a peer; its program reads the pool from a file and prints the
    outcomes.
    """
    with tempfile.TemporaryDirectory() as folder:
        question = Path(folder) / "question.json"
        places = [
            {"point": place.point, "trainings": [asdict(t) for t in place.trainings]}
            for place in pool.places
        ]
        question.write_text(
            json.dumps(
                {"name": pool.name, "places": places, "seeds": list(seeds), "trials": trials}
            )
        )
        done = subprocess.run(
            [peer.python, HERE / peer.program, question],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=folder,
        )
    return [Outcome(**outcome) for outcome in json.loads(done.stdout.splitlines()[-1])]
