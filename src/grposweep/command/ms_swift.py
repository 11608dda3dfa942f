"""Start ms-swift: its own command trains in its own environment, and its log is read as it grows.

Sources: ms-swift 4.6.0 cli/main.py (``swift rlhf FILE``; NPROC_PER_NODE, NNODES and the like are
variables), trainers/patcher.py (``logging.jsonl`` in the output folder, one line per logging step).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grporecipe.files import objects
from grposweep.command._contract import Entry, ExternalProgram, Trial, interpreter, meeting

NAME = "logging.jsonl"
# "7/20"
STEP = "global_step/max_steps"
PLUGIN = Path(__file__).resolve().parent / "ms_swift_plugin" / "grposweep_in_ms_swift.py"
CODE = "import sys; from swift.cli.main import cli_main; sys.argv[0] = 'swift'; cli_main()"


def build_ms_swift(trial: Trial) -> ExternalProgram:
    """Return `swift rlhf` on the point's recipe; options on the command line come last and win."""
    trainer, place = trial.trainer, trial.place
    # A new folder for each start would hide checkpoints and log.
    own = ["--add_version", "false", "--output_dir", str(trial.output)]
    ours = (
        with_callback(trial.recipe)
        if not {"--external_plugins", "--callbacks"} & set(trainer.arguments)
        else []
    )
    again = ["--resume_from_checkpoint", str(trial.checkpoint)] if trial.checkpoint else []
    command = [
        interpreter(trainer),
        "-c",
        CODE,
        "rlhf",
        str(trial.file),
        *own,
        *ours,
        *again,
        *trainer.arguments,
    ]
    # a single process needs no torchrun
    environment = {"NPROC_PER_NODE": str(place.ranks)} if place.processes > 1 else {}
    environment |= meeting(place)
    resumed_at = int(trial.checkpoint.name.rpartition("-")[2]) if trial.checkpoint else 0
    return ExternalProgram(
        tuple(command), MsSwiftLogTail(trial.output / NAME, resumed_at), environment
    )


def with_callback(recipe: Mapping[str, Any]) -> list[str]:
    """Return the options for grposweep's callback and the recipe's own, which the command line
    would otherwise replace.
    """
    plugins, callbacks = (as_list(recipe.get(name)) for name in ("external_plugins", "callbacks"))
    return ["--external_plugins", *plugins, str(PLUGIN), "--callbacks", *callbacks, "grposweep"]


def as_list(value: Any) -> list[str]:
    """Return one name or several as a list."""
    return (
        []
        if value is None
        else [str(item) for item in value]
        if isinstance(value, list)
        else [str(value)]
    )


class MsSwiftLogTail:
    """Reads ``logging.jsonl``. Lines of earlier attempts are read up to the checkpoint that this
    attempt resumes from.
    """

    def __init__(self, path: Path, resumed_at: int) -> None:
        self.path, self.resumed_at = path, resumed_at
        # bytes
        self.past = path.stat().st_size if path.is_file() else 0
        # bytes
        self.read = 0

    def __call__(self) -> list[Entry]:
        """Return the complete lines since the last call. Lines of earlier attempts come first, once
        there is a new line.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.read)
                data = file.read()
        except OSError:
            # not there yet
            return []
        data = data[: data.rfind(b"\n") + 1]
        if self.read + len(data) <= self.past:
            return []
        entries, at = [], self.read
        for line in data.splitlines(keepends=True):
            entry = as_entry(line)
            if entry is not None and (at >= self.past or 0 < entry.step <= self.resumed_at):
                entries.append(entry)
            at += len(line)
        self.read = at
        return entries


def as_entry(line: bytes) -> Entry | None:
    """Return a line of a step or an evaluation; None for the summaries at start and end."""
    values = next(objects([line]), {})
    step = str(values.get(STEP, "")).partition("/")[0]
    if not step.isdigit() or "train_runtime" in values:
        return None
    kind = "eval" if any(name.startswith("eval_") for name in values) else "train"
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    return Entry(kind, int(step), numbers)
