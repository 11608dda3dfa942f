"""Terminal output of ``grposweep plan``: numbers with their formulas, memory bars, and what fits
which GPU.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from textwrap import wrap
from typing import Any

from rich.table import Table

from grporecipe.files import Json, read_own_yaml
from grporecipe.memory.estimate import GIB, Memory, estimate
from grporecipe.memory.fit import PROMPTS, Fit, Saving
from grporecipe.memory.host import HostMemory
from grporecipe.memory.parts import ASSUMED_PROMPT_TOKENS, find_prompt
from grporecipe.model import planning
from grporecipe.model.setting import Setting
from grposweep.report.tables import FOLD, NUMBER, RIGHT, Column, Row, Styled, build_table
from grposweep.search.sampling import describe_shares

TABLE: Json = read_own_yaml(__file__, "plan.yaml")


def _number(s: Setting, name: str) -> Any:
    """Return a number of the plan by its name in the table."""
    compute = globals().get(name) or getattr(planning, name, None)
    return compute(s) if compute else getattr(s, name)


def data_ranks(s: Setting) -> int | None:
    """Return the processes that a batch is split over."""
    return s.processes if s.data_processes is None else s.data_processes


def percent_of_evaluations(s: Setting) -> str | None:
    """Return the share of evaluations in all completions."""
    share = planning.evaluation_share(s)
    return None if share is None else f"{share:.0%}"


def _step_differs(s: Setting) -> bool:
    """Return whether B W A is not the stated step, because something does not divide."""
    return planning.completions_per_step(s) != planning.stated_completions_per_step(s)


def _divided(number: int | None, by: int) -> Fraction | None:
    return None if number is None or by < 1 else Fraction(number, by)


def completions_on_each(s: Setting) -> int | Fraction | None:
    """Return the completions of a step on each process."""
    if _step_differs(s):
        return _divided(planning.stated_completions_per_step(s), data_ranks(s) or 0)
    return s.per_device_train_batch_size * s.gradient_accumulation_steps


def prompts_of_step(s: Setting) -> Fraction | None:
    """Return the prompts of an optimizer step."""
    return _divided(planning.stated_completions_per_step(s), s.num_generations)


def total_rollouts(s: Setting) -> Fraction | None:
    """Return the length as EasyR1 and verl count it; None for others."""
    total = planning.total_steps(s)
    each = planning.steps_per_rollout(s)
    return None if s.framework.unit != "prompts" or total is None or not each else total / each


def describe_length(s: Setting) -> str:
    """Return what the length follows from."""
    if s.max_steps is not None:
        return f"max_steps={s.max_steps}"
    if s.budget_completions is not None:
        return f"floor({s.budget_completions} / {planning.completions_per_rollout(s)}) rollouts"
    return f"ceil({s.epochs} x {planning.steps_per_epoch(s)})"


def describe_kl(s: Setting) -> str:
    """Return where KL is, by which estimator, with which coefficient."""
    places = (
        ("loss", s.kl_estimator or "k3", s.beta),
        ("reward", s.kl_reward_estimator or "k1", s.kl_reward_coefficient),
    )
    asked = [row for row in places if s.kl_placement in (row[0], "both") and row[2]]
    return " and ".join(f"{place}, {name} x {by:g}" for place, name, by in asked) or "none"


class _Numbers(Json):
    """The numbers of a setting by symbol, computed when a template asks for them."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self._setting = setting

    def __missing__(self, symbol: str) -> Any:
        return _number(self._setting, TABLE["symbols"][symbol])


SYMBOLS = (
    "B per_device_train_batch_size, W processes (that hold different data), A "
    "gradient_accumulation_steps, S steps_per_generation (micro-steps), G num_generations, mu "
    "num_iterations, D training prompts, P prompts per rollout, N rollouts per epoch, E epochs, U "
    "steps per epoch"
)


def _other_rollout(s: Setting) -> int | None:
    """Return B W S if it is not the stated rollout, because something does not divide."""
    product = (planning.completions_per_micro_step(s) or 0) * planning.micro_steps_per_generation(s)
    return product if product not in (0, planning.completions_per_rollout(s)) else None


def _products_that_differ(s: Setting) -> Iterator[str]:
    """Yield each product of sizes that is not the number which the recipe sets, with both."""
    n = _Numbers(s)
    product = _other_rollout(s)
    if product:
        yield (
            f"B W S = {n['B']} x {n['W']} x {n['S']} = {product:,} completions per rollout, "
            f"where {n['rollout']:,} are set"
        )
    if _step_differs(s):
        product = planning.completions_per_step(s) or 0
        yield (
            f"B W A = {n['B']} x {n['W']} x {n['A']} = {product:,} completions per optimizer "
            f"step, where {n['step']:,} are set"
        )


def _lines_as_set(s: Setting) -> dict[str, tuple[str, str]]:
    """Return formula and numbers of the lines whose usual formula does not make the stated
    number.
    """
    lines = {}
    prompts = s.prompts_per_rollout is not None
    if _other_rollout(s):
        template = "{P} prompts x {G}" if prompts else ""
        lines["completions per rollout"] = ("as set", template)
    if _step_differs(s):
        lines["completions per optimizer step"] = ("as set", "{P_step} prompts x {G}")
        lines["of these on each process"] = ("of a step / W", "{step} / {W}")
        lines["prompts per optimizer step"] = ("as set", "{step} / {G}")
    if lines and prompts:
        lines["optimizer steps per rollout"] = (
            "mu x prompts, rounded",
            "{mu} x {P} / {P_step}, rounded",
        )
        lines["optimizer steps per epoch"] = ("N x steps per rollout", "")
    return lines


def plan_table(items: Sequence[tuple[str, Setting]]) -> Table:
    """Return one column a recipe; for a single one also the formulas with its numbers."""
    columns: list[Column] = [
        "",
        *((name or "value", {**RIGHT, **FOLD}) for name, _ in items),
        ("formula", FOLD),
    ]
    if len(items) > 1:
        return build_table(columns, _plan_rows(items, TABLE["lines"] + TABLE["compared"]))
    columns.append(("with numbers", {**FOLD, "style": "dim"}))
    return build_table(columns, _plan_rows(items, TABLE["lines"]))


def _plan_rows(items: Sequence[tuple[str, Setting]], lines: Sequence[Json]) -> Iterator[Row]:
    first = items[0][1]
    as_set = _lines_as_set(first) if len(items) == 1 else {}
    for line in lines:
        values = [_value(setting, line["value"]) for _, setting in items]
        if set(values) == {None}:
            continue
        if line["formula"] == "W" and all(data_ranks(s) == s.processes for _, s in items):
            # nothing is shared
            continue
        formula, template = as_set.get(line["name"], (line["formula"], line.get("numbers", "")))
        cells = [*map(_text, values), formula]
        if len(items) == 1:
            cells.append(template.format_map(_Numbers(first)))
        yield line["name"], *cells


def notes(s: Setting) -> list[str]:
    """Return notes next to the table: a misleading shortcut formula, and what is unknown."""
    lines = []
    short = shortcut(s)
    exact = planning.total_steps(s)
    if short is not None and exact is not None and short != exact:
        lines.append(
            f"The shortcut D G / (B W) x mu / A x E gives {float(short):,.1f} steps; in truth "
            f"there are {exact:,}: whole rollouts only, rounded up once an epoch."
        )
    differ = "; ".join(_products_that_differ(s))
    if differ:
        lines.append(f"Sizes do not divide: {differ}. The table has the numbers that are set.")
    if s.framework.unit == "prompts" and planning.steps_per_rollout(s) > 1:
        lines.append(
            f"{s.trainer}'s steps are rollouts: {s.key('max_steps')}, {s.key('save_steps')} and "
            f"the warmup count rollouts of {planning.steps_per_rollout(s)} optimizer steps each."
        )
    if s.processes is None:
        lines.append(
            "The number of training processes is unknown, and most numbers depend on it. Set "
            "--processes."
        )
    if s.train_prompts is None and s.epochs is not None and s.max_steps is None:
        lines.append(
            "The number of training prompts is unknown, so epochs cannot be counted in steps. "
            "Set --dataset-size."
        )
    if s.evaluates and s.eval_prompts is None:
        lines.append(
            "The number of held-out prompts is unknown, so the batches and completions of an "
            "evaluation cannot be counted."
        )
    if s.evaluations and s.eval_prompts and "eval_prompts" in s.keys:
        lines.append(describe_shares(s.eval_prompts))
    return lines


def memory_assumptions(s: Setting) -> list[str]:
    """Return the assumptions of a memory estimate for values that neither the recipe nor the
    command states.
    """
    lines = []
    if s.processes is None:
        lines.append("Assumed: 1 training process. Their number is not stated; set --processes.")
    if find_prompt(s) is None:
        text = (
            f"Assumed: prompts of {ASSUMED_PROMPT_TOKENS} tokens. Their length is not known "
            "before they are counted."
        )
        few, many = PROMPTS
        least = estimate(s.replace({"prompt_tokens": few}))
        most = estimate(s.replace({"prompt_tokens": many}))
        if least and most:
            text += (
                f" With {few} tokens the peak is {least.peak / GIB:.1f} GiB, with {many:,} "
                f"{most.peak / GIB:.1f} GiB."
            )
        lines.append(text)
    if s.use_vllm and s.gpu_memory_gib is None and s.vllm_mode == "colocate":
        lines.append("Not included: vLLM's share of the GPU, because no GPU is named. Set --gpu.")
    return lines


def shortcut(s: Setting) -> Fraction | None:
    """The steps by the ms-swift guide's formula, which ignores floor, ceil and S != A; None where
    something is unknown.
    """
    ranks = data_ranks(s)
    if not ranks or s.train_prompts is None or s.epochs is None or _step_differs(s):
        return None
    per_pass = Fraction(
        s.train_prompts * s.num_generations,
        s.per_device_train_batch_size * ranks,
    )
    return (
        per_pass
        * s.num_iterations
        / s.gradient_accumulation_steps
        * Fraction(s.epochs).limit_denominator(10**6)
    )


def _value(s: Setting, name: str) -> Any:
    """Return a number of the plan; None if a size is missing or invalid, which the rules report."""
    try:
        return _number(s, name)
    except ZeroDivisionError:
        return None


def _text(value: Any) -> str:
    if value is None:
        return "?"
    if isinstance(value, Fraction) and value.denominator > 1:
        return f"{value} = {float(value):.3g}"
    return f"{int(value):,}" if isinstance(value, int | Fraction) else str(value)


PHASES = {
    "load": "load",
    "generation": "generation",
    "sync": "weight sync",
    "scoring": "scoring",
    "backward": "backward",
    "step": "optimizer step",
}
# columns
NAMES, NUMBERS = 16, 12


def memory_bars(
    memory: Memory,
    gpu_gib: float | None,
    width: int = 80,
    name: str = "",
    has_range: bool = True,
) -> str:
    """The phases of a rank as bars, on the scale of the GPU if it is known, and the parts of the
    peak. ``has_range``: also its range.
    """
    whole = max(gpu_gib or 0.0, memory.peak / GIB)
    room = max(min(width, 80) - NAMES - NUMBERS, 10)
    head = f"{name}: " if name else ""
    of = f" of {gpu_gib:g}" if gpu_gib else ""
    lines = [
        f"{head}GPU memory a rank, estimated: {memory.peak / GIB:.1f}{of} GiB at the peak "
        f"({PHASES[memory.peak_phase]})",
    ]
    if has_range:
        lines.append(f"between {memory.low / GIB:.1f} and {memory.high / GIB:.1f} GiB")
    for phase, label in PHASES.items():
        if phase not in memory.phases:
            continue
        gib = memory.phases[phase] / GIB
        over = " over" if gpu_gib is not None and gib > gpu_gib else ""
        lines.append(f"{label:<{NAMES}}{'█' * round(room * gib / whole):<{room}}{gib:>6.1f}{over}")
    parts = [
        f"{name} {size:.1f}"
        for name, size in memory.as_gib().items()
        if name != "peak" and size >= 0.05
    ]
    lines += wrap(f"in GiB: {', '.join(parts)}", min(width, 80))
    return "\n".join(lines)


def savings_line(savings: Sequence[Saving]) -> str:
    """Return the single changes that free most memory; empty if none does."""
    changes = ", ".join(f"{saving.change} -{saving.gib:.1f}" for saving in savings[:6])
    return f"Single changes, in GiB: {changes}." if changes else ""


def host_line(host: HostMemory | None) -> str:
    """Return the main memory of a node and what it is made of; empty if it is not known."""
    if host is None:
        return ""
    parts = [
        f"{name.replace('asleep', 'sleeping vLLM')} {gib:.0f}"
        for name, gib in host.as_gib().items()
        if name != "peak" and gib >= 0.5
    ]
    return f"Main memory of a node: about {host.peak / GIB:.0f} GiB ({', '.join(parts)})."


def fit_table(s: Setting, fit: Fit) -> Table:
    """One GPU: each size as it is and at its largest, the others unchanged."""
    columns = ("one size, others unchanged", ("now", RIGHT), ("largest", RIGHT))
    sizes = (
        ("completions per micro-step", s.per_device_train_batch_size, fit.batch),
        ("tokens per completion", s.max_completion_length, fit.completion),
        ("generations per prompt", s.num_generations, fit.generations),
    )
    rows = ((label, f"{now:,}", _text_memory(most)) for label, now, most in sizes)
    return build_table(columns, rows, title=f"on a GPU of {fit.gib:g} GiB", title_style=None)


def gpu_table(fits: Sequence[tuple[str, Fit]]) -> Table:
    """Every GPU of the table: whether the setting fits, and how far each size can go."""
    text = {"no_wrap": True}
    columns = (
        ("GPU", text),
        ("GiB", NUMBER),
        ("estimate", NUMBER),
        ("verdict", text),
        ("micro batch", RIGHT),
        ("tokens", NUMBER),
        ("generations", NUMBER),
    )
    return build_table(columns, (_gpu_row(name, fit) for name, fit in fits))


def _gpu_row(name: str, fit: Fit) -> Row:
    sizes = map(_text_memory, (fit.batch, fit.completion, fit.generations))
    cells = (name, f"{fit.gib:g}", f"{fit.peak:.1f}", fit.verdict, *sizes)
    return Styled(cells, "dim") if fit.verdict == "does not fit" else cells


def _text_memory(size: int | None) -> str:
    return "none" if size is None else f"{size:,}"
