"""Files that others read while they are written: whole or not at all, and readable after any
crash.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from grporecipe.files import (
    append_line,
    parse_json,
    parse_yaml,
    read_json,
    read_lines,
    write_json,
    write_text,
)


class Interrupted(Exception):
    """The moment a writer dies."""


def test_a_written_file_replaces_the_old_one_and_leaves_no_other_file(tmp_path: Path) -> None:
    """One file before, one after; for every content, the last one counts."""
    path = tmp_path / "result file.txt"
    write_text(path, "old")
    write_text(path, "new ü\n")
    assert path.read_text(encoding="utf-8") == "new ü\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "error"), [("new", Interrupted), ("x" * 100_000 + "\ud800", UnicodeEncodeError)]
)
def test_a_writer_that_dies_before_the_rename_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception]
) -> None:
    """The disk fills up while syncing, or a lone surrogate fails half-way: the reader still sees
    the old text, and no scrap stays.
    """
    path = tmp_path / "result.json"
    write_text(path, "old")

    def full(_: int) -> None:
        raise Interrupted

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(error):
        write_text(path, text)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """A missing file is None."""
    path = tmp_path / "plan.json"
    write_json(path, {"steps": [1, 2]})
    assert read_json(path) == {"steps": [1, 2]}
    assert read_json(tmp_path / "absent.json") is None


def test_a_line_after_a_torn_tail_starts_on_a_line_of_its_own(tmp_path: Path) -> None:
    """The half line of a killed writer costs itself, not the next one."""
    path = tmp_path / "metrics.jsonl"
    append_line(path, {"step": 1})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "rew')
    append_line(path, {"step": 3})
    assert [line["step"] for line in read_lines(path)] == [1, 3]
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "damaged", ["", "null", "3", '["v", 1]', '{"st', "\x00\x00\x00", "not json"]
)
def test_a_line_that_is_no_object_is_skipped(tmp_path: Path, damaged: str) -> None:
    """Lines around a damaged one are read."""
    path = tmp_path / "attempts.jsonl"
    path.write_text(f'{{"step": 1}}\n{damaged}\n{{"step": 2}}\n')
    assert [line["step"] for line in read_lines(path)] == [1, 2]


def test_a_character_torn_in_two_does_not_hide_the_other_lines(tmp_path: Path) -> None:
    """Half of a UTF-8 sequence at the end is no reason to lose the file."""
    path = tmp_path / "attempts.jsonl"
    path.write_bytes(b'{"step": 1}\n{"text": "\xc3')
    assert [line["step"] for line in read_lines(path)] == [1]
    assert list(read_lines(tmp_path / "absent.jsonl")) == []


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85"])
def test_only_a_newline_ends_a_line(tmp_path: Path, odd: str) -> None:
    """JSON strings may hold these as they are, and other programs write them so."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"text": f"a{odd}b"}, ensure_ascii=False) + "\n", encoding="utf-8")
    append_line(path, {"text": f"c{odd}d"})
    assert [line["text"] for line in read_lines(path)] == [f"a{odd}b", f"c{odd}d"]


DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE = {
    "deep": DEEP,
    "deep objects": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "open": "[" * 100_000,
    "a bracket in a string": f'["{{", {DEEP}]',
    "a number of pages": "9" * 5_000,
    "no text": "\x00",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_one_error(name: str) -> None:
    """Every kind of damage raises the same error."""
    with pytest.raises(ValueError):
        parse_json(HOSTILE[name])
    with pytest.raises(ValueError):
        parse_json(HOSTILE[name].encode())


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "a: " + "{b: " * 5_000,
        "- " * 5_000 + "x",
        "&a [*a, *b",
        "2026-13-45",
        "{[a]: 1}",
        "? " * 5_000,
    ],
)
def test_hostile_yaml_is_one_error(text: str) -> None:
    """The C reader is not given what ends its process."""
    with pytest.raises(ValueError):
        parse_yaml(text)


def test_aliases_of_aliases_are_counted() -> None:
    """Forty lines that stand for 2**40 values."""
    text = "b0: &b0 [x, x]\n" + "".join(f"b{n + 1}: &b{n + 1} [*b{n}, *b{n}]\n" for n in range(40))
    with pytest.raises(ValueError, match="more than 1,000,000 values"):
        parse_yaml(text)


def test_what_is_written_is_within_the_limits() -> None:
    """A hundred levels, brackets in strings, and many of them side by side."""
    levels = "[" * 100 + "]" * 100
    assert parse_json(levels) == parse_yaml(levels)
    assert parse_json(json.dumps("[{" * 200)) == "[{" * 200
    assert len(parse_json("[" + "[]," * 200 + "[]]")) == 201
    assert parse_json('["a \\" [", "\\\\", [1]]') == ['a " [', "\\", [1]]


def test_a_lone_surrogate_can_be_printed() -> None:
    """JSON may escape half a character; a whole one stays."""
    parse_json('{"a": "\\ud800"}')["a"].encode()
    assert parse_json('"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


def make_large(path: Path) -> None:
    """A terabyte of nothing."""
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, make_large])
def test_what_is_no_file_of_ours_reads_as_nothing(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    """A folder, a pipe that would never end, a terabyte."""
    path = tmp_path / "result.json"
    make(path)
    assert read_json(path) is None
    assert list(read_lines(path)) == []
