"""Programs that are not our own trainer: ask, enter a trial's values, follow, read the log.

``from grposweep.command import Callback`` is for the user's own training scripts.
"""

from typing import Any

__all__ = ["Callback"]


def __getattr__(name: str) -> Any:
    """Import the callback at its first use, because it imports transformers."""
    if name == "Callback":
        from grposweep.command.inside.callback import Callback

        return Callback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
