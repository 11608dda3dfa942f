"""GE: the evaluation batch, which keeps the older and stricter rule, and the evaluations that an objective needs."""

from grposweep.rules.registry import Broken, rule
from grposweep.setting import Setting


@rule(
    "GE101",
    "error",
    ("processes", "per_device_eval_batch_size", "num_generations", "num_generations_eval", "evaluates", "unsolved"),
)
def whole_groups_in_evaluation(s: Setting) -> Broken | None:
    """The global evaluation batch, B_eval W, must be a multiple of the evaluation's generations.

    There is no accumulation in evaluation. ``num_generations_eval`` defaults to ``num_generations`` (also when 0).
    TRL 1.16: "The global eval batch size (4 * 1) must be divisible by the number of generations used for evaluation (8)."
    """
    group = s.num_generations_eval or s.num_generations
    if s.processes is None or s.processes < 1 or not s.evaluates or group < 1:
        return None
    if "per_device_eval_batch_size" in s.unsolved or s.per_device_eval_batch_size < 1:
        return None
    total = s.per_device_eval_batch_size * s.processes
    if total % group == 0:
        return None
    return Broken(
        what=f"{s.key('per_device_eval_batch_size')}={s.per_device_eval_batch_size}",
        why=f"{s.processes} x {s.per_device_eval_batch_size} = {total} completions are not whole groups of {group}",
        instead=f"Choose a size whose product with the processes is a multiple of {group}.",
        fields=("per_device_eval_batch_size", "num_generations_eval"),
    )


@rule("GE102", "error", ("per_device_eval_batch_size", "num_generations_eval", "eval_prompts", "evaluates", "auto"))
def evaluation_sizes_are_positive(s: Setting) -> Broken | None:
    """Evaluation needs a batch size, generations and held-out prompts of at least 1 each.

    TRL 1.16 accepts 0 at construction and fails in the data loader.
    """
    names = ("per_device_eval_batch_size", "num_generations_eval", "eval_prompts")
    for name in names:
        value = getattr(s, name)
        if s.evaluates and value is not None and value < 1 and name not in s.auto:
            return Broken(
                what=f"{s.key(name)}={value}",
                why="held-out evaluation needs at least 1",
                instead=f"Set {s.key(name)} to 1 or more, or schedule.evaluations=0 and schedule.eval_at_start=false.",
                fields=(name,),
                suggestions=({name: 64}, {name: None}),
            )
    return None
