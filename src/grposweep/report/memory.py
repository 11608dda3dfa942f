"""Memory on the terminal: a bar a phase, and what fits which GPU."""

from collections.abc import Sequence
from textwrap import wrap

from rich import box
from rich.table import Table

from grposweep.memory.estimate import GIB, Memory
from grposweep.memory.fit import Fit
from grposweep.setting import Setting

PHASES = {
    "load": "load",
    "generation": "generation",
    "scoring": "scoring",
    "backward": "backward",
    "step": "optimizer step",
}
NAMES, NUMBERS = 16, 12  # columns


def memory_bars(memory: Memory, gpu_gib: float | None, width: int = 80, name: str = "") -> str:
    """The phases of a rank as bars, on the scale of the GPU where it is known; and what the peak is made of."""
    whole = max(gpu_gib or 0.0, memory.peak / GIB)
    room = max(min(width, 80) - NAMES - NUMBERS, 10)
    head = f"{name}: " if name else ""
    of = f" of {gpu_gib:g}" if gpu_gib else ""
    lines = [
        f"{head}GPU memory a rank, estimated: {memory.peak / GIB:.1f}{of} GiB at the peak ({PHASES[memory.peak_phase]})"
    ]
    for phase, label in PHASES.items():
        gib = memory.phases[phase] / GIB
        over = " over" if gpu_gib is not None and gib > gpu_gib else ""
        lines.append(f"{label:<{NAMES}}{'█' * round(room * gib / whole):<{room}}{gib:>6.1f}{over}")
    parts = {name: size for name, size in memory.as_gib().items() if name != "peak" and size >= 0.05}
    lines += wrap("in GiB: " + ", ".join(f"{name} {size:.1f}" for name, size in parts.items()), min(width, 80))
    return "\n".join(lines)


def fit_table(s: Setting, fit: Fit) -> Table:
    """One GPU: each size as it is and at its largest, the others unchanged."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"on a GPU of {fit.gib:g} GiB", title_justify="left")
    for column in ("with the others as they are", "now", "largest"):
        table.add_column(column, justify="left" if column.startswith("with") else "right")
    rows = (
        ("completions a micro-step", s.per_device_train_batch_size, fit.batch),
        ("tokens a completion", s.max_completion_length, fit.completion),
        ("generations a prompt", s.num_generations, fit.generations),
    )
    for label, now, most in rows:
        table.add_row(label, f"{now:,}", _text(most))
    return table


def gpu_table(found: Sequence[tuple[str, Fit]]) -> Table:
    """Every GPU of the table: whether the setting fits, and how far each size can go."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("GPU", "GiB", "fits", "micro-batch", "completion", "generations"):
        table.add_column(column, justify="left" if column in ("GPU", "fits") else "right")
    for name, fit in found:
        sizes = (_text(size) for size in (fit.batch, fit.completion, fit.generations))
        table.add_row(name, f"{fit.gib:g}", "yes" if fit.fits else "no", *sizes, style="" if fit.fits else "dim")
    return table


def _text(size: int | None) -> str:
    return "none" if size is None else f"{size:,}"
