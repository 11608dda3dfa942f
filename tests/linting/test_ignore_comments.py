"""``# grposweep: ignore[GB101]``: comments in YAML and shell scripts that switch rules off."""

from pathlib import Path

import pytest

from grporecipe.linting.apply_fixes import fix_file
from grporecipe.linting.linter import JudgedText, judge_text, select_rules
from grporecipe.reading.load import Options
from grposweep.cli._recipes import lint
from support import Write

SIZES = "num_generations: 7{}\nper_device_train_batch_size: 8{}\n"
COMMAND = (
    "{}accelerate launch --num_processes 8 grpo.py \\\n  --num_generations 7 \\\n  "
    "--per_device_train_batch_size 8{}\n"
)


def judge(text: str, name: str = "r.yaml") -> JudgedText:
    """The text as a file's."""
    return judge_text(Path(name), text, Options(processes=8), select_rules(["GB", "GV"]))


def codes(text: str, name: str = "r.yaml") -> list[str]:
    """The problems that are left."""
    return [found.code for result in judge(text, name).results for found in result.diagnostics]


@pytest.mark.parametrize(
    "comment",
    ["ignore[GB101]", "ignore[GV101, gb101]", "ignore[GB]", "ignore", "ignore-file[GB101]"],
)
def test_a_comment_switches_a_rule_off(comment: str) -> None:
    """On the line of any key that the problem blames, by code, family or all; a comment for the
    file anywhere.
    """
    assert codes(SIZES.format("", "")) == ["GB101"]
    assert codes(SIZES.format(f"  # grposweep: {comment}", "")) == []
    assert codes(SIZES.format("", f"  # why # grposweep: {comment}")) == []
    assert codes(f"# grposweep: {comment} because\n# more\n" + SIZES.format("", "")) == []


@pytest.mark.parametrize("comment", ["ignore[GB102]", "ignored", "ignore-files[GB101]", "ignore[]"])
def test_another_comment_does_not(comment: str) -> None:
    """Another code, other words, no code at all."""
    assert codes(SIZES.format(f"  # grposweep: {comment}", "")) == ["GB101"]


def test_a_comment_counts_for_its_own_line_and_the_next_only() -> None:
    """A trailing comment does not reach the next line; nor does one that a blank line sets
    apart.
    """
    assert codes("seed: 1  # grposweep: ignore\n" + SIZES.format("", "")) == ["GB101"]
    assert codes("# grposweep: ignore\n\n" + SIZES.format("", "")) == ["GB101"]
    assert codes("# grposweep: ignore\nseed: 1\n" + SIZES.format("", "")) == ["GB101"]


@pytest.mark.parametrize(
    "text",
    [
        COMMAND.format("# grposweep: ignore[GB101]\n", ""),
        COMMAND.format("", "  # grposweep: ignore[GB101]"),
    ],
)
def test_in_a_script_a_comment_counts_for_the_whole_command(text: str) -> None:
    """Bash allows no comment between the lines of a command."""
    assert codes(COMMAND.format("", ""), "run.sh") == ["GB101"]
    assert codes(text, "run.sh") == []


def test_what_comments_do_is_reported(recipe: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """How many problems they hide, and codes that no rule has."""
    path = recipe(
        "beta: 0.0  # grposweep: ignore[GB]\nseed: 1  # grposweep: ignore[GB999]\n",
        start=SIZES.format("  # grposweep: ignore[GB101]", ""),
    )
    assert lint([path], processes=8, select=["GB"]) == 0
    said = capsys.readouterr()
    assert "1 ignored by comments" in said.out
    assert said.err == (
        f"warning: {path}:4: no rule or family is called GB999, so this comment ignores nothing\n"
    )


def test_a_problem_that_is_ignored_is_not_fixed(tmp_path: Path) -> None:
    """Though its fix is safe; the one without a comment is."""
    path = tmp_path / "r.yaml"
    path.write_text(
        "torch_dtype: auto  # grposweep: ignore[GV101]\nnum_generations: "
        "8\nevaluation_strategy: 'no'\n"
    )
    assert (
        len(
            fix_file(
                path,
                Options("trl", processes=8, own_version="1.16"),
                select_rules(["GV101"]),
                unsafe=False,
            ).changes
        )
        == 1
    )
    assert path.read_text().startswith(
        "torch_dtype: auto  # grposweep: ignore[GV101]\nnum_generations: 8\neval_strategy"
    )
