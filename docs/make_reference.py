"""Write docs/reference/ from the code: commands, files on disk, exit codes, the Python interface
(``make docs``).

python docs/make_reference.py [FOLDER]
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

import grposweep
from grporecipe import errors
from grposweep import api
from grposweep.cli import build_app
from grposweep.storage import paths

FOLDER = Path(__file__).resolve().parent / "reference"
COMMANDS = FOLDER.parents[1] / "tests" / "command" / "commands"
MADE = "Generated from {} by `make docs`. Do not edit.\n"


def commands() -> str:
    """Return the page of all commands, in the order of ``grposweep --help``."""
    found = get_command(build_app()).commands.items()  # type: ignore[attr-defined]  # typer's root is a group
    index = ", ".join(f"[{name}](#grposweep-{name})" for name, _ in found)
    head = "`python src/run.py` is `grposweep run` from a checkout. Every command has `--help`.\n"
    sections = [section for name, command in found for section in _command(name, command)]
    return "\n".join(
        ["# Commands\n", MADE.format("the command line"), head, index + "\n", *sections]
    )


def _command(name: str, command: Any) -> Iterator[str]:
    """Yield a command's section: help, usage, arguments and options, examples."""
    context = command.context_class(command, info_name=f"grposweep {name}")
    yield f"## grposweep {name}\n"
    yield inspect.cleandoc(command.help or "").replace("<", "&lt;") + "\n"
    yield f"```text\ngrposweep {name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    records = [
        parameter.get_help_record(context)
        for parameter in command.params
        if parameter.name != "help"
    ]
    rows = [f"| `{_cell(record[0])}` | {_cell(record[1])} |" for record in records if record]
    if rows:
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows]) + "\n"
    if examples := (command.epilog or "").partition("Examples:\n")[2]:
        yield f"```sh\n{inspect.cleandoc(examples)}\n```\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def files() -> str:
    """Return the page of the files on disk, with the comments of ``storage/paths.py``."""
    parts = ["# Files on disk\n", MADE.format("`src/grposweep/storage/paths.py`")]
    parts.append(
        "A sweep's folder is `outputs/NAME`, a trial's folder `outputs/NAME/trials/0003-3f9a1c`. "
        "[How it works](../explanation/how_it_works.md) has the records.\n"
    )
    comment: list[str] = []
    for line in inspect.getsource(paths).splitlines():
        if title := re.fullmatch(r"# (In (?:a|the) .*)\.", line):
            parts += [f"## {title[1]}\n", "| file | content |", "|---|---|"]
        elif line.startswith("# "):
            comment.append(line.removeprefix("# "))
        elif row := re.fullmatch(r'[A-Z_]+ = "(.+?)"', line):
            parts.append(f"| `{row[1]}` | {' '.join(comment)} |")
            comment = []
        elif not line:
            parts.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"


def exit_codes() -> str:
    """Return the page of the exit codes, with the text below each member of ``ExitCode``."""
    tree = ast.parse(inspect.getsource(errors.ExitCode)).body[0]
    assert isinstance(tree, ast.ClassDef)
    rows = ["| code | name | meaning |", "|---|---|---|"]
    for node, after in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(after, ast.Expr)
        ):
            name, text = node.targets[0].id, ast.literal_eval(after.value)
            rows.append(f"| {errors.ExitCode[name].value} | `{name}` | {_cell(text)} |")
    return "\n".join(["# Exit codes\n", MADE.format("`src/grporecipe/errors.py`"), *rows]) + "\n"


def python() -> str:
    """Return the page of the Python interface: what ``grposweep`` exports, and the classes that
    this returns.
    """
    parts = [
        "# Python interface\n",
        MADE.format("docstrings"),
        "Worked examples are in [the guide](../guides/python.md).\n",
    ]
    returned: dict[str, type] = {}
    for name in grposweep.__all__:
        # grposweep.sweep may be the package of that name
        found = getattr(api, name, None) or getattr(grposweep, name)
        parts += _entry(name, found)
        if inspect.isfunction(found):
            kind = inspect.signature(found).return_annotation
            kind = (
                getattr(sys.modules[found.__module__], kind, None)
                if isinstance(kind, str)
                else kind
            )
            if inspect.isclass(kind) and kind.__module__.startswith("grposweep"):
                returned[kind.__name__] = kind
    for name, kind in returned.items():
        parts += _entry(name, kind)
    return "\n".join(parts)


def _entry(name: str, found: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if inspect.isclass(found):
        yield _text(found)
        shown = [
            (member, value)
            for member, value in vars(found).items()
            if not member.startswith("_") and value.__doc__
        ]
        fields = vars(found).get("__annotations__", {})
        rows = [(n, t) for n, t in fields.items() if not n.startswith("_") and n not in dict(shown)]
        lines = [
            f"- `{n}`: `{t if isinstance(t, str) else getattr(t, '__name__', t)}`" for n, t in rows
        ]
        lines += [
            f"- `{n}`: {_text(v.fget if isinstance(v, property) else v).strip()}" for n, v in shown
        ]
        yield "\n".join(lines) + "\n" if lines else ""
    else:
        yield f"```python\n{_signature(name, found)}\n```\n"
        yield _text(found)


def _signature(name: str, found: Callable[..., Any]) -> str:
    function = ast.parse(inspect.getsource(found)).body[0]
    assert isinstance(function, ast.FunctionDef)
    returns = ast.unparse(function.returns).strip("'") if function.returns else "None"
    return textwrap.fill(
        f"{name}({ast.unparse(function.args)}) -> {returns}", 100, subsequent_indent="    "
    )


def _text(found: Any) -> str:
    """Return a docstring as Markdown, its arguments as a list."""
    text = inspect.cleandoc(found.__doc__ or "").replace("``", "`")
    return (
        re.sub(
            r"^    (\w+): ",
            r"- `\1`: ",
            re.sub(r"^(Args|Raises|Returns):$", r"\1:\n", text, flags=re.MULTILINE),
            flags=re.MULTILINE,
        )
        + "\n"
    )


def launch_commands() -> str:
    """Return the page of the launch commands that tests ask and sweep."""
    rows = ["| the program | seen in | typed behind `--` | what happens |", "|---|---|---|---|"]
    for path in sorted(COMMANDS.glob("*.yaml")):
        one = yaml.safe_load(path.read_text(encoding="utf-8"))
        typed, refused = (
            textwrap.shorten(_cell(one["command"]), 90, placeholder=" ..."),
            one.get("refused"),
        )
        what = "swept, with the installed TRL" if one.get("real") else "swept"
        happens = f"refused: `{_cell(refused)}`" if refused else what
        rows.append(f"| {_cell(one['kind'])} | {_cell(one['from'])} | `{typed}` | {happens} |")
    head = (
        "Each is asked what its trainer gets and swept over two learning rates, unchanged, by "
        "`tests/command/test_commands.py`: each trial gets its own value, or the command is "
        "refused with the words in the table. The programs were written for this project and keep "
        "the structure of public ones. Those without the installed TRL train with a stub of it.\n"
    )
    return (
        "\n".join(["# Launch commands\n", MADE.format("`tests/command/commands/`"), head, *rows])
        + "\n"
    )


PAGES = {
    "launch_commands.md": launch_commands,
    "commands.md": commands,
    "files.md": files,
    "exit_codes.md": exit_codes,
    "python_api.md": python,
}


def main() -> None:
    """Write all pages."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
