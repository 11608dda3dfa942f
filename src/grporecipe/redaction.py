"""Find secrets in text and in configurations, by the names that they have and by the forms that
services give them.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

SHOWN = "***"
# levels of a value that are looked at; an alias of YAML may hold itself
DEEPEST = 20
# Values that a log has anyway: shorter ones are hidden only next to their name. With letters and
# digits, eight are enough.
SHORTEST, SHORTEST_MIXED = 12, 8

# Words that make a name that of a secret, two of them side by side, and words that make it another
# thing: a path, a number.
_SECRET = (
    r"(?:^|_)(?:PASSPHRASE|SECRETS?|CREDENTIALS|APIKEY|[A-Z0-9]*PASSW(?:OR)?D"
    r"|(?:API|ACCESS|PRIVATE|SECRET)_KEY|(?:HUB|HF|AUTH|ACCESS)_TOKEN)(?:_|$)"
)
_OTHER = (
    r"PATH|FILE|DIR|URL|URI|NAME|ID|IDS|TYPE|COUNT|NUM|LEN|LENGTH|MAX|MIN|LIMIT|BUDGET|LEVEL"
    r"|PER|TTL|TIMEOUT|PUBLIC"
)
# Tokens that a model reads, and keys of a data row.
_OF_A_MODEL = (
    r"PAD|EOS|BOS|UNK|MASK|SEP|CLS|STOP|START|END|IMAGE|VIDEO|AUDIO|SPECIAL|NEW|THINK|TOOL"
    r"|PROMPT|INPUT|OUTPUT|LABEL|REWARD|RESPONSE|ANSWER|QUESTION|SOLUTION|COLUMN|CACHE|SORT"
    r"|GROUP|PRIMARY|FOREIGN|METRIC|INDEX|DATA|TEMPLATE|CHAT|TEXT"
)
# Ends of an environment variable.
_ENDS = ("_PASS", "_PWD", "_AUTH", "_LICENSE", "_WEBHOOK", "COOKIE", "COOKIES")
# OpenRLHF's --use_wandb takes the key
_WANDB = "USE_WANDB"
_NO_SECRETS = frozenset(["null", "none", "true", "false", "str", "bytes", SHOWN])


# the environment is searched for each text, and the names in it repeat
@lru_cache(4096)
def _kind(name: str) -> str:
    """Return ``sure`` for a name that only secrets have, ``likely`` if the value decides, otherwise
    an empty text.
    """
    own = name.rpartition(".")[2]
    words = re.findall(r"[A-Z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper())
    if any(re.fullmatch(_OTHER, word) for word in words):
        return ""
    if re.search(_SECRET, "_".join(words)):
        return "sure"
    if any(re.fullmatch(_OF_A_MODEL, word) for word in words):
        return ""
    if own.isupper() and ("TOKEN" in words or own.endswith(_ENDS)):
        return "sure"
    has_one = "TOKEN" in words or not {"KEY", "PAT"}.isdisjoint(words[1:])
    if has_one or "_".join(words[-2:]) == _WANDB:
        return "likely"
    return ""


def is_secret(name: str, value: str) -> bool:
    """Return whether a value with this name is a secret. A reference to one ($X, $(cat x)) and code
    are none.
    """
    kind = _kind(name)
    if not kind or value.lower() in _NO_SECRETS or re.search(r"[$`]", value):
        return False
    is_variable = name.rpartition(".")[2].isupper()
    if kind == "sure" and is_variable:
        return len(value) >= 3
    if kind == "sure":
        return len(value) >= 4 and not re.search(r"[(\[{<]", value)
    if not re.fullmatch(r"[\w+/=.~:-]{8,}", value):
        return False
    return is_variable or (len(value) >= SHORTEST and _is_mixed(value))


def _is_mixed(value: str) -> bool:
    """Return whether a value has letters and digits."""
    return re.search(r"[A-Za-z]", value) is not None and re.search(r"\d", value) is not None


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables whose names denote secrets, also as a URL quotes them, the
    longest first.
    """
    secrets: set[str] = set()
    for name in environment:
        if _kind(name.upper()):
            value = environment.get(name, "")
            is_long = len(value) >= SHORTEST or (len(value) >= SHORTEST_MIXED and _is_mixed(value))
            if is_long and is_secret(name.upper(), value.replace("$", "")):
                secrets |= {value, quote(value, safe="")}
    return tuple(sorted(secrets, key=len, reverse=True))


def secrets_in(key: str, value: Any) -> Iterator[str]:
    """Yield the secrets in the value of a key, which may be a mapping or a list. An alias of YAML
    may hold itself.
    """
    waiting = [(key, value)]
    seen = set[int]()
    while waiting:
        name, inner = waiting.pop()
        if isinstance(inner, str) and is_secret(name, inner):
            yield inner
        if not isinstance(inner, Mapping | list | tuple) or id(inner) in seen:
            continue
        seen.add(id(inner))
        if isinstance(inner, Mapping):
            waiting += [(str(key), item) for key, item in inner.items()]
        else:
            waiting += [(name, item) for item in inner]


def masked(key: str, value: Any, depth: int = 0) -> Any:
    """Return the value of a key with ``***`` in the place of secrets, and of what is nested too
    deep.
    """
    if depth > DEEPEST:
        return SHOWN
    if isinstance(value, Mapping):
        return {name: masked(str(name), inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked(key, inner, depth + 1) for inner in value)
    if not isinstance(value, str):
        return value
    if is_secret(key, value):
        return SHOWN
    return redact(value)


# Tokens that the services issue.
_TOKEN = (
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-(?=[\w-]*\d)[\w-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|wandb_v1_\w{20,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})"
)
# ://user:password@host
_URL = r"(://[^/\s:@]+:)[^/\s@$]+(?=@)"
_WEBHOOK = (
    r"(https://(?:hooks\.slack\.com/\w+|discord(?:app)?\.com/api/webhooks"
    r"|[\w.-]+\.webhook\.office\.com|chat\.googleapis\.com/v1/spaces)/)"
    r"[\w/@.?=&%-]+"
)
_HEADER = (
    r"((?i:\bbearer)\s+|(?i:\bauthorization)[\"']?\s*[:=]\s*[\"']?(?i:basic"
    r"|token)\s+)[\w.~+/=:-]{8,}"
)
# Up to the end of the key, or to where it was cut off: lines of base64, prefixed with a sign in a
# diff.
_PRIVATE = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]{0,20000}?-----END [A-Z ]*PRIVATE KEY-----"
    r"|(?:\s*[-+ ]?[\w+/=]{16,})*)"
)
# NAME=value, "name": "value", --name value
_HINT = r"(?i)key|token|secret|pass|pwd|pat|credentials|use_wandb|auth|cookie|license|webhook"
_NAME = (
    r"(?<![\w.-])(?:--([A-Za-z][\w.-]{0,80})[ \t]+(?!-)"
    r"|-{0,2}\+{0,2}([A-Za-z_][\w.-]{0,80})[\"']?[ \t]*[:=][ \t]*)"
)
_VALUE = re.compile(r"\"([^\"$`\n]{3,})\"|'([^'$`\n]{3,})'|([^\s\"'$`,;&)}\]]{3,})")


def redact(text: str) -> str:
    """Return the text with everything redacted that looks like a secret or is a secret in this
    environment.
    """
    text = re.sub(_PRIVATE, SHOWN, text)
    for value in secret_values(os.environ):
        text = text.replace(value, SHOWN)
    for behind in (_HEADER, _URL, _WEBHOOK):
        text = re.sub(behind, rf"\g<1>{SHOWN}", text)
    if re.search(_HINT, text):
        text = _redact_named(text)
    return re.sub(_TOKEN, SHOWN, text)


def _redact_named(text: str) -> str:
    """Return the text with the values redacted that stand behind the name of a secret."""
    parts = []
    end = 0
    for match in re.finditer(_NAME, text):
        value = _VALUE.match(text, match.end())
        if match.start() < end or value is None:
            continue
        secret = value[value.lastindex or 0]
        if is_secret(match[1] or match[2], secret):
            parts += [text[end : value.start()], value[0].replace(secret, SHOWN)]
            end = value.end()
    return "".join([*parts, text[end:]])
