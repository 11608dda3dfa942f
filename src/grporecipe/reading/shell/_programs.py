"""Programs in a script: those that run another script (``bash -c``, tmux, Slurm's wrap), ``$( )``,
and Slurm's variables.

Source: sbatch(1), "Output environment variables" (SLURM_GPUS_ON_NODE, SLURM_GPUS_PER_NODE,
SLURM_JOB_NUM_NODES, SLURM_NNODES).
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

from grporecipe.model.values import CommandLine, Word
from grporecipe.reading.shell._syntax import Chain, Raw, Simple, SyntaxReader
from grporecipe.reading.shell._words import Scope, Values, is_known, joined_path, marked_texts

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
TMUX_KEYS = frozenset({"Enter", "C-m", "ENTER", "KPEnter"})


def handed_on(fields: CommandLine, read: Callable[[str], str | None]) -> CommandLine | None:
    """Return the script that a command passes to another shell (``bash -c``, tmux, Slurm's wrap),
    and its arguments.

    ``read`` returns the text of a file of the checkout. Only one that gets arguments is read: the
    others are recipes themselves.
    """
    names = [PurePosixPath(field.text).name for field in fields]
    name = "".join(names[:1])
    if name in ("echo", "printf", "cat"):
        return None
    for n, field in enumerate(fields[:-1]):
        if names[n] in SHELLS:
            at = n + 1
            while at < len(fields) - 1 and fields[at].text.startswith("-"):
                if re.fullmatch(r"-[a-z]*c", fields[at].text):
                    return fields[at + 1 :]
                at += 1
            text = None
            if at < len(fields) - 1:
                text = read(fields[at].text)
            if text:
                return [Word(text, field.line, marked=text), *fields[at:]]
    if name == "tmux" and fields[1:]:
        return _typed(fields)
    if name == "sbatch":
        for n, field in enumerate(fields):
            option, equals, script = field.marked.partition("=")
            if option == "--wrap" and equals:
                return [replace(field, marked=script)]
            if option == "--wrap":
                return fields[n + 1 : n + 2] or None
    if name == "ray" and fields[1:] and fields[1].text == "job" and _is_script(fields[-1]):
        return fields[-1:]
    if name in ("ssh", "su") and len(fields) > 2 and " " in fields[-1].text.strip():
        return fields[-1:]
    return None


def _is_script(field: Word) -> bool:
    """Return whether a field that a job consists of is a whole command line, as of a quoted
    variable.
    """
    first, _, rest = field.text.strip().partition(" ")
    return bool(rest) and "=" not in first and not first.startswith(("-", "{"))


def _typed(fields: CommandLine) -> CommandLine | None:
    """Return the text that tmux types into a shell or starts in a window."""
    typed = []
    skips = False
    for field in fields[2:]:
        if skips or field.text.startswith("-") or field.text in TMUX_KEYS:
            skips = not skips and re.fullmatch(r"-[tsncxyF]", field.text) is not None
        else:
            typed.append(field)
    texts = marked_texts(typed)
    if fields[1].text in ("send-keys", "send"):
        text = "".join(texts)
    elif fields[1].text in ("new-session", "new", "new-window", "neww"):
        text = "".join(texts[-1:])
    else:
        return None
    if " " not in text:
        return None
    return [Word(text, typed[0].line, marked=text, span=typed[0].span)]


def reads_script(fields: CommandLine) -> bool:
    """Return whether a command runs its standard input: a shell or sbatch without the name of a
    script.
    """
    names = [PurePosixPath(field.text).name for field in fields if not field.text.startswith("-")]
    return bool(names) and (names[-1] in SHELLS or names[0] in ("sbatch", "ssh"))


# the words of a list with commas, counted: echo $A | tr ',' '\\n' | wc -l, or awk -F, '{print NF}'
COUNTED = (
    r"\s*echo\s+(\"?\$\{?\w+\}?\"?)\s*\|\s*"
    r"(?:tr\s+['\"]?,['\"]?\s+['\"](?:\\n| )['\"]\s*\|\s*wc\s+-[lw]"
    r"|awk\s+-F\s*['\"]?,['\"]?\s+'\{\s*print\s+NF;?\s*\}')\s*"
)


def printed(scope: Scope, text: str, line: int) -> str | None:
    """Return the output of commands in ``$( )`` that only handle text: dirname, basename, echo and
    the like.
    """
    if match := re.fullmatch(COUNTED, text):
        value = scope.text(Raw(match[1], line))
        if not is_known(value):
            return None
        return str(value.count(",") + 1)
    folder = scope.folder
    lines: list[str] = []
    for node in SyntaxReader(text, line).script():
        parts = [("", False, node)]
        if isinstance(node, Chain):
            parts = node.parts
        for joint, negated, part in parts:
            if joint not in ("", "&&") or negated or not isinstance(part, Simple) or not part.words:
                return None
            fields = scope.expand(part.words)
            output = _prints(scope, fields, part)
            if output is None:
                scope.folder = folder
                return None
            if fields[0].text not in ("cd", "pushd"):
                lines.append(output)
    scope.folder = folder
    return "\n".join(lines)


def _prints(scope: Scope, fields: CommandLine, node: Simple) -> str | None:
    names = [field.marked for field in fields[1:] if not re.fullmatch(r"-\w+|--", field.text)]
    if not fields or (any(field.unknown for field in fields) and fields[0].text != "echo"):
        return None
    match fields[0].text, names:
        case (("cd" | "pushd"), [path]):
            scope.folder = joined_path(scope.folder, path)
            return scope.folder or None
        case "pwd", []:
            return scope.folder or None
        case "dirname", [path]:
            return str(PurePosixPath(path).parent)
        case "basename", [path, *ends]:
            return PurePosixPath(path).name.removesuffix("".join(ends[:1]))
        case (("realpath" | "readlink"), [path]):
            return joined_path(scope.folder, path) or None
        case "echo", _ if fields[1:] and not fields[1].text.startswith("-"):
            return " ".join(marked_texts(fields[1:]))
        case "cat", [] if node.input is not None:
            return input_of(scope, node)
    return None


def input_of(scope: Scope, node: Simple) -> str:
    """Return the text of a here document or here string, with marks."""
    # the callers have checked it
    assert node.input is not None
    if node.is_string:
        return scope.text(node.input)
    if node.is_literal:
        return node.input.text
    return scope.document(node.input)


_OPTION = r"(?m)^#SBATCH[ \t]+(--[\w-]+|-\w)[= \t]?[ \t]*([^\s#]+)"
_GPUS = {
    "--gres": r"(?:.*,)?gpu:(?:[\w.-]+:)?(\d{1,3})(?:\(.*\))?(?:,.*)?",
    "--gpus-per-node": r"(?:[\w.-]+:)?(\d{1,3})",
}


def slurm_variables(text: str) -> Values:
    """Return Slurm's variables by name, from a script's options."""
    variables: Values = {}
    for name, value in re.findall(_OPTION, text):
        if name in ("--nodes", "-N") and value.isdigit():
            variables |= {"SLURM_JOB_NUM_NODES": value, "SLURM_NNODES": value}
        elif match := re.fullmatch(_GPUS.get(name, r"(?!)"), value):
            variables["SLURM_GPUS_ON_NODE"] = match[1]
            if name == "--gpus-per-node":
                variables["SLURM_GPUS_PER_NODE"] = match[1]
    return variables
