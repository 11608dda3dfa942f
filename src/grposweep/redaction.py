"""Secrets in text: blacked out where text is written down, refused where a configuration would carry them everywhere.

A configuration goes to config.yaml, job scripts, W&B and provenance, and is shared; what belongs in none of them stays in
the environment, which jobs and trainers inherit and nothing of ours writes down.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO, cast

from grposweep.errors import UserError

SHOWN = "***"
SHORTEST = 12  # characters of a secret whose only sign is its name

# What the services themselves hand out.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-(?=[\w-]*\d)[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|wandb_v1_\w{20,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})"
)
_NAME = r"[A-Z][A-Z0-9_]*_(?:TOKEN|SECRET|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS)|[A-Z0-9_]*(?:PASSWORD|PASSWD)[A-Z0-9_]*"
_SECRET_NAME = re.compile(_NAME)
# A name as environment variables have it, with a literal value; one that refers to another ($X, $(cat x)) says nothing.
_NAMED = re.compile(
    rf"(?<![A-Za-z0-9_])((?:{_NAME})[\"']?\s*[:=]\s*)"
    r"(?!(?i:null|none|true|false)\b|\*\*\*)(\"[^\"$`\n]{3,}\"|'[^'$`\n]{3,}'|[^\s\"'$`,;&)}\]]{3,})"
)
_URL = re.compile(r"(://[^/\s:@]+:)[^/\s@$]+(?=@)")  # ://user:password@host
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
# Keys that hold a secret, in a configuration's own spelling; TRL's hub_token among them, pad_token not.
_KEY = re.compile(rf"{_NAME}|(?:hub|hf|auth|access|push_to_hub)_token|(?:\w+_)?(?:api_?key|password|secret|secret_key)")


def redact(text: str) -> str:
    """Return the text with all that looks like a secret blacked out, and the values of this environment's secrets."""
    for value in secret_values(os.environ):
        text = text.replace(value, SHOWN)
    text = _NAMED.sub(rf"\g<1>{SHOWN}", text)
    return _PRIVATE.sub(SHOWN, _URL.sub(rf"\g<1>{SHOWN}", _TOKEN.sub(SHOWN, text)))


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of the variables that are named like secrets, the longest first."""
    found = {value for name, value in environment.items() if len(value) >= SHORTEST and _SECRET_NAME.fullmatch(name)}
    return tuple(sorted(found, key=len, reverse=True))


def refuse_secrets(content: Mapping[str, Any], where: str = "") -> None:
    """Raise UserError where a configuration holds a secret; ``where`` names a file that it is from."""
    for key, value in _leaves(content, ""):
        if _is_secret(key.rsplit(".", 1)[-1], value):
            raise UserError(
                f"{where}{key} holds what looks like a secret, and would be written into every trial's folder. Leave it out "
                "and set it in the environment of the shell that starts the sweep (jobs inherit it), or refer to a file: "
                "export HF_TOKEN=$(cat ~/.hf_token)."
            )


def _is_secret(name: str, value: str) -> bool:
    if redact(value) != value:
        return True
    return bool(_KEY.fullmatch(name)) and len(value) >= SHORTEST and not re.search(r"[$`]", value)


def _leaves(content: Any, key: str) -> Iterator[tuple[str, str]]:
    """Dotted keys and the strings below them."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _leaves(value, key)
    elif isinstance(content, str):
        yield key, content


class _Guarded:
    """A text stream that blacks out what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redact(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output() -> None:
    """From now on what Python writes to standard output and errors, which are logs, holds no secret of the environment."""
    if not isinstance(sys.stdout, _Guarded):
        sys.stdout, sys.stderr = cast(TextIO, _Guarded(sys.stdout)), cast(TextIO, _Guarded(sys.stderr))
