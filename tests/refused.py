"""Tables of what is refused, a row a line: what is set, words of the message, and maybe a neighbour
that is accepted.
"""

import re
from pathlib import Path

Rows = list[tuple[str, ...]]


def read_rows(path: Path) -> dict[str, Rows]:
    """Return the rows of each section of a table. ``$NAME`` stands for what a line of the table
    says that it is.
    """
    meanings: dict[str, str] = {}
    sections: dict[str, Rows] = {}

    def written_out(text: str) -> str:
        return re.sub(r"\$[A-Z]+", lambda name: meanings[name[0]], text)

    for line in path.read_text().splitlines():
        if line.startswith("$") and " = " in line:
            name, _, meaning = line.partition(" = ")
            meanings[name] = written_out(meaning)
        elif line.startswith("["):
            rows = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            rows.append(tuple(written_out(line).split(" | ")))
    return sections


def says(words: str) -> str:
    """Return the pattern of a message in which these words stand in this order, with any text at "
    ... ".
    """
    return ".*".join(map(re.escape, words.split(" ... ")))
