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
from grporecipe.reading.shell._words import Scope, Values, is_known, joined_path

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
TMUX_KEYS = frozenset({"Enter", "C-m", "ENTER", "KPEnter"})


def handed_on(words: CommandLine, read: Callable[[str], str | None]) -> CommandLine | None:
    """Return the script that a command passes to another shell (``bash -c``, tmux, Slurm's wrap),
    and its arguments.

    ``read`` returns the text of a file of the checkout. Only one that gets arguments is read: the
    others are recipes themselves.
    """
    name = PurePosixPath(words[0].text).name if words else ""
    if name in ("echo", "printf", "cat"):
        return None
    for n, word in enumerate(words[:-1]):
        if PurePosixPath(word.text).name in SHELLS:
            options = n + 1
            while options < len(words) - 1 and words[options].text.startswith("-"):
                if re.fullmatch(r"-[a-z]*c", words[options].text):
                    return words[options + 1 :]
                options += 1
            if options < len(words) - 1 and (text := read(words[options].text)):
                return [Word(text, word.line, marked=text), *words[options:]]
    if name == "tmux":
        return _typed(words)
    if name == "sbatch":
        for n, word in enumerate(words):
            option, equals, script = word.marked.partition("=")
            if option == "--wrap":
                return [replace(word, marked=script)] if equals else words[n + 1 : n + 2] or None
    if name == "ray" and words[1:2] and words[1].text == "job" and _is_script(words[-1]):
        return words[-1:]
    if name in ("ssh", "su") and len(words) > 2 and " " in words[-1].text.strip():
        return words[-1:]
    return None


def _is_script(word: Word) -> bool:
    """Return whether a word that a job consists of is a whole command line, as of a quoted
    variable.
    """
    first, _, rest = word.text.strip().partition(" ")
    return bool(rest) and "=" not in first and not first.startswith(("-", "{"))


def _typed(words: CommandLine) -> CommandLine | None:
    """Return the text that tmux types into a shell or starts in a window."""
    typed = []
    skips = False
    for word in words[2:]:
        if skips or word.text.startswith("-") or word.text in TMUX_KEYS:
            skips = not skips and re.fullmatch(r"-[tsncxyF]", word.text) is not None
        else:
            typed.append(word)
    if (
        words[1].text not in ("send-keys", "send", "new-session", "new", "new-window", "neww")
        or not typed
    ):
        return None
    text = "".join(word.marked for word in typed) if "send" in words[1].text else typed[-1].marked
    return [Word(text, typed[0].line, marked=text, span=typed[0].span)] if " " in text else None


def reads_script(words: CommandLine) -> bool:
    """Return whether a command runs its standard input: a shell or sbatch without the name of a
    script.
    """
    names = [PurePosixPath(word.text).name for word in words if not word.text.startswith("-")]
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
    if counted := re.fullmatch(COUNTED, text):
        value = scope.text(Raw(counted[1], line))
        return str(value.count(",") + 1) if is_known(value) else None
    folder = scope.folder
    lines: list[str] = []
    for node in SyntaxReader(text, line).script():
        parts = node.parts if isinstance(node, Chain) else [("", False, node)]
        for joint, negated, part in parts:
            if joint not in ("", "&&") or negated or not isinstance(part, Simple) or not part.words:
                return None
            words = [word for raw in part.words for word in scope.words(raw)]
            output = _prints(scope, words, part)
            if output is None:
                scope.folder = folder
                return None
            if words[0].text not in ("cd", "pushd"):
                lines.append(output)
    scope.folder = folder
    return "\n".join(lines)


def _prints(scope: Scope, words: CommandLine, node: Simple) -> str | None:
    names = [word.marked for word in words[1:] if not re.fullmatch(r"-\w+|--", word.text)]
    if not words or (any(word.unknown for word in words) and words[0].text != "echo"):
        return None
    match words[0].text, names:
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
        case "echo", _ if words[1:2] != [] and not words[1].text.startswith("-"):
            return " ".join(word.marked for word in words[1:])
        case "cat", [] if node.input is not None:
            return input_of(scope, node)
    return None


def input_of(scope: Scope, node: Simple) -> str:
    """Return the text of a here document or here string, with marks."""
    # the callers have checked it
    assert node.input is not None
    if node.is_string:
        return scope.text(node.input)
    return node.input.text if node.is_literal else scope.document(node.input)


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
        elif name in _GPUS and (gpus := re.fullmatch(_GPUS[name], value)):
            variables["SLURM_GPUS_ON_NODE"] = gpus[1]
            if name == "--gpus-per-node":
                variables["SLURM_GPUS_PER_NODE"] = gpus[1]
    return variables
