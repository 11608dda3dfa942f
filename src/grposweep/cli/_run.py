"""The code between ``src/run.py`` and Hydra: both sweep syntaxes, messages for bad input, exit
codes.
"""

import errno
import os
import shlex
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from grporecipe import __version__
from grporecipe.errors import ExitCode, LeaseLostError, UserError
from grporecipe.terminal import keep_screens, say
from grposweep.config.compose import (
    check_groups,
    is_conf,
    message,
    override_name,
    override_text,
    register_schema,
)
from grposweep.config.wandb_sweep import expand
from grposweep.process import CONF, CONFIG_DIR, CONFIG_FLAGS, CONFIG_NAME, CONFIG_PATH
from grposweep.search.parse import bracket_points, parse_space, split_tokens

MULTIRUN = ("-m", "--multirun")
# of a shell, whose words are parts of overrides
COMPLETION = frozenset({"-sc", "--shell-completion"})
VERSION = "--version"
# Hydra's flags, and those with a value
VALUED = (*CONFIG_FLAGS, "--cfg", "-c", "--package", "-p", "--experimental-rerun", "--info", "-i")
FLAGS = (
    *VALUED,
    *MULTIRUN,
    "--help",
    "--hydra-help",
    "--resolve",
    "--run",
    "--verbose",
)
# their braces and commas are text, not Hydra's grammar
TEXTS = (
    "trainer.metrics",
    "trainer.resume",
    "trainer.checkpoints",
)
# these flags show the controller's log on the terminal
VERBOSE = {"-v": "verbose=true", "--verbose": "verbose=true"}
# By error: what the user can change about a file that cannot be written. Other errors are shown in
# full.
DISK_ERRORS = {
    # a disk, a quota, a limit on files' sizes
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Make room"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Allow writing there"),
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR, errno.EEXIST), "Move away what stands there"),
}
# whose messages name what is set, apart from UserError's own
EXPLAINED = (UserError, HydraException, OmegaConfBaseException, MarkedYAMLError)
# Python's own
NO_THREAD = "can't start new thread"
# Hydra's own
NO_LIST = "Invalid defaults list"
NO_THREAD_MESSAGE = (
    "this machine starts no further thread ('ulimit -u' limits processes and threads of a user). "
    "End other processes or raise the limit, and run the same command again: nothing is lost."
)


def command(main: Callable[[], None]) -> None:
    """Run a Hydra main so that bad input is one message and exit code 2, never a traceback."""
    keep_screens()
    register_schema()
    # then the user wants the traceback
    wanted = "HYDRA_FULL_ERROR" in os.environ
    # Hydra then raises instead of printing and exiting with 1
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        arguments, launched = split_command(expand(sys.argv[1:]))
        if VERSION in arguments:
            print(f"grposweep {__version__}")
            return
        if COMPLETION.isdisjoint(arguments):
            _refuse_slips(arguments)
        words = split_tokens(bracket_points(_as_text(word)) for word in arguments)
        tokens = [VERBOSE.get(word, word) for word in words] + launched
        _name_repeated(tokens)
        # argparse wants flags first
        sys.argv[1:] = sorted(_own_conf(_showing_base(tokens)), key=_is_override)
        _refuse_parts_of_hydra(sys.argv[1:])
        _refuse_missing_folder(sys.argv[1:])
        sys.argv[1:] = _with_options(sys.argv[1:])
        if COMPLETION.isdisjoint(sys.argv):
            check_groups(filter(_is_override, sys.argv[1:]), [CONF, *_folders(sys.argv[1:])])
        main()
    except LeaseLostError as error:
        say(f"stopped: {error}", sys.stderr)
        sys.exit(ExitCode.FAILED)
    except KeyboardInterrupt:
        say("interrupted", sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        text = "" if wanted else _explain(error)
        if not text:
            raise
        say(f"error: {text}", sys.stderr)
        sys.exit(ExitCode.BAD_INPUT)


def _explain(error: Exception) -> str:
    """Return the message for what the user can correct; empty for an error of the program."""
    if isinstance(error, OSError) and error.filename is not None and error.errno in DISK_ERRORS:
        # before the first trial: a disk without room, a limit on the size of files
        do = f"{DISK_ERRORS[error.errno]}, or set outputs=... to another disk."
        return f"{error.filename} cannot be used ({error.strerror}). {do}"
    if str(error) == NO_THREAD:
        return NO_THREAD_MESSAGE
    if str(error).startswith(NO_LIST):
        return f"{error}. Write its lines as - override /GROUP: OPTION."
    return message(error) if isinstance(error, EXPLAINED) else ""


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before ``--``, and the overrides that stand for the launch command
    behind it.
    """
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    before = arguments[:at]
    launch = arguments[at + 1 :]
    if not launch:
        raise UserError(
            "-- is the last word: your own launch command belongs behind it, such as -- bash "
            "launch.sh"
        )
    # one word is a whole command line, such as 'CUDA_VISIBLE_DEVICES=0 python train.py'
    line = launch[0] if len(launch) == 1 else shlex.join(launch)
    overrides = [f"trainer.command={override_text(line)}"]
    if "trainer" not in map(override_name, before):
        overrides.insert(0, "trainer=command")
    return before, overrides


def _refuse_slips(arguments: list[str]) -> None:
    """Raise UserError for words that are no overrides, with what they mean."""
    for at, word in enumerate(arguments):
        before = "".join(arguments[:at][-1:])
        after = "".join(arguments[at + 1 : at + 2])
        if word.startswith("--") and word.partition("=")[0] not in FLAGS:
            name, _, value = word[2:].partition("=")
            if not value and "=" not in after and not after.startswith("-"):
                value = after
            text = name.replace("-", "_") + "=" + (value or "...")
            problem = f"{word}: keys are written without dashes"
        # What is no ASCII has its own message.
        elif (
            word.startswith(("-", "~"))
            or "=" in word.strip("=")
            or not word.isascii()
            or before in VALUED
            or word.endswith("=")
        ):
            continue
        elif after.startswith("="):
            parts = arguments[at : at + 3] if after == "=" else arguments[at : at + 2]
            text = "".join(parts)
            problem = "an override has no spaces"
        elif before.endswith(("=", ",")):
            text = before + word
            problem = "an override has no spaces"
        elif word.endswith(".yaml"):
            text = f"sweeps={Path(word).stem}"
            problem = f"{word} is no override"
        else:
            raise UserError(
                f"{word} is no override (key=value). If your own launch command begins with it, "
                f"put -- in front of it: -- {shlex.join(arguments[at:])}"
            )
        raise UserError(f"{problem}. Write {text}.")


def _name_repeated(tokens: list[str]) -> None:
    """Say which overrides a later one of the same key replaces."""
    last = {override_name(token): token for token in filter(_is_override, tokens)}
    for token in filter(_is_override, tokens):
        kept = last[override_name(token)]
        if kept != token:
            say(f"{token} is replaced by {kept}: only the last value of a key counts", sys.stderr)


def _as_text(word: str) -> str:
    """Return an override with its value quoted if its key takes plain text, so that ``{output}``
    needs no quotes of Hydra's.
    """
    name, _, value = word.partition("=")
    is_plain = name.lstrip("+") in TEXTS and value not in ("", "null") and value[0] not in "'\""
    return f"{name}={override_text(value)}" if is_plain else word


def _own_conf(tokens: list[str]) -> list[str]:
    """Return the tokens with ``--config-dir DIR`` as Hydra's primary folder if DIR is a complete
    copy of conf/.

    Hydra itself searches such a folder after the package's own, so it would never read a copied
    option.
    """
    arguments: list[str] = []
    for token in tokens:
        folder = token
        is_value = bool(arguments) and arguments[-1] in CONFIG_DIR
        flag, _, value = token.partition("=")
        if flag in (CONFIG_DIR[0], CONFIG_NAME[0]) and value:
            arguments, folder, is_value = [*arguments, flag], value, flag in CONFIG_DIR
        if is_value and is_conf(Path(folder)):
            arguments[-1], folder = "--config-path", str(Path(folder).resolve())
        arguments.append(folder)
    return arguments


def _with_options(arguments: list[str]) -> list[str]:
    """Return the arguments with ``--config-name exported/best`` for best.yaml if its sections
    became options.
    """
    names = [at for at, word in enumerate(arguments) if at and arguments[at - 1] in CONFIG_NAME]
    for at in names:
        from grposweep.config.points import EXPORTED, register_sections

        stem = arguments[at].removeprefix(f"{EXPORTED}/")
        files = [folder / f"{stem}.yaml" for folder in _folders(arguments)]
        if any(file.is_file() and register_sections(file) for file in files):
            arguments = [*arguments[:at], f"{EXPORTED}/{stem}", *arguments[at + 1 :]]
    return arguments


def _refuse_missing_folder(arguments: list[str]) -> None:
    """Raise UserError if ``--config-dir`` names no folder."""
    for word, folder in pairwise(arguments):
        if word in CONFIG_DIR and not Path(folder).is_dir():
            raise UserError(
                f"{word} {folder}: there is no such folder in {Path.cwd()}. Name your copy of "
                f"conf/, or make one: grposweep init {shlex.quote(folder)}"
            )


def _folders(arguments: list[str]) -> list[Path]:
    """Return the folders that hold further options."""
    return [
        Path(value) for word, value in pairwise(arguments) if word in (*CONFIG_DIR, *CONFIG_PATH)
    ]


def _showing_base(tokens: list[str]) -> list[str]:
    """Return the tokens of ``-m --cfg job`` as a single run's: the base configuration, with the
    searched parameters printed.
    """
    flags = set(tokens)
    if flags.isdisjoint(MULTIRUN) or flags.isdisjoint(("--cfg", "-c", "--info")):
        return tokens
    overrides = list(filter(_is_override, tokens))
    _, fixed = parse_space(overrides, {})
    searched = [token for token in overrides if token not in fixed]
    for token in searched:
        say(f"# searched: {token}")
    return [token for token in tokens if token not in (*MULTIRUN, *searched)]


def _is_override(token: str) -> bool:
    return not token.startswith("-") and ("=" in token or token.startswith("~"))


# Parts of Hydra that grposweep replaces: their purpose, and what replaces them.
REPLACED = {
    "hydra/launcher": "Hydra's launchers wait for whole batches, so grposweep does not use them. "
    "Set cluster=local or cluster=slurm instead.",
    "hydra/sweeper": (
        "another sweeper would start trials without the rules and without a study. "
        "Set search=... instead."
    ),
    "hydra.sweep": "grposweep chooses the folders itself. Set outputs=... and name=... instead.",
    "hydra.run": "grposweep chooses the folders itself. Set outputs=... and name=... instead.",
}


def _refuse_parts_of_hydra(arguments: list[str]) -> None:
    """Raise UserError for an override of a part that would be ignored, or would replace
    grposweep.
    """
    for argument in arguments:
        name = override_name(argument)
        # Hydra takes any value
        if name in ("hydra.launcher", "hydra.sweeper"):
            name = name.replace(".", "/", 1)
        for part, why in REPLACED.items():
            is_part = name == part or name.startswith(f"{part}.")
            if is_part and argument.lstrip("+") != "hydra/sweeper=grposweep":
                raise UserError(f"{argument}: {why}")
