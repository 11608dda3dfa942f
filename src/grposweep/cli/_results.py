"""Commands on sweeps and their results: rerun, retry, best, export, compare, space, cancel."""

from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TypeAlias

from typer import Argument, Option

from grporecipe.errors import UserError
from grporecipe.terminal import say, write_data
from grposweep.cli._app import (
    OUTPUTS,
    AsJson,
    ConfigDir,
    Named,
    Names,
    NamesAndKeys,
    Outputs,
    Required,
    command,
)

if TYPE_CHECKING:
    from grposweep.storage.folders import TrialFolder

# Hydra's own flags and --help
HYDRA = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
HydraArguments: TypeAlias = Annotated[
    list[str] | None, Argument(metavar="[key=value] ...", help="Overrides and flags of Hydra.")
]


@command(
    "grposweep run lr=3e-4 batch=small                        # one experiment",
    "grposweep run -m lr=1e-4,3e-4 batch=small,medium         # a grid",
    "grposweep run --config-dir conf sweeps=my_study          # a study of your own conf/",
    context_settings=HYDRA,
)
def run(arguments: HydraArguments = None) -> None:
    """Run one experiment, a sweep (-m), or the study of a sweep file.

    'grposweep run --help' lists groups, and where keys are described.
    """
    from grposweep.cli.hydra_app import start

    start(arguments or [])


@command("grposweep init                    # writes conf/", "grposweep init experiments/conf")
def init(folder: Annotated[Path, Argument(help="Folder to write.")] = Path("conf")) -> None:
    """Copy conf/ and a starter study into your project.

    Edit the copy, and pass it with --config-dir.
    """
    from grposweep.cli.hydra_app import STARTER, copy_conf

    study = copy_conf(folder)
    say(
        f"{study} is a study to start from: grposweep run --config-dir {quote(str(folder))} "
        f"sweeps={STARTER}"
    )


@command(
    "grposweep rerun best                         # of the newest sweep",
    "grposweep rerun lr_batch 7 lr=1e-3           # with a change",
    "grposweep rerun 7 force=true                 # again",
)
def rerun(names: NamesAndKeys, outputs: Outputs = OUTPUTS) -> int:
    """Repeat a trial exactly, or with a change.

    Configuration and seeds are those of the trial, and so is the code if the sweep kept a copy.

    Results go to a new sweep next to the trial's. Relative paths start where that sweep was
    started. Exit code: 0 finished, 1 failed, 2 bad input, 130 interrupted.
    """
    from grposweep.sweep.rerun import rerun_trial

    return rerun_trial(*_trial_and_overrides(names, outputs))


def _trial_and_overrides(names: list[str], outputs: Path) -> tuple["TrialFolder", list[str]]:
    """Return the trial that is named before the overrides."""
    from grposweep.report.view import find_names, read_sweep
    from grposweep.storage.folders import TrialFolder

    overrides = [
        word for word in names if ("=" in word or word.startswith("~")) and not Path(word).exists()
    ]
    named = [word for word in names if word not in overrides]
    (folder, trial), *others = find_names(named, outputs, reruns=False)
    if not trial or others:
        raise UserError(
            f"{' '.join(named) or 'no name'}: name one trial, such as lr_batch 7, lr_batch/7 or "
            "best."
        )
    return TrialFolder(read_sweep(folder).trial(trial).path), overrides


@command(
    "grposweep continue best schedule.max_steps=2000        # the winner, longer",
    "grposweep continue 3 --from 200 lr=1e-6,1e-5 kl=low,high",
    "grposweep continue lr_batch 3 schedule.epochs=2 --yes",
    name="continue",
)
def continue_(
    names: NamesAndKeys,
    start: Annotated[
        int | None,
        Option(
            "--from",
            metavar="STEP",
            help="The optimizer step of a checkpoint.",
            show_default="the last",
        ),
    ] = None,
    yes: Annotated[
        bool, Option("--yes", help="Do not ask if the training differs from the longer schedule's.")
    ] = False,
    outputs: Outputs = OUTPUTS,
) -> int:
    """Train a trial on from a checkpoint: longer, or changed.

    With a longer schedule.* alone the trial trains longer. With a constant learning rate it is
    exactly the training that the longer schedule would have been. Otherwise the command says what
    differs, and asks.

    With other keys it branches, and --from names the checkpoint. Each child changes one parameter,
    and a control changes nothing. All children of a seed have the same data order and random
    numbers, so the comparison has paired intervals.

    Results go to a new sweep next to the trial's; the same command resumes it. Exit code: 0
    finished, 1 failed, 2 bad input, 130 interrupted.
    """
    from grposweep.sweep.continuation import continue_trial

    trial, overrides = _trial_and_overrides(names, outputs)
    return continue_trial(trial, overrides, start, yes)


@command(
    "grposweep retry           # all failed trials of the newest sweep",
    "grposweep retry lr_batch 3 7",
)
def retry(names: Names = None, outputs: Outputs = OUTPUTS) -> int:
    """Retry failed trials and resume their sweep.

    Each trial continues from its last checkpoint, or from the beginning if its files have changed.

    'grposweep rerun' repeats any trial as a separate sweep.
    Exit code: that of the sweep.
    """
    from grposweep.report.view import find_names
    from grposweep.sweep.retry import retry_trials

    trials = find_names(names or [], outputs)
    folder, _ = trials[0]
    if len({other.path for other, _ in trials}) > 1:
        raise UserError(
            f"{' '.join(names or [])}: these are trials of several sweeps. Retry one sweep at a "
            "time."
        )
    return retry_trials(str(folder.path), [trial for _, trial in trials if trial], outputs)


class ExportFormat(StrEnum):
    """Forms in which the best trial is written."""

    hydra = "hydra"
    command = "command"
    recipe = "recipe"
    trl = "trl"


class TableFormat(StrEnum):
    """Formats in which all trials are written."""

    csv = "csv"
    json = "json"


FORM_HELP = (
    "hydra: a configuration for run.py; command: a script; recipe: the one that its "
    "program read; trl: one for TRL."
)


@command(
    "grposweep best",
    "grposweep best lr_batch --export best.yaml           # for run.py",
    "grposweep best lr_batch --export trl.yaml --as trl   # for TRL",
    "grposweep best --as command",
)
def best(
    sweep: Named = None,
    export: Annotated[Path | None, Option(metavar="FILE", help="File to write.")] = None,
    form: Annotated[
        ExportFormat | None, Option("--as", help=FORM_HELP, show_default="by the file's ending")
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Replace a file that holds something else.")
    ] = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Show a sweep's best trial, or write what repeats it."""
    from grposweep.report.export import show_best
    from grposweep.report.view import open_sweep

    show_best(open_sweep(sweep, outputs), export, form, force)


@command(
    "grposweep export > trials.csv",
    "grposweep export lr_batch --format json --output trials.json",
    "grposweep export --history > history.csv",
)
def export(
    sweep: Named = None,
    format: Annotated[TableFormat, Option(help="csv, or a JSON list.")] = TableFormat.csv,
    columns: Annotated[
        str | None, Option(metavar="NAMES", help="Only these columns.", show_default="all")
    ] = None,
    history: Annotated[
        bool, Option("--history", help="Every metric at every step: one row per value.")
    ] = False,
    output: Annotated[
        Path | None, Option("--output", "-o", help="A file.", show_default="stdout")
    ] = None,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Write all trials as a table.

    A row has parameters, objective, cost and the last value of each metric. --history writes every
    logged value.
    """
    from grporecipe.files import write_text
    from grposweep.report.export import writable
    from grposweep.report.rows import render_history, render_rows
    from grposweep.report.view import open_sweep

    chosen = [name.strip() for name in (columns or "").split(",") if name.strip()]
    if history and chosen:
        raise UserError(
            "--history has columns of its own, and --columns chooses others. Leave out --columns."
        )
    view = open_sweep(sweep, outputs)
    text = (
        render_history(view, format.value) if history else render_rows(view, format.value, chosen)
    )
    if output is None:
        write_data(text)
        return
    with writable(f"--output {output}: it"):
        write_text(output, text)


@command(
    "grposweep compare kl_grid kl_grid_long        # their best trials",
    "grposweep compare lr_batch 3 7                # two trials of one sweep",
    "grposweep compare lr_batch/3 kl_grid/7",
    "grposweep compare lr_batch outputs/other/trials/0004-3f9a1c",
)
def compare(names: Names = None, outputs: Outputs = OUTPUTS) -> None:
    """Compare trials, or the best trials of sweeps.

    Shows settings, curves, and whether the difference is significant.
    """
    from grposweep.report.compare import compare_all
    from grposweep.report.tables import SCREEN_COLUMNS, build_console

    build_console(SCREEN_COLUMNS).print(compare_all(names or [], outputs))


@command(
    "grposweep space -m lr=1e-4,3e-4 batch.num_generations=8,12",
    "grposweep space sweeps=lr_batch",
    context_settings={"ignore_unknown_options": True},
)
def space(
    arguments: Annotated[
        list[str], Argument(help="A sweep as run.py takes it, or a W&B sweep.yaml.")
    ],
    config_dir: ConfigDir = None,
    json: AsJson = False,
) -> int:
    """Count the valid and invalid points of a sweep.

    Names the rules that make points invalid, valid changes, and keys that change nothing.

    Exit code: 0 success, 1 if no point is valid, 2 unusable input.
    """
    from grposweep.cli._plan import show_space

    return show_space(arguments, config_dir, as_json=json)


@command("grposweep cancel lr_batch")
def cancel(sweep: Required, outputs: Outputs = OUTPUTS) -> None:
    """Cancel the jobs of one sweep.

    The sweep's command resumes them from their last checkpoints.
    """
    from grposweep.launchers import cancel_sweep

    say(cancel_sweep(sweep, outputs))
