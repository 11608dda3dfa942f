"""Commands on recipes: lint, check, rules, plan, screen, fit."""

import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from typer import Argument, Option

from grporecipe.errors import UserError
from grporecipe.registries import FRAMEWORKS
from grporecipe.terminal import say
from grposweep.cli._app import ConfigDir, choices, command

# their members are only known when the registry is read
if TYPE_CHECKING:
    Framework: TypeAlias = str
else:
    Framework = choices("Framework", "auto", *FRAMEWORKS)


class Format(StrEnum):
    """Text, or one JSON object per recipe and line."""

    text = "text"
    json = "json"


class LintFormat(StrEnum):
    """For users, for programs (one object per recipe and line), for GitHub's annotations, and for
    code scanners.
    """

    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"


Files = Annotated[
    list[Path] | None, Argument(help="Recipes, scripts that launch one, or folders of them.")
]
Processes = Annotated[
    int | None, Option(min=1, help="Training processes, without the GPUs of a vLLM server.")
]
FrameworkVersion = Annotated[
    str | None,
    Option(
        metavar="X.Y[.Z]",
        help="Framework version whose rules apply.",
        show_default="what the repository says",
    ),
]
Ranks = Annotated[int | None, Option(min=1, help="Training processes.")]
Gpus = Annotated[int | None, Option(min=1, help="Number of GPUs, instead of --processes.")]
VllmGpus = Annotated[
    int, Option(min=0, help="Of these, GPUs of a vLLM server, which do not train.")
]
RecipeFramework = Annotated[
    Framework, Option(help="The recipe's framework; auto detects it from keys and paths.")
]
Select = Annotated[list[str] | None, Option(help="Only these rules (GB101, GB).")]
Ignore = Annotated[list[str] | None, Option(help="Rules or families to leave out.")]
DatasetSize = Annotated[int | None, Option(min=1, help="Training prompts.")]
Gpu = Annotated[
    str | None,
    Option(metavar="GPU", help="Check whether it fits this GPU: A100, H100, RTX 4090, 24GiB, ..."),
]


@command(
    "grposweep lint recipe.yaml --processes 8 --gpu A100",
    "grposweep lint recipes run_verl.sh --format json",
    "grposweep lint recipe.yaml --fix",
    "grposweep lint . --diff",
    no_args_is_help=True,
)
def lint(
    files: Files = None,
    framework: RecipeFramework = "auto",
    processes: Processes = None,
    framework_version: FrameworkVersion = None,
    dataset_size: DatasetSize = None,
    gpu: Gpu = None,
    format: Annotated[
        LintFormat,
        Option(
            help="json is one object per recipe, one per line; github annotates a pull request."
        ),
    ] = LintFormat.text,
    fix: Annotated[
        bool, Option("--fix", help="Write the fixes that do not change training into YAML.")
    ] = False,
    unsafe_fixes: Annotated[
        bool,
        Option("--unsafe-fixes", help="With --fix or --diff: also the fixes that change training."),
    ] = False,
    diff: Annotated[
        bool, Option("--diff", help="Write nothing: show what --fix would change.")
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
) -> int:
    """Check GRPO recipes: errors, their lines and fixes.

    A folder is searched for recipes, except files that git ignores. A comment "# grposweep:
    ignore[GB101]" on or above a line switches a rule off for it.

    Exit code: 0 no errors, 1 errors found (with --diff: something to fix), 2 unusable input.
    """
    from grporecipe.linting.linter import select_rules
    from grporecipe.reading.load import Options

    options = Options(
        str(framework), None, processes, dataset_size, framework_version, _gpu(gpu), gpu
    )
    chosen = select_rules(select or (), ignore or ())
    if unsafe_fixes and not (fix or diff):
        raise UserError(
            "--unsafe-fixes extends --fix and --diff, and does nothing alone. Add --fix or --diff."
        )
    if diff and (fix or format is not LintFormat.text):
        raise UserError(
            "--diff writes nothing but a diff: --fix and --format cannot be combined with it."
        )
    from grporecipe.linting.command import LintOptions, lint_files

    if not files:
        raise UserError("no recipe named. Name files or folders.")
    _say_processes(files, processes)
    no_color = "NO_COLOR" in os.environ
    asked = LintOptions(options, chosen, str(format), fix, unsafe_fixes, diff, no_color)
    return lint_files(files, asked, sys.stdout)


@command(
    "grposweep check -- bash launch.sh",
    "grposweep check -- accelerate launch --num_processes 4 train.py --lr 1e-5",
    context_settings={"allow_interspersed_args": False},
)
def check(
    words: Annotated[
        list[str],
        Argument(metavar="COMMAND", help="The command that trains, as you run it, after --."),
    ],
    processes: Annotated[
        int | None, Option(min=1, help="Training processes, if the command does not state them.")
    ] = None,
    format: Annotated[Format, Option(help="text, or one JSON object as for lint.")] = Format.text,
    select: Select = None,
    ignore: Ignore = None,
) -> int:
    """Check a launch by the values that its trainer gets.

    Runs the command up to the construction of its GRPO trainer, and ends it there. Training, models
    and data are replaced by stand-ins; if that does not work, the command runs for real up to
    there. Its other steps run, such as one that prepares data.

    Exit code: 0 no errors, 1 errors found, 2 unusable input.
    """
    from grposweep.cli._check import check_command

    return check_command(words, processes, str(format), select or (), ignore or ())


@command("grposweep rules", "grposweep rules GB101", "grposweep rules kl")
def rules(
    words: Annotated[
        list[str] | None, Argument(help="A rule or family (GB101, GB), or words of rules.")
    ] = None,
) -> None:
    """List the rules, or explain one."""
    from grporecipe.linting.explain_rules import explain_rules

    explain_rules(words or (), sys.stdout)


@command(
    "grposweep plan recipe.yaml --gpus 8 --vllm-gpus 1 --dataset-size 8000",
    "grposweep plan trl.yaml easyr1.yaml run_verl.sh",
    "grposweep plan batch=auto batch.prompts_per_step=32 cluster.processes=8",
)
def plan(
    items: Annotated[list[str], Argument(help="Recipes, or overrides key=value of grposweep.")],
    framework: RecipeFramework = "auto",
    processes: Ranks = None,
    gpus: Gpus = None,
    vllm_gpus: VllmGpus = 0,
    framework_version: FrameworkVersion = None,
    dataset_size: DatasetSize = None,
    gpu: Gpu = None,
    config_dir: ConfigDir = None,
    format: Annotated[
        Format, Option(help="text, or one JSON object per recipe, one per line.")
    ] = Format.text,
) -> int:
    """Show batch sizes, steps and epochs of recipes.

    Each number has its formula. Several recipes are shown in columns.

    Exit code: 0 no errors, 1 errors found, 2 unusable input.
    """
    from grporecipe.reading.load import Options
    from grposweep.cli._plan import show_plan, training_processes

    ranks = training_processes(processes, gpus, vllm_gpus)
    options = Options(str(framework), None, ranks, dataset_size, framework_version)
    _say_processes(map(Path, items), ranks)
    return show_plan(items, options, format is Format.json, _gpu(gpu), config_dir)


@command(
    "grposweep fit recipe.yaml --processes 8",
    "grposweep fit model=qwen2_5_7b batch=medium cluster.processes=8",
)
def fit(
    items: Annotated[list[str], Argument(help="A recipe, or overrides key=value of grposweep.")],
    gpu: Gpu = None,
    framework: RecipeFramework = "auto",
    processes: Ranks = None,
    framework_version: FrameworkVersion = None,
    config_dir: ConfigDir = None,
    format: Annotated[
        Format, Option(help="text, or one JSON object per GPU, one per line.")
    ] = Format.text,
    json: Annotated[bool, Option("--json", help="The same as --format json.")] = False,
) -> int:
    """Estimate whether a recipe fits a GPU.

    Also shows the largest sizes that fit, and what saves most memory. Without --gpu it shows a
    table of GPUs.

    Exit code: 0 it fits or may fit, 1 it fits on none of the GPUs, 2 unusable input.
    """
    from grporecipe.reading.load import Options
    from grposweep.cli._plan import show_fit

    options = Options(str(framework), None, processes, own_version=framework_version)
    _say_processes(map(Path, items), processes)
    shown = json or format is Format.json
    return show_fit(items, options, _gpu(gpu), shown, config_dir, gpu or "")


def _say_processes(files: Iterable[Path], processes: int | None) -> None:
    """Say that an option takes the place of the number of processes in a recipe."""
    from grporecipe.reading.load import stated_processes

    for file in files if processes else ():
        stated = stated_processes(file) if file.is_file() else None
        if stated not in (None, processes):
            say(
                f"{file}: it is for {stated} processes, and judged for {processes} as the "
                "command says",
                sys.stderr,
            )


def _gpu(name: str | None) -> float | None:
    """Return the memory of the named GPU in GiB."""
    from grporecipe.memory.catalog import memory_of

    return None if name is None else memory_of(name, "--gpu")
