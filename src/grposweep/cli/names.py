"""How sweeps and trials are named on the command line, and what a shell offers when a person presses tab."""

from pathlib import Path
from typing import Annotated

import typer

OUTPUTS = Path("outputs")


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    """The sweeps under --outputs that begin so."""
    outputs = Path(context.params.get("outputs") or OUTPUTS)
    return sorted(path.parent.name for path in outputs.glob(f"{_literal(incomplete)}*/sweep.yaml"))


def complete_trial(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The trials of the sweep that is named (otherwise of the newest): numbers, with the folders' names as help."""
    from grposweep.errors import BadInput
    from grposweep.sweep.find import find_sweep

    outputs = Path(context.params.get("outputs") or OUTPUTS)
    try:
        trials = find_sweep(context.params.get("sweep"), outputs).trials()
        return [(str(trial.number), trial.path.name) for trial in trials if str(trial.number).startswith(incomplete)]
    except BadInput:
        return []


def _literal(text: str) -> str:
    """What somebody typed, without a meaning for glob()."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


Named = Annotated[
    str | None,
    typer.Argument(
        metavar="SWEEP",
        help="A name under outputs, or a path.",
        show_default="the newest",
        autocompletion=complete_sweep,
    ),
]
Required = Annotated[
    str, typer.Argument(help="A name under outputs, or a path.", show_default=False, autocompletion=complete_sweep)
]
Sweep = Annotated[
    str | None,
    typer.Option(
        metavar="SWEEP",
        help="A name under outputs, or a path.",
        show_default="the newest",
        autocompletion=complete_sweep,
    ),
]
Trial = Annotated[
    str, typer.Argument(help="Its number, folder or path; or best.", show_default=False, autocompletion=complete_trial)
]
Outputs = Annotated[Path, typer.Option(help="Where sweeps are.")]
