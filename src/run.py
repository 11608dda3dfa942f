"""The Hydra command: ``python src/run.py [-m] lr=... batch=...`` runs one experiment, or sweeps
many.
"""

import sys

# first, because it refuses an older Python, which cannot read the others
import grposweep  # noqa: F401
from grporecipe.errors import without_traceback

# importing takes a second or two
with without_traceback():
    from grposweep.cli.hydra_app import start

if __name__ == "__main__":
    start(sys.argv[1:])
