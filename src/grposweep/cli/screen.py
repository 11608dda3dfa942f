"""The work of ``grposweep screen``: run or resume a screen, print it, and write the prompts that its advice keeps."""

import json
from collections.abc import Sequence

from grporecipe.errors import ExitCode
from grposweep.config.compose import open_session
from grposweep.config.points import Points
from grposweep.config.validate import check_words
from grposweep.report.tables import SCREEN_COLUMNS, build_console
from grposweep.screening.run import prompts_by_group, run_screen
from grposweep.screening.summary import recommend
from grposweep.screening.text import as_json, print_screen, write_kept
from grposweep.storage import paths
from grposweep.sweep.interrupts import counting_interrupts


def show_screen(overrides: Sequence[str], samples: int, prompts: int | None, is_json: bool) -> int:
    """Screen the configuration of these overrides, and print the result."""
    console = build_console(SCREEN_COLUMNS)
    if is_json:
        console.quiet = True
    with open_session() as session:
        experiment = Points(session.compose, list(overrides)).base
    check_words(experiment)
    with counting_interrupts() as interrupts:
        screen = run_screen(experiment, samples, prompts, console, interrupts)
    if screen is None:
        console.print("interrupted; run the same command to continue", highlight=False)
        return ExitCode.INTERRUPTED
    steps = prompts_by_group(experiment, {"train_prompts": screen.data.train_prompts})
    group, limit = experiment.batch.num_generations, experiment.generation.max_completion_length
    advice = recommend(screen, group, list(steps), steps.get(group, 1))
    kept = write_kept(screen, advice)
    if is_json:
        print(json.dumps(as_json(screen, advice, group, steps, limit)))
        return ExitCode.FINISHED
    print_screen(console, screen, advice, group, steps, limit)
    console.print(f"  {screen.folder / paths.KEPT} ({kept} prompts)", highlight=False, soft_wrap=True)
    return ExitCode.FINISHED
