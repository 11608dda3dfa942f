"""A plugin for ms-swift: registers a callback for ``--callbacks`` that stops a trial at a rollout
boundary.

It runs in ms-swift's environment. If grposweep cannot be imported there, training continues without
the callback, and only the log is read.
"""

from typing import Any

from swift.callbacks import callbacks_map
from transformers import TrainerCallback


def build_callback(_arguments: Any, _trainer: Any) -> TrainerCallback:
    """Return the callback. ms-swift calls the entries of its map with these arguments."""
    try:
        from grposweep.command import Callback
    except (ImportError, SyntaxError) as error:
        # another Python version
        print(
            f"grposweep cannot be imported here ({error}): its log is read, and a stop ends "
            "this process",
            flush=True,
        )
        return TrainerCallback()
    return Callback()


callbacks_map["grposweep"] = build_callback
