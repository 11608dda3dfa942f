"""The language of docs, docstrings, comments and messages: standard words, and sentences that can
be read once.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from grposweep.report.trial_view import State
from support import PROJECT

pytestmark = pytest.mark.slow
# Words that a reader cannot look up, or that have a plain substitute (if, any, each, next to,
# correct, the user, continue, silently, still, forever, reported, requested).
BANNED = re.compile(
    r"\b(nobody|somebody|anybody|whoever|whatever|wherever|anew|census|overseer|mend(?:s|ed"
    r"|ing)?|beside|heed(?:s|ed)?|in vain|"
    r"becomes of|the desk|this dial|other dials|for good|on the spot|no more than that"
    r"|go(?:es)? on|going on|went on|"
    r"without a word|in silence|all the same|for ever|persons?|scars?|at hand|is said(?! to)|"
    r"(?:is|are|was|were) asked for|foretold)\b",
    re.IGNORECASE,
)
# "32 prompts a step", which reads as an article: write "per".
PER = re.compile(
    r"\b(prompts|completions|tokens|generations|steps|GiB|bytes|nats|rows|lines|processes|ranks"
    r"|evaluations) an? "
    r"(optimizer step|step|rollout|prompt|completion|rank|micro-step|micro-batch|trial|token"
    r"|line|node|row|parameter|second)\b"
)
# of a sentence
MOST_WORDS = 35
PACKAGE = PROJECT / "src" / "grposweep"
TESTS = [
    path for path in sorted((PROJECT / "tests").rglob("*.py")) if path.name != "test_language.py"
]
SOURCES = sorted((PROJECT / "src").rglob("*.py"))
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
OTHERS = [PROJECT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile")]
# scripts, templates, configurations and measurements
REST = [
    path
    for pattern in (
        "conf/**/*.yaml",
        "sweeps/*.yaml",
        "benchmarks/**/*.md",
        "benchmarks/**/*.py",
        "docs/*.py",
        "docs/*.yaml",
        "slurm/*",
        ".github/**/*.*",
        "src/**/*.j2",
    )
    for path in sorted(PROJECT.glob(pattern))
]
# the name of Unix's account without rights
ACCOUNT = re.compile(r'NOBODY|"nobody"')
# from text that is checked itself
GENERATED = (
    "commands.md",
    "configuration.md",
    "files.md",
    "python_api.md",
    "rules.md",
)
GLOSSARY = PROJECT / "docs" / "reference" / "glossary.md"
OWN_TERMS = (
    "attempt",
    "baseline",
    "controller",
    "finding",
    "fix",
    "guard",
    "invalid",
    "lease",
    "plan",
    "point",
    "promotion",
)


def sentences(text: str) -> Iterator[str]:
    """Split a text at full stops, colons and semicolons that end a word, at cells of tables, and at
    empty lines.
    """
    for part in re.split(r"(?<=[.:;!?])[)\"']*\s+|\n\s*\n|\s\|\s|\n\s*[-*|]", text):
        if part:
            yield " ".join(part.split())


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every docstring with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield getattr(node, "lineno", 1), text


def prose(page: Path) -> str:
    """Return a page without its code."""
    return re.sub(r"```.*?```|`[^`]*`", "x", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_a_word_that_a_reader_would_have_to_guess_is_not_used() -> None:
    """In code, comments, names of tests, messages and pages."""
    used = [
        f"{path.relative_to(PROJECT)}:{number}: {found[0]}"
        for path in (*SOURCES, *TESTS, *PAGES, *OTHERS, *REST)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := BANNED.search(line.replace("_", " ")) or PER.search(line))
        and not ACCOUNT.search(line)
    ]
    assert used == []


def test_what_users_read_says_invalid_and_stopped_early() -> None:
    """Not "pruned", which is Optuna's name of a state and the word on disk (in double
    backquotes).
    """
    used = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()[:60]}"
        for package in ("cli", "report", "rules", "linting")
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"(?<!``)\bprunes?d?\b(?! = )", line)
        and '"pruned"' not in line
        and "pruned_by_rule" not in line
    ]
    assert used == []


def test_sentences_of_docstrings_can_be_read_once() -> None:
    """At most 35 words."""
    long = [
        f"{path.relative_to(PROJECT)}:{line}: {sentence[:60]}"
        for path in SOURCES
        for line, text in docstrings(path)
        for sentence in sentences(text)
        if len(sentence.split()) > MOST_WORDS
    ]
    assert long == []


def test_sentences_of_the_pages_can_be_read_once() -> None:
    """At most 35 words, without code; the changelog, CONTRIBUTING and measurements as well."""
    long = [
        f"{page.relative_to(PROJECT)}: {sentence[:60]}"
        for page in (*PAGES, *OTHERS, *REST)
        if page.suffix == ".md" and page.name not in GENERATED and page.parent.name != "rules"
        for sentence in sentences(prose(page))
        if len(sentence.split()) > MOST_WORDS
    ]
    assert long == []


def test_the_glossary_defines_the_terms_that_pages_use() -> None:
    """Every state of a trial and every term of this project; no term that no page uses."""
    text = GLOSSARY.read_text(encoding="utf-8")
    defined = re.findall(r"^- \*\*([^*]+)\*\*", text, re.MULTILINE)
    pages = " ".join(prose(page) for page in PAGES if page != GLOSSARY).lower()
    labels = [State.PAUSED.label, State.PRUNED.label]
    assert [term for term in (*OWN_TERMS, *labels) if term not in defined] == []
    assert [term for term in defined if term.lower() not in pages] == []


def test_the_readme_is_short() -> None:
    """About eight kilobytes; the rest is in docs/."""
    assert len((PROJECT / "README.md").read_bytes()) < 8_500
