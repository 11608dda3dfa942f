"""``--format github|sarif`` and ``--diff``."""

import json
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import UserError
from grposweep.cli._recipes import LintFormat, lint
from support import Write, unwrap

BAD = "num_generations: 7\nper_device_train_batch_size: 8\n"
OLD = "torch_dtype: auto  # type\nnum_generations: 8\n"


def output(*files: Path, **options: Any) -> tuple[int, str]:
    """Exit code and stdout."""
    with redirect_stdout(StringIO()) as out:
        code = lint(list(files), processes=8, **options)
    return code or 0, out.getvalue()


def test_github_gets_an_annotation_a_problem(
    recipe: Write, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File from the working directory, line, rule; what would end a property is escaped."""
    monkeypatch.chdir(here)
    code, out = output(
        recipe(start=BAD, name="a,b:c.yaml"), select=["GB101"], format=LintFormat.github
    )
    (line,) = out.splitlines()
    assert code == 1
    assert line.startswith(
        "::error title=grposweep (GB101),file=a%2Cb%3Ac.yaml,line=1::a,b:c.yaml:1: GB101 "
        "num_generations=7"
    )
    assert "Fix: " in line


def test_a_note_is_one_line_and_neither_a_warning_nor_a_failure(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what was not checked: in GitHub's words a notice."""
    monkeypatch.chdir(here)
    path = here / "run.sh"
    path.write_text(
        "accelerate launch -m trl.scripts.grpo --model_name_or_path m --num_generations $N\n"
    )
    code, out = output(path, format=LintFormat.github, select=["GV106"])
    assert (code, out.startswith("::notice title=grposweep (GV106),file=run.sh,line=1::")) == (
        0,
        True,
    )
    code, out = output(path, select=["GV106"])
    assert (code, "0 errors, 0 warnings, 1 note" in out) == (0, True)
    assert f"{path}:1: GV106 note: num_generations: $N" in unwrap(out)


def test_the_place_of_a_note_is_on_one_line(here: Path) -> None:
    """As an editor reads it, however long the name of the file is and with blanks in it."""
    path = here / "a rather long name of a folder" / "experiments of november" / "run.sh"
    path.parent.mkdir(parents=True)
    path.write_text("accelerate launch -m trl.scripts.grpo --num_generations $N\n")
    _, out = output(path, select=["GV106"])
    (line,) = (line for line in out.splitlines() if "GV106" in line)
    assert line.startswith(f"{path}:1: GV106 note: ")


def test_github_gets_an_annotation_for_a_file_that_cannot_be_judged(here: Path) -> None:
    """Exit code 2."""
    code, out = output(here / "missing.yaml", format=LintFormat.github)
    assert code == 2
    assert out.startswith("::error title=grposweep (not judged),file=")


def test_sarif_has_what_its_schema_requires(recipe: Write, here: Path) -> None:
    """SARIF 2.1.0: version and runs; tool.driver.name; message, and a rule at ruleIndex; an
    invocation that says how it ended.
    """
    code, out = output(
        recipe(start=BAD, name="ü b.yaml"), here / "missing.yaml", format=LintFormat.sarif
    )
    log = json.loads(out)
    assert code == 2
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    (invocation,) = run["invocations"]
    assert driver["name"] == "grposweep"
    assert invocation["executionSuccessful"] is False
    assert "No such file" in invocation["toolExecutionNotifications"][0]["message"]["text"]
    assert all(
        set(rule) >= {"id", "shortDescription", "fullDescription"} for rule in driver["rules"]
    )
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        assert isinstance(result["message"]["text"], str)
        (place,) = (where["physicalLocation"] for where in result["locations"])
        assert place["artifactLocation"]["uri"].endswith("/%C3%BC%20b.yaml")
        assert place.get("region", {"startLine": 1})["startLine"] >= 1
    assert "GB101" in {result["ruleId"] for result in run["results"]}


def test_sarif_of_clean_files_is_a_log_too(recipe: Write) -> None:
    """With no results."""
    code, out = output(recipe(), format=LintFormat.sarif)
    assert (code, json.loads(out)["runs"][0]["results"]) == (0, [])


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_diff_is_what_fix_would_write(end: str, here: Path) -> None:
    """Nothing is written, exit code 1; patch makes the same file of it as --fix."""
    path = here / "r.yaml"
    other = here / "s.yaml"
    text = OLD.replace("\n", "\r\n") if end == "\r\n" else OLD.removesuffix("\n") + end
    for file in (path, other):
        file.write_bytes(text.encode())
    code, diff = output(path, select=["GV101"], diff=True, framework_version="1.16")
    assert code == 1
    assert path.read_bytes() == text.encode()
    output(other, select=["GV101"], fix=True, framework_version="1.16")
    patch = diff.replace(str(path), "r.yaml").encode()
    subprocess.run(["git", "apply", "-p0", "-"], input=patch, cwd=here, check=True)
    assert path.read_bytes() == other.read_bytes() != text.encode()


def test_a_diff_of_nothing_to_fix_is_clean(recipe: Write) -> None:
    """Exit code 0 as ruff's, though there is a problem that has an unsafe fix only; --unsafe-fixes
    shows it.
    """
    path = recipe(start=BAD)
    assert output(path, select=["GB101"], diff=True) == (0, "")
    code, out = output(path, select=["GB101"], diff=True, unsafe_fixes=True)
    assert code == 1
    assert "\n-num_generations: 7\n+num_generations: 8\n" in out or "\n+" in out


@pytest.mark.parametrize(
    "options", [{"diff": True, "fix": True}, {"diff": True, "format": LintFormat.json}]
)
def test_options_that_contradict_each_other_are_bad_input(
    options: dict[str, Any], recipe: Write
) -> None:
    """One message."""
    with pytest.raises(UserError):
        lint([recipe()], **options)
