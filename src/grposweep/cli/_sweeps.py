"""Commands that show sweeps and trainings by reading their files: status, show, diagnose, list,
report.
"""

from json import dumps
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from grporecipe.errors import UserError
from grposweep.cli._app import (
    OUTPUTS,
    AsJson,
    ConfigDir,
    LogOrNames,
    Named,
    Names,
    Outputs,
    command,
)
from grposweep.storage import paths


@command(
    "grposweep status                                  # of the newest sweep",
    "grposweep status lr_batch --watch                 # live",
    "grposweep status lr_batch --json | jq .best.point",
)
def status(
    sweep: Named = None,
    watch: Annotated[
        bool, Option("--watch", help="Show it live until the sweep is done, or Ctrl-C.")
    ] = False,
    json: AsJson = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Show the progress of a sweep.

    Best trial so far, running and waiting trials, invalid points, failures, cost.
    """
    from grporecipe.terminal import redraws
    from grposweep.report.status import status_json, status_screen, watch_status
    from grposweep.report.tables import SCREEN_COLUMNS, build_console
    from grposweep.report.view import SweepReader
    from grposweep.storage.folders import find_sweep

    reader = SweepReader(find_sweep(sweep, outputs))
    console = build_console(SCREEN_COLUMNS)
    if json:
        print(dumps(status_json(reader.read())))
    elif not watch:
        console.print(status_screen(reader.read()))
    elif redraws(console):
        watch_status(reader, console)
    else:
        raise UserError(
            "--watch needs a terminal. Without one, repeat 'grposweep status', or use --json."
        )


@command(
    "grposweep show 12",
    "grposweep show lr_batch 12",
    "grposweep show lr_batch        # its best trial",
)
def show(names: Names = None, outputs: Outputs = OUTPUTS) -> None:
    """Show one trial: curve, problems and command.

    Also its differences from the best trial and from the baseline.
    """
    from grposweep.report.tables import SCREEN_COLUMNS, build_console
    from grposweep.report.trial_screen import print_trial
    from grposweep.report.view import open_trial

    print_trial(build_console(SCREEN_COLUMNS), *open_trial(names or [], outputs))


@command(
    "grposweep diagnose outputs/run/trainer_state.json",
    "grposweep diagnose slurm-4711.out --watch",
    "grposweep diagnose train.log recipe.yaml         # names settings to change",
    "grposweep diagnose lr_batch 7                    # a trial",
    "grposweep diagnose train.log --fail-on collapse  # in a job script",
)
def diagnose(
    names: LogOrNames,
    watch: Annotated[
        bool, Option("--watch", help="Read it again until it ends or --fail-on.")
    ] = False,
    interval: Annotated[float, Option(min=0.1, metavar="SECONDS", help="Between readings.")] = 10.0,
    json: AsJson = False,
    fail_on: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help=(
                "Exit with code 1 on these findings: collapse, problem, flat, ..., separated "
                "by commas."
            ),
        ),
    ] = None,
    outputs: Outputs = OUTPUTS,
) -> int:
    """Diagnose a GRPO training from its log.

    It reads trainer_state.json, the output of TRL, ms-swift, verl, EasyR1, slime and prime-rl,
    JSON lines, W&B's offline runs and CSV, TensorBoard events, and metrics.jsonl.

    Exit code: 0 success, 1 if a finding of --fail-on is present, 2 unusable input.
    """
    from grporecipe.diagnose.command import diagnose_once, parse_fail_on, watch_log
    from grposweep.report.tables import LOG_COLUMNS, build_console

    wanted = parse_fail_on(fail_on)
    recipe = None
    if len(names) == 2 and Path(names[0]).exists():
        if Path(names[1]).is_file():
            recipe = Path(names.pop())
        elif Path(names[0]).is_file():
            raise UserError(
                f"{names[1]}: there is no such file. Name the recipe of {names[0]}, or leave it "
                "out."
            )
    path = _log(names, outputs)
    console = build_console(LOG_COLUMNS)
    if watch and recipe:
        raise UserError(
            f"--watch with {recipe}: a log that grows is diagnosed without its recipe. Leave "
            "one of them out."
        )
    if watch:
        return watch_log(path, console, json, wanted, interval)
    return diagnose_once(path, console, json, wanted, recipe)


def _log(names: list[str], outputs: Path) -> Path:
    """Return the path of a log, or the folder of a trial."""
    from grposweep.report.view import open_trial

    path, *others = map(Path, names)
    is_path = path.exists() or "/" in names[0] or "." in names[0]
    if is_path and not others and not (outputs / path.parent / paths.SWEEP).is_file():
        return path
    return open_trial(names, outputs)[1].path


@command("grposweep list", "grposweep list /shared/experiments", name="list")
def list_(
    folder: Annotated[
        Path | None,
        Argument(
            help="Folder to search, a few levels deep.", show_default="the configuration's outputs"
        ),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """List the sweeps below a folder, the newest first.

    Without sweeps in outputs/ it lists those of all folders where you have started some.

    Dry runs and sweeps of the fake trainer come last.
    """
    from grposweep.report.sweeps_list import read_sweeps, sweeps_table
    from grposweep.report.tables import SCREEN_COLUMNS, build_console, print_lines
    from grposweep.report.view import SweepView
    from grposweep.storage.folders import find_sweeps, remembered

    here = folder or _outputs_of(config_dir)
    console = build_console(SCREEN_COLUMNS)
    if folder or any(find_sweeps(here)):
        views, damaged = read_sweeps(here)
        if views:
            console.print(sweeps_table(views))
    else:
        views, damaged = read_sweeps(here, *remembered())
        by_place: dict[Path, list[SweepView]] = {}
        for view in views:
            by_place.setdefault(view.path.parent, []).append(view)
        for place, those in by_place.items():
            print_lines(console, f"in {place}:")
            console.print(sweeps_table(those))
    print_lines(console, *damaged, style="yellow")


def _outputs_of(config_dir: Path | None) -> Path:
    """Return the folder in which a user's configuration puts its sweeps."""
    if config_dir is None:
        return OUTPUTS
    from grposweep.config.compose import open_session, to_experiment

    with open_session(config_dir) as session:
        return Path(to_experiment(session.compose([])).outputs)


@command("grposweep report", "grposweep report lr_batch --offline --output ~/lr_batch.html")
def report(
    sweep: Named = None,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="A file or folder.",
            show_default="report.html in the sweep's folder",
        ),
    ] = None,
    offline: Annotated[
        bool, Option("--offline", help="Put plotly.js (4.8 MB) into the page: one file to send.")
    ] = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Write an HTML page about a sweep.

    Leaderboard, curves, parameters, invalid points with reasons, failures, cost, commands.

    It opens from disk, needs no network, and may be written while the sweep runs.
    The pages of all sweeps of a folder share one plotly.js there.
    """
    from grporecipe.terminal import count
    from grposweep.report.html_page import write_report
    from grposweep.report.tables import SCREEN_COLUMNS, build_console, print_lines
    from grposweep.report.view import open_sweep

    view = open_sweep(sweep, outputs)
    path = write_report(view, output, offline)
    size = f"{path.stat().st_size / 1e6:.1f} MB, {count(len(view.trials), 'trial')}"
    print_lines(build_console(SCREEN_COLUMNS), f"{path} ({size})")
