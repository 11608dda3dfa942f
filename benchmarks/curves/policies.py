"""The compared ways of searching, by name."""

from dataclasses import replace

from rehearsal import Policy

from grporecipe.errors import UserError
from grposweep.schema import AUTO
from grposweep.search.early_stopping import choose_effort
from grposweep.search.sampler import ADAPTIVE

DEFAULT = "default"
REFERENCE = "tpe"
POLICIES = {
    # a sweep that sets neither sampler nor policy
    DEFAULT: Policy(ADAPTIVE, AUTO, choose_effort(None, ADAPTIVE)),
    "rank": Policy("tpe", "rank", choose_effort(None, "tpe")),
    REFERENCE: Policy("tpe"),
    "random": Policy("random"),
    "median": Policy("tpe", "median"),
    "asha": Policy("tpe", "asha"),
    "hyperband": Policy("tpe", "hyperband"),
    # successive halving (2, 2): the best half at evaluations 2, 4, 8, ...
    "halving": Policy("tpe", "halving"),
    # of our own, with paused trials: see own_asha.py
    "own_asha": Policy("tpe", "own_asha"),
    # hydra-optuna-sweeper: a batch is told when all of it has ended
    "hydra_batch_tpe": Policy("tpe", batch=8),
}


def find_policy(name: str, effort: float | None) -> Policy:
    """Return the policy behind a name, or behind ``NAME@EFFORT``; ``effort`` is that of names
    without one.

    Raises UserError for an unknown name or an effort that is no share.
    """
    base, _, own = name.partition("@")
    policy = POLICIES.get(base)
    if policy is None or (own and policy.effort is None):
        raise UserError(
            f"--policy {name}: there is no such policy. Set any of {', '.join(POLICIES)}, or "
            "default@0.5."
        )
    if policy.effort is None or not (own or effort is not None):
        return policy
    is_number = own.replace(".", "", 1).isdecimal()
    chosen = (float(own) if is_number else 0.0) if own else effort or 0.0
    if not 0 < chosen <= 1:
        raise UserError(
            f"--policy {name}: its effort is above 0 and up to 1. Set such as default@0.5 or "
            "--effort 0.5."
        )
    return replace(policy, effort=chosen)
