"""Texts that were right once: strategies that damage them, and how often a property is tried."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# always the same examples; `make fuzz` tries others, and many times as many
MANY = int(os.environ.get("GRPOSWEEP_FUZZ_EXAMPLES", "100"))
EACH = timedelta(seconds=2)

SCRAPS = [
    "",
    "\n",
    "\x00",
    "\ufeff",
    "\u2028",
    "\\\n",
    "'",
    '"',
    "`",
    "$(",
    "$((",
    "${A:-",
    "${",
    "}",
    "$A$A",
    "A=$A$A\n",
    "<<EOF\n",
    "&a ",
    "*a",
    "<<: *a\n",
    "[" * 50,
    "{" * 50,
    "]",
    "? ",
    "!!python/object:os.system ",
    "!!binary x",
    "1e999",
    ".nan",
    "-.inf",
    "2026-13-45",
    "9" * 5000,
    "NaN",
    "Infinity",
    "null",
    "true",
    "- ",
    "\t",
    ": ",
    "#",
    "%YAML 9\n",
    "---\n",
    "...\n",
    "é",
    "\ud800",
    "a" * 5000,
    "|",
    "-1",
    "0",
    "1:2:3",
    "[1, [2]]",
    '{"a": {}}',
    "; rm -rf /tmp/x",
    "\x1b[31m",
    "\r",
    ",",
    "=",
    "(",
    ")",
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn, *seeds: str) -> str:
    """One of the seeds after a few cuts and insertions."""
    text = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 12) | st.integers(0, 400))
        text = text[:at] + draw(st.sampled_from(SCRAPS) | st.text(max_size=6)) + text[at + cut :]
    return text


@st.composite
def changed_object(draw: st.DrawFn, seed: dict[str, Any]) -> str:
    """One JSON object with a few other values, or without some of them."""
    content = dict(seed)
    for key in draw(st.lists(st.sampled_from(sorted(seed)), min_size=1, max_size=3, unique=True)):
        content[key] = draw(json_values)
        if draw(st.booleans()) and draw(st.booleans()):
            del content[key]
    return json.dumps(content)


def lines(*objects: dict[str, Any]) -> st.SearchStrategy[str]:
    """Files of JSON lines whose objects are changed, and whose text is damaged."""
    rows = st.lists(
        st.one_of(
            *(changed_object(row) for row in objects),
            st.sampled_from(list(map(json.dumps, objects))),
        ),
        max_size=5,
    )
    text = rows.map(lambda found: "".join(row + "\n" for row in found))
    return text | damaged("".join(json.dumps(row) + "\n" for row in objects))


def object_file(seed: dict[str, Any]) -> st.SearchStrategy[str]:
    """A file of one JSON object."""
    return changed_object(seed) | damaged(json.dumps(seed)) | json_values.map(json.dumps)


def try_all(
    check: Callable[[str], object], strategy: st.SearchStrategy[str], examples: int = MANY
) -> None:
    """Run a check on many texts, each within two seconds."""
    few = examples < 1000
    wanted = settings(
        max_examples=examples,
        deadline=None if few else EACH,
        derandomize=few,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    wanted(given(strategy)(check))()
