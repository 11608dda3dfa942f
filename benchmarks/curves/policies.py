"""Which ways of searching are compared, by name."""

from rehearsal import ORACLE, Policy

from grposweep.search import early_stopping as stopping
from grposweep.search.sampler import ADAPTIVE

DEFAULT = "default"
REFERENCE = "tpe"
POLICIES = {
    DEFAULT: Policy(ADAPTIVE, stopping.DEFAULT),  # what a sweep does that sets neither
    "curve_ei": Policy("curve_ei", "curve_ei"),
    "default_terminated": Policy(ADAPTIVE, stopping.DEFAULT, terminator=True),
    "curve_ei_terminated": Policy("curve_ei", "curve_ei", terminator=True),
    "tpe_curve_ei": Policy("tpe", "curve_ei"),  # what its stopping does by itself
    "random": Policy("random"),
    REFERENCE: Policy("tpe"),
    "random_curve": Policy("random", "curve"),  # what stopping does by itself
    "asha": Policy("tpe", "asha"),
    "hyperband": Policy("tpe", "hyperband"),
    "median": Policy("tpe", "median"),
    ORACLE: Policy(
        "tpe", ORACLE
    ),  # no policy: what plain TPE could save at most by stopping after the first evaluation
    "hydra_batch_tpe": Policy("tpe", batch=8),  # hydra-optuna-sweeper: a batch is told when all of it has ended
}
