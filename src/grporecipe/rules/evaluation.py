"""GE: the evaluation batch, which keeps the older and stricter rule, and the evaluations that the
objective needs.

Sources: as for GB; the check came with TRL 0.15, was absent in 0.20 and 0.21, and is back since
0.22.
"""

from collections.abc import Callable

from grporecipe.model import planning
from grporecipe.model.setting import TRL_FAMILY, TRL_LIKE, Setting
from grporecipe.rules.batch import LARGE_MODEL, judgeable
from grporecipe.rules.helpers import each, no_field
from grporecipe.rules.registry import Change, F, Finding, rule

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
# of all completions
MOST_EVALUATION = 1 / 3
# num_generations_eval: added, and read by the check
OWN_GROUPS, OWN_GROUPS_CHECKED = (0, 26), (0, 26, 1)


def evaluation_group(s: Setting) -> int:
    """Return completions per held-out prompt. ``num_generations_eval`` counts since TRL 0.26; 0
    means unset.
    """
    if s.version >= OWN_GROUPS:
        return s.num_generations_eval or s.num_generations
    return s.num_generations


def _checked_group(s: Setting) -> int:
    """Return the group that this version's check divides by; 0 for none."""
    if s.version < CHECKED or UNCHECKED <= s.version < RECHECKED:
        return 0
    return evaluation_group(s) if s.version >= OWN_GROUPS_CHECKED else s.num_generations


def _missed_group(s: Setting) -> int:
    """Return the group that this version should check but does not; 0 for none."""
    missed = UNCHECKED <= s.version < RECHECKED or OWN_GROUPS <= s.version < OWN_GROUPS_CHECKED
    if missed:
        return evaluation_group(s)
    return 0


def _torn(s: Setting, group: int) -> Finding:
    """Return the completions of an evaluation batch if they are not whole groups; None if they are,
    or are unknown.
    """
    size = s.per_device_eval_batch_size
    processes = s.processes or 0
    if not s.evaluates or "per_device_eval_batch_size" in s.unsolved:
        return None
    if min(group, size, processes) < 1 or size * processes % group == 0:
        return None
    return {"total": size * processes, "group": group}


def _whole(code: str, of: frozenset[str], consequence: str = "") -> Callable[[F], F]:
    """Register a rule that an evaluation batch holds whole groups."""
    reason = (
        "{s.processes} x {s.per_device_eval_batch_size} = {total} completions are not whole "
        "groups of {group}"
    )
    return rule(
        code,
        "error",
        READS,
        "by trial",
        of=of,
        blames=("per_device_eval_batch_size", "num_generations_eval"),
        why=reason + consequence,
        instead="Choose a size whose product with the processes is a multiple of {group}.",
    )


@_whole("GE101", TRL_LIKE)
def whole_groups_in_evaluation(s: Setting) -> Finding:
    """The global evaluation batch, B_eval W, must be a multiple of the evaluation's generations.

    There is no accumulation in evaluation. ``num_generations_eval`` defaults to ``num_generations``
    (also when 0). TRL 1.16: "The global eval batch size (4 * 1) must be divisible by the number of
    generations used for evaluation (8)." Checked if ``eval_strategy`` is not ``no`` (``do_eval``
    follows from it). GE103 covers the versions in between.
    """
    return _torn(s, _checked_group(s))


@_whole(
    "GE103",
    TRL_FAMILY,
    "; this TRL does not check it, and the first evaluation fails",
)
def evaluation_does_not_fail_late(s: Setting) -> Finding:
    """TRL 0.20 and 0.21 do not check the evaluation batch; the first evaluation fails on groups
    that are not whole.

    Rewards are viewed as rows of G: "RuntimeError: shape '[-1, 4]' is invalid for input of size 3".
    The same in 0.26.0 for ``num_generations_eval``, which its check does not read, where GE101
    finds nothing.
    """
    if _torn(s, _checked_group(s)):
        return None
    return _torn(s, _missed_group(s))


def _positive(name: str) -> tuple[Change, ...]:
    """Return values to try: unset if TRL has a default, powers of two before other sizes."""
    tried = {"per_device_eval_batch_size": (8, 16, 64, *range(1, 65)), "eval_prompts": (64, 16)}
    return each(name, tried.get(name, (None, 64)))


def _is_too_small(s: Setting, name: str, value: int) -> bool:
    return (
        value < 1
        and s.evaluates
        and name not in s.auto
        and (name, value) != ("num_generations_eval", 0)
    )


EVALUATION_SIZES = ("per_device_eval_batch_size", "num_generations_eval", "eval_prompts")
rule(
    "GE102",
    "error",
    (*EVALUATION_SIZES, "evaluates", "auto"),
    of=TRL_LIKE,
    title="evaluation sizes are positive",
    text="""Evaluation needs a batch size, generations and held-out prompts of at least 1 each.

    TRL 1.16 accepts 0 at construction and fails in the data loader (0 generations count as unset).
    """,
)(
    no_field(
        EVALUATION_SIZES,
        _is_too_small,
        "held-out evaluation needs at least 1",
        "Set {} to 1 or more, or evaluate nothing.",
        _positive,
    )
)


@rule(
    "GE201",
    "warning",
    ("evaluates", "dataloader_drop_last", "eval_prompts", *READS),
    blames=("dataloader_drop_last",),
    why="{lost} of {s.eval_prompts} held-out prompts are left out of every evaluation",
    instead="Set {dataloader_drop_last}=false; training does not read it.",
)
def held_out_prompts_are_all_scored(s: Setting) -> Finding:
    """``dataloader_drop_last`` has no effect on GRPO's training batches, but drops trailing prompts
    of an evaluation.

    Measured with trl 1.16: of 5 prompts in groups of 4, a batch of 8 completions scores 4.
    """
    if not s.dataloader_drop_last or not s.evaluates or not s.eval_prompts or not s.processes:
        return None
    group = evaluation_group(s)
    batch = s.per_device_eval_batch_size * s.processes
    if min(s.eval_prompts, group, batch) < 1:
        return None
    left = s.eval_prompts * group % batch
    if left:
        return {"lost": -(-left // group)}
    return None


@rule(
    "GE203",
    "warning",
    (
        "evaluations",
        "eval_at_start",
        "eval_prompts",
        "parameters",
        "architecture",
        *planning.TOTAL_STEPS_READS,
        *READS,
    ),
    blames=("num_generations_eval", "eval_prompts", "evaluations"),
    what="{num_generations_eval}={group} with {eval_prompts=}",
    why="{count} evaluations take {share:.0%} of all completions that are generated",
    instead=(
        "Set {num_generations_eval}=1 (more prompts beat more generations), or fewer {evaluations}."
    ),
)
def evaluation_takes_less_than_training(s: Setting) -> Finding:
    """Evaluations should take at most a third of the completions; the defaults of tasks take about
    a sixth.

    Completions of one prompt resemble each other. So many prompts sampled once have a smaller
    standard error than fewer prompts sampled several times. Judged only if the model's size is
    known, because tiny models generate fast.
    """
    parameters = s.parameters
    if s.architecture:
        parameters = parameters or s.architecture.weights
    if (
        (parameters or 0) < LARGE_MODEL
        or not judgeable(s)
        or min(s.num_generations, s.num_iterations) < 1
    ):
        return None
    share = planning.evaluation_share(s)
    if share is None or share <= MOST_EVALUATION:
        return None
    return {"group": evaluation_group(s), "count": s.evaluations + s.eval_at_start, "share": share}


@rule(
    "GE202",
    "warning",
    ("do_eval", *READS),
    blames=("do_eval", "per_device_eval_batch_size"),
    why=(
        "a script that evaluates after training would fail then: {total} completions are not "
        "whole groups of {group}"
    ),
    instead="Choose {per_device_eval_batch_size} so that the product is a multiple of {group}, "
    "or set {do_eval}=false.",
)
def a_last_evaluation_would_work(s: Setting) -> Finding:
    """With ``do_eval`` and ``eval_strategy=no`` TRL checks no evaluation batch, and a script that
    evaluates at the end fails.

    Open-R1's script does so. Measured with trl 1.16: "RuntimeError: shape '[-1, 4]' is invalid for
    input of size 3".
    """
    if not s.do_eval or s.evaluates or s.processes is None or s.version < CHECKED:
        return None
    group = evaluation_group(s)
    total = s.per_device_eval_batch_size * s.processes
    if min(group, total) >= 1 and total % group:
        return {"total": total, "group": group}
    return None
