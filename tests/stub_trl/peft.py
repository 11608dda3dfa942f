"""The configuration of an adapter, which is not trained."""

from typing import Any


class LoraConfig:
    """Takes everything."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)
