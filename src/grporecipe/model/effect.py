"""Whether a field of a setting can change a training, by what it needs (`Row.needs`).

Rules, and the dead parameters of a space, derive from it.
"""

import re

from grporecipe.model.planning import ROLLOUT_READS, steps_per_rollout
from grporecipe.model.setting import ROWS, Setting

# the need that is computed: a step may train on completions of an older policy
MOVES = "moves"
MOVES_READS = (
    *ROLLOUT_READS,
    "framework",
    "unknown",
    "unsolved",
    "num_iterations",
    "use_vllm",
    "lora",
    "lora_dropout",
)


def moves(s: Setting) -> bool:
    """Return whether the policy may differ from the one that generated a rollout.

    It is the same, and each ratio 1, if A % (S mu) == 0: one step uses up the rollout. With vLLM
    TRL computes the old log-probabilities with the same weights; dropout then draws another mask.
    """
    is_known = s.generation_batch_size is None or s.processes is not None
    if not is_known or s.unsolved or (s.use_vllm and s.lora and s.lora_dropout > 0):
        return True
    return s.gradient_accumulation_steps < 1 or steps_per_rollout(s).numerator != 1


def find_lack(s: Setting, name: str) -> str:
    """Return the need without which a field has no effect; empty if it has one, or may have one.

    Of several alternatives the one counts that lacks least.
    """
    row = ROWS[name]
    if not row.needs or (row.of_trl and "extends TRL" not in s.framework.labels):
        return ""
    lacks = []
    for alternative in row.needs.split(" or "):
        lacks.append([need for need in alternative.split() if not _holds(s, need)])
    least = min(reversed(lacks), key=len)
    if least and s.keys.get(least[0], "") != s.key(name):
        return least[0]
    return ""


def describe_lack(s: Setting, need: str) -> tuple[str, str]:
    """Return why a field without this need has no effect, and what would give it one."""
    if need == MOVES:
        return (
            "each rollout is used for one step only, which keeps the ratio at 1",
            f"Set {s.key('num_iterations')}=2, for example",
        )
    other, sign, wanted = _parts(need)
    value = getattr(s, other)
    key = s.key(other)
    if key == s.keys.get("lora_rank"):
        value = s.lora_rank
    shown = "null" if value is None else str(value).lower()
    reason = f"nothing reads it while {key} is {shown}"
    if sign == "=":
        return reason, f"Set {key}={wanted.replace('None', 'null')}"
    if sign == "!=":
        return reason, f"Set another {key}"
    if sign == "<":
        return reason, f"Set {key} below {wanted}"
    if not isinstance(value, bool) and isinstance(value, int | float):
        return reason, f"Set {key} above 0"
    return reason, f"Set {key}=true"


def _holds(s: Setting, need: str) -> bool:
    if need == MOVES:
        return not s.unknown.isdisjoint(MOVES_READS) or moves(s)
    other, sign, wanted = _parts(need)
    value = getattr(s, other)
    if other in s.unknown:
        return True
    if sign == "<":
        return value is not None and value < float(wanted)
    if sign:
        return (str(value) in wanted.split("|")) is (sign == "=")
    return bool(value)


def _parts(need: str) -> list[str]:
    return re.split(r"(!=|[=<]|$)", need, maxsplit=1)
