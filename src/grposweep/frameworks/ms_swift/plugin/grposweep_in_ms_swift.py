"""An external plugin for ms-swift: our Callback by a name for ``--callbacks``, so that a trial stops at a rollout boundary.

It runs in ms-swift's environment; if that cannot import grposweep, training continues without it, and its log is read from
outside.
"""

from typing import Any

from swift.callbacks import callbacks_map
from transformers import TrainerCallback


def build_callback(_arguments: Any, _trainer: Any) -> TrainerCallback:
    """As ms-swift calls what it finds in its map."""
    try:
        from grposweep.train import Callback
    except (ImportError, SyntaxError) as error:  # another Python than ours
        print(f"grposweep cannot be imported here ({error}): its log is read, and a stop ends this process", flush=True)
        return TrainerCallback()
    return Callback()


callbacks_map["grposweep"] = build_callback
