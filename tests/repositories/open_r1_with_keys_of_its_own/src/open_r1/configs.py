"""Arguments of a fork."""

from dataclasses import dataclass, field

import trl


@dataclass
class GRPOScriptArguments(trl.ScriptArguments):
    """A kind of data sets that Open-R1 does not have."""

    reward_funcs: list[str] = field(default_factory=list)
    dataset_type: str = field(default="open-r1")
