"""What ``grposweep translate`` does: read, write, read back; files or text, the launch command, and what got lost."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from grposweep import frameworks
from grposweep.errors import BadInput
from grposweep.files import write_text
from grposweep.frameworks.load import Options, load_recipe, parse_recipe
from grposweep.frameworks.written import Written
from grposweep.rules import check, errors
from grposweep.setting import Setting
from grposweep.translate.kept import differences
from grposweep.translate.own import COMMAND, write_own

OWN = "grposweep"
LAUNCH = "launch.sh"


@dataclass(frozen=True)
class Translation:
    """A recipe in other words: its files (the first is the recipe), how to launch it, and what it no longer says.

    ``changed`` are numbers of the plan that came out otherwise, which a translation should not have.
    """

    files: Mapping[str, str]
    command: str
    losses: tuple[str, ...]
    changed: tuple[str, ...] = ()


def translate_file(path: Path, target: str, options: Options, folder: Path | None) -> int:
    """Translate one recipe; the exit code: 1 where its plan could not be kept, or it is broken as it is."""
    try:
        recipe = load_recipe(path, options)
        setting = frameworks.read(recipe).setting
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    broken = errors(check(setting))
    translation = translate(setting, target)
    if folder is None:
        sys.stdout.write(render(translation, f"{path} ({recipe.framework})", target))
    else:
        _write(folder, translation)
        sys.stderr.write(_report(translation))
    for problem in broken:
        print(f"{path} breaks {problem.code} as it is: {problem.broken.what}: {problem.broken.why}.", file=sys.stderr)
    return int(bool(broken or translation.changed))


def translate(setting: Setting, target: str) -> Translation:
    """A setting in a framework's words, or in ours."""
    if target == OWN:
        files, losses = write_own(setting)
        return Translation(files, shlex.join(COMMAND), losses)
    written = frameworks.write(setting, target)
    after = read_back(written, target, setting)
    changed = (*differences(setting, after), *_newly_broken(setting, after))
    return Translation({written.file_name: written.recipe}, _command(written), written.losses, changed)


def _newly_broken(before: Setting, after: Setting) -> Iterator[str]:
    """What the target refuses, where the recipe itself was sound."""
    if not errors(check(before)):
        yield from (f"{problem.code}: {problem.broken.what}: {problem.broken.why}" for problem in errors(check(after)))


def read_back(written: Written, target: str, setting: Setting) -> Setting:
    """What the framework's own reader makes of a written recipe, on the same processes and prompts."""
    options = Options(target, None, setting.processes, setting.train_prompts)
    found = frameworks.read(parse_recipe(Path(written.file_name), written.recipe, options)).setting
    return replace(found, processes=setting.processes) if found.processes is None else found


def render(translation: Translation, source: str, target: str) -> str:
    """All of it as one text that is still the recipe: what is not stands in comments."""
    (first, text), *others = translation.files.items()
    shebang, text = _split_shebang(text)
    lines = [f"# {source} for {target}, as grposweep translate wrote it. Save it as {first}, and launch it:"]
    lines += [f"#   {translation.command}", *_comments("Lost, or otherwise:", translation.losses)]
    lines += _comments("Not kept:", translation.changed)
    parts = [f"# --- {name} ---\n{content}" for name, content in others]
    return shebang + "\n".join(lines) + "\n" + "\n".join([text, *parts])


def _split_shebang(text: str) -> tuple[str, str]:
    if not text.startswith("#!"):
        return "", text
    head, _, rest = text.partition("\n")
    return head + "\n", rest


def _comments(title: str, items: tuple[str, ...]) -> list[str]:
    return [f"# {title}", *(f"#   - {item}" for item in items)] if items else []


def _write(folder: Path, translation: Translation) -> None:
    """Every file, and the command as a script beside them."""
    try:
        for name, text in translation.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, text)
        write_text(folder / LAUNCH, f"#!/bin/sh\n{translation.command}\n")
    except OSError as error:
        raise BadInput(f"-o {folder}: it cannot be written ({error.strerror}). Name a folder that can.") from error


def _report(translation: Translation) -> str:
    said = [f"wrote {', '.join([*translation.files, LAUNCH])}", *(f"lost: {item}" for item in translation.losses)]
    return "\n".join([*said, *(f"not kept: {item}" for item in translation.changed)]) + "\n"


def _command(written: Written) -> str:
    """The command with its variables before it."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in written.environment.items()]
    return " ".join([*variables, shlex.join(written.command)])
