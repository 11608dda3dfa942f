"""Print a screen in 80 columns: pass rates, groups with a signal by size, problems, and the settings to change."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from grporecipe.files import write_text
from grposweep.report.tables import NUMBER, build_table
from grposweep.screening.signal import Share
from grposweep.screening.summary import ENOUGH, Advice, Screen, findings, missed_answers
from grposweep.storage import paths

BINS = ((0.0, 0.02, "almost never"), (0.02, 0.2, "0.02 to 0.2"), (0.2, 0.8, "0.2 to 0.8"), (0.8, 0.98, "0.8 to 0.98"),
        (0.98, 1.001, "almost always"))  # fmt: skip
BAR = 30  # columns


def print_screen(
    console: Console, screen: Screen, advice: Advice, group: int, prompts: Mapping[int, float], limit: int
) -> None:
    """Print a screen. ``group`` is the configured group size, ``prompts`` the prompts per optimizer step by group size."""
    lengths = [length for prompt in screen.prompts for length in prompt.lengths]
    rewards = [value for row in screen.totals for value in row]
    console.print(
        f"{len(screen.prompts)} of {screen.data.train_prompts} training prompts, {screen.request.samples} samples each\n"
        f"reward {np.mean(rewards or [0.0]):.3g} on average; {np.mean(lengths):.0f} tokens on average, 95 % up to "
        f"{np.quantile(lengths, 0.95):.0f}\n{screen.truncated_share:.0%} reach the limit of {limit} tokens"
    )
    console.print(_rates(screen))
    console.print(_groups(screen, group, prompts))
    if line := refill_line(screen.share(group)):
        console.print(line)
    for finding in findings(screen, limit):
        console.print(f"! {finding.text} {finding.advice}", style="yellow")
    for prompt in missed_answers(screen)[1]:
        console.print(f"  answer {prompt.answer!r}, completion {prompt.example[:120]!r}", style="dim")
    console.print(_advice(screen, advice, group))


def as_json(screen: Screen, advice: Advice, group: int, prompts: Mapping[int, float], limit: int) -> dict[str, Any]:
    """Return the screen as JSON for scripts."""
    shares = {size: screen.share(size) for size in sorted({*prompts, group})}
    return {
        "folder": str(screen.folder),
        "prompts": len(screen.prompts),
        "train_prompts": screen.data.train_prompts,
        "samples": screen.request.samples,
        "truncated_share": screen.truncated_share,
        "num_generations": group,
        "groups_with_signal": {str(size): vars(share) for size, share in shares.items()},
        "prompts_per_step": {str(size): count for size, count in prompts.items()},
        "findings": [finding._asdict() for finding in findings(screen, limit)],
        "advice": {
            "num_generations": advice.group, "keep_between": advice.bounds, "kept": advice.kept,
            "groups_with_signal": vars(advice.share),
        },
    }  # fmt: skip


def _rates(screen: Screen) -> Table:
    """Return a table of the prompts by expected pass rate."""
    name = "pass rate" if screen.is_binary else f"reward, scaled from {screen.values[0]:.3g} to {screen.values[-1]:.3g}"
    table = build_table(name, ("prompts", NUMBER), ("", NUMBER), "", padding=(0, 1))
    means = screen.rates.means
    for low, high, words in BINS:
        share = float(np.mean((means >= low) & (means < high)))
        table.add_row(words, str(round(share * len(means))), f"{share:.0%}", "█" * round(share * BAR))
    return table


def _groups(screen: Screen, group: int, prompts: Mapping[int, float]) -> Table:
    """Return a table of group sizes: groups with a signal, and the prompts and completions per step that they leave."""
    names = ("G", "groups with a signal", "95 % interval", "prompts per step", "with a signal", "completions")
    table = build_table(*((name, {**NUMBER, "no_wrap": False}) for name in names), padding=(0, 1))
    for size in sorted({*prompts, group}):
        share, steps, live = screen.share(size), prompts.get(size), ("", "", "")
        if steps is not None:
            live = (f"{steps:g}", f"{steps * share.mean:.1f}", f"{steps * share.mean * size:.0f}")
        cells = (f"{size}{'*' * (size == group)}", f"{share.mean:.0%}", f"{share.low:.0%} to {share.high:.0%}", *live)
        table.add_row(*cells, style="bold" if size == group else "")
    lower = ""
    if not screen.is_binary:
        lower = f"; rewards have more than two values: above G={screen.request.samples} a lower bound"
    table.caption = f"G is batch.num_generations, * as set; completions are those of groups with a signal{lower}"
    table.caption_justify = "left"
    return table


def refill_line(share: Share) -> str:
    """Return how much dynamic sampling would generate with this share of groups with a signal; empty if most have one.

    Sources: verl recipe/dapo/dapo_ray_trainer.py, EasyR1 ray_trainer.py (both raise "Generated too many"); DAPO#22, verl#953.
    """
    if share.mean >= ENOUGH or share.low <= 0:
        return ""
    return (
        f"dynamic sampling would generate {1 / share.mean:.1f} times the prompts of a step ({1 / share.high:.1f} to "
        f"{1 / share.low:.1f}): verl's max_num_gen_batches x gen_batch_size and EasyR1's max_try_make_batch must allow it"
    )


def _shown(share: Share) -> str:
    return f"{share.mean:.0%} ({share.low:.0%} to {share.high:.0%})"


def _advice(screen: Screen, advice: Advice, group: int) -> str:
    words = [] if advice.group == group else [f"batch.num_generations={advice.group}"]
    words += [] if advice.bounds is None else [f"task.keep_between=[{advice.bounds[0]:g},{advice.bounds[1]:g}]"]
    if not words:
        return f"nothing to change: {_shown(screen.share(group))} of the groups carry a signal"
    kept = "" if advice.bounds is None else f", prompts: {advice.kept} of {len(screen.prompts)}"
    return f"set {' '.join(words)}\n  groups of {advice.group} with a signal: {_shown(advice.share)}{kept}"


def write_kept(screen: Screen, advice: Advice) -> int:
    """Write the prompts that the advised filter keeps to kept.jsonl, with their pass rates. Return their number."""
    kept = screen.kept(advice.bounds)
    lines = (
        {"prompt": prompt.question, "answer": prompt.answer, "pass_rate": round(float(rate), 4), "prompt_id": prompt.prompt}
        for prompt, rate in ((screen.prompts[i], screen.rates.means[i]) for i in kept)
    )  # fmt: skip
    write_text(screen.folder / paths.KEPT, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return len(kept)
