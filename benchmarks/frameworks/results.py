"""RESULTS.md, a section a framework: each program here rewrites its own."""

import re
from pathlib import Path

PATH = Path(__file__).resolve().parent / "RESULTS.md"
HEAD = """# Compared with the frameworks themselves

What rules, plans and launches of `grposweep` are compared with the real code of each framework, installed in an environment of
its own; each section is written by the command that it names.
"""


def write_section(title: str, body: str) -> None:
    """Put a section in the place of the one of its title, or at the end."""
    text = PATH.read_text(encoding="utf-8") if PATH.exists() else HEAD
    section = f"## {title}\n\n{body.strip()}\n"
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    text = (
        text[: found.start()] + section + "\n" + text[found.end() :]
        if found
        else f"{text.rstrip()}\n\n{section}"
    )
    PATH.write_text(text.rstrip() + "\n", encoding="utf-8")
