"""GE: the evaluation batch, which keeps the older and stricter rule, and the evaluations that an objective needs.

Sources: as for GB; the check came with TRL 0.15, was absent in 0.20 and 0.21, and is back since 0.22.
"""

from math import gcd

from grposweep.rules import process_counts as counts
from grposweep.rules.registry import Violation, rule
from grposweep.setting import TRL_LIKE, Setting

READS = (
    "version",
    "processes",
    "per_device_eval_batch_size",
    "num_generations",
    "num_generations_eval",
    "evaluates",
    "unsolved",
)
CHECKED, UNCHECKED, RECHECKED = (0, 15), (0, 20), (0, 22)
OWN_GROUPS, OWN_GROUPS_CHECKED = (0, 26), (0, 26, 1)  # num_generations_eval: added, and read by the check


def evaluation_group(s: Setting) -> int:
    """Completions a held-out prompt; ``num_generations_eval`` counts since TRL 0.26, and 0 there is as unset."""
    return (s.num_generations_eval or s.num_generations) if s.version >= OWN_GROUPS else s.num_generations


def _checked_group(s: Setting) -> int:
    """The group that this version's check divides by, 0 for none."""
    if s.version < CHECKED or UNCHECKED <= s.version < RECHECKED:
        return 0
    return evaluation_group(s) if s.version >= OWN_GROUPS_CHECKED else s.num_generations


def _missed_group(s: Setting) -> int:
    """The group that this version should check but does not, 0 for none."""
    missed = UNCHECKED <= s.version < RECHECKED or OWN_GROUPS <= s.version < OWN_GROUPS_CHECKED
    return evaluation_group(s) if missed else 0


def _counts(s: Setting, group: int) -> int:
    size = s.per_device_eval_batch_size
    if group < 1 or size < 1 or not s.evaluates or "per_device_eval_batch_size" in s.unsolved:
        return counts.ALL
    return counts.multiples(group // gcd(group, size))


def _torn(s: Setting, group: int) -> int | None:
    """The completions of an evaluation batch that are not whole groups; None where they are, or are not known."""
    size = s.per_device_eval_batch_size
    if group < 1 or s.processes is None or s.processes < 1 or not s.evaluates or size < 1:
        return None
    if "per_device_eval_batch_size" in s.unsolved or size * s.processes % group == 0:
        return None
    return size * s.processes


@rule("GE101", "error", READS, lambda s: _counts(s, _checked_group(s)), of=TRL_LIKE)
def whole_groups_in_evaluation(s: Setting) -> Violation | None:
    """The global evaluation batch, B_eval W, must be a multiple of the evaluation's generations.

    There is no accumulation in evaluation. ``num_generations_eval`` defaults to ``num_generations`` (also when 0).
    TRL 1.16: "The global eval batch size (4 * 1) must be divisible by the number of generations used for evaluation (8)."
    Checked where ``eval_strategy`` is not ``no`` (``do_eval`` follows from it); see GE103 for the versions in between.
    """
    group = _checked_group(s)
    total = _torn(s, group)
    if total is None:
        return None
    return Violation(
        what=f"{s.key('per_device_eval_batch_size')}={s.per_device_eval_batch_size}",
        why=f"{s.processes} x {s.per_device_eval_batch_size} = {total} completions are not whole groups of {group}",
        instead=f"Choose a size whose product with the processes is a multiple of {group}.",
        fields=("per_device_eval_batch_size", "num_generations_eval"),
    )


@rule("GE103", "error", READS, lambda s: _counts(s, _missed_group(s)))
def evaluation_does_not_fail_late(s: Setting) -> Violation | None:
    """TRL 0.20 and 0.21 do not check the evaluation batch; the first evaluation fails on groups that are not whole.

    Rewards are viewed as rows of G: "RuntimeError: shape '[-1, 4]' is invalid for input of size 3". The same in 0.26.0
    for ``num_generations_eval``, which its check does not read.
    """
    group = _missed_group(s)
    total = _torn(s, group)
    if total is None:
        return None
    return Violation(
        what=f"{s.key('per_device_eval_batch_size')}={s.per_device_eval_batch_size}",
        why=f"{s.processes} x {s.per_device_eval_batch_size} = {total} completions are not whole groups of {group}; "
        "this TRL does not check it, and the first evaluation fails",
        instead=f"Choose a size whose product with the processes is a multiple of {group}.",
        fields=("per_device_eval_batch_size", "num_generations_eval"),
    )


@rule(
    "GE102",
    "error",
    ("per_device_eval_batch_size", "num_generations_eval", "eval_prompts", "evaluates", "auto"),
    of=TRL_LIKE,
)
def evaluation_sizes_are_positive(s: Setting) -> Violation | None:
    """Evaluation needs a batch size, generations and held-out prompts of at least 1 each.

    TRL 1.16 accepts 0 at construction and fails in the data loader (0 generations are as unset).
    """
    if not s.evaluates:
        return None
    for name in ("per_device_eval_batch_size", "num_generations_eval", "eval_prompts"):
        value = getattr(s, name)
        if value is not None and value < 1 and name not in s.auto and (name, value) != ("num_generations_eval", 0):
            return Violation(
                what=f"{s.key(name)}={value}",
                why="held-out evaluation needs at least 1",
                instead=f"Set {s.key(name)} to 1 or more, or evaluate nothing.",
                fields=(name,),
                suggestions=_positive(name),
            )
    return None


def _positive(name: str) -> tuple[dict[str, int | None], ...]:
    """Values to try: an unset one where TRL has a default, powers of two before other sizes."""
    if name == "per_device_eval_batch_size":
        return tuple({name: n} for n in (8, 16, 64, *range(1, 65)))
    return ({name: None}, {name: 64})


@rule("GE201", "warning", ("evaluates", "dataloader_drop_last", "eval_prompts", *READS))
def held_out_prompts_are_all_scored(s: Setting) -> Violation | None:
    """``dataloader_drop_last`` has no effect on GRPO's training batches, but drops trailing prompts of an evaluation.

    Measured with trl 1.16: of 5 prompts in groups of 4, a batch of 8 completions scores 4.
    """
    if not s.dataloader_drop_last or not s.evaluates or not s.eval_prompts or not s.processes:
        return None
    group, batch = evaluation_group(s), s.per_device_eval_batch_size * s.processes
    if min(s.eval_prompts, group, batch) < 1 or not (left := s.eval_prompts * group % batch):
        return None
    return Violation(
        what=f"{s.key('dataloader_drop_last')}=true",
        why=f"{-(-left // group)} of {s.eval_prompts} held-out prompts are left out of every evaluation",
        instead=f"Set {s.key('dataloader_drop_last')}=false; training does not read it.",
        fields=("dataloader_drop_last",),
    )


@rule("GE202", "warning", ("do_eval", *READS))
def a_last_evaluation_would_work(s: Setting) -> Violation | None:
    """With ``do_eval`` and ``eval_strategy=no`` TRL checks no evaluation batch, and a script that evaluates at the end fails.

    Open-R1's script does so. Measured with trl 1.16: "RuntimeError: shape '[-1, 4]' is invalid for input of size 3".
    """
    if not s.do_eval or s.evaluates or s.processes is None or s.version < CHECKED:
        return None
    group, total = evaluation_group(s), s.per_device_eval_batch_size * s.processes
    if min(group, total) < 1 or total % group == 0:
        return None
    return Violation(
        what=f"{s.key('do_eval')}=true",
        why=f"a script that evaluates after training would fail then: {total} completions are not whole groups of {group}",
        instead=f"Choose {s.key('per_device_eval_batch_size')} so that the product is a multiple of {group}, "
        f"or set {s.key('do_eval')}=false.",
        fields=("do_eval", "per_device_eval_batch_size"),
    )
