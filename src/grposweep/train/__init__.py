"""One attempt at a trial: GRPO with TRL, the fake trainer, or an external program. Used through
files and a command only.

``from grposweep.train import Callback`` is for the user's own training scripts
(``trainer=script``).
"""

from typing import Any

__all__ = ["Callback"]


def __getattr__(name: str) -> Any:
    """Import the callback at its first use, because it imports transformers."""
    if name == "Callback":
        from grposweep.train.callback import Callback

        return Callback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
