"""Text from files of others never steers the terminal, and is shown as it is: not as markup, links
or emoji.
"""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from grporecipe.files import write_json
from grposweep.cli import build_app
from made import Made, make_sweep
from support import Terminal, write_lines

HOSTILE = "\x1b]0;own\x07\x1b[2J\x9b31m\u202e[red]x[bold]:bomb:"
STEERING = ("\x1b]0;", "\x07", "\x1b[2J", "\x9b", "\u202e")
RECIPE = {
    "model_name_or_path": f"m{HOSTILE}",
    "num_generations": 7,
    f"k{HOSTILE}": HOSTILE,
    "learning_rate": HOSTILE,
}


def hostile(value: Any) -> Any:
    """A JSON value with the text behind each of its strings, keys apart."""
    if isinstance(value, dict):
        return {key: hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return value + HOSTILE if isinstance(value, str) else value


def change(path: Path, **kept: Any) -> None:
    """Make all values of a JSON file, or of its lines, hostile but those that are kept."""
    text = path.read_text()
    rows = [text] if text.startswith("{\n") else text.splitlines()
    loaded = [json.loads(row) for row in rows]
    path.write_text(
        "\n".join(
            json.dumps({**hostile(row), **{k: row[k] for k in kept if k in row}}) for row in loaded
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sweeps, the second with a hostile name; hostile recipes and logs."""
    here = tmp_path_factory.mktemp("hostile")
    parameters = {"batch": ["small", HOSTILE], f"b.{HOSTILE}": [HOSTILE, "v"]}
    for name in ("s", f"t{HOSTILE}"):
        made = Made(
            trials=10,
            running=2,
            queued=1,
            parameters=parameters,
            message=HOSTILE,
            settings={"overrides": [HOSTILE]},
        )
        sweep = make_sweep(here / "outputs" / name, made)
        change(sweep / "invalid.jsonl")
        for trial in (sweep / "trials").iterdir():
            (trial / "logs").mkdir()
            (trial / "logs" / "rank-0.log").write_text(HOSTILE)
            packages = {"git_sha": HOSTILE, "packages": {HOSTILE: HOSTILE}}
            write_json(trial / "provenance.json", packages)
            change(trial / "attempts.jsonl", event=True)
            if (trial / "result.json").exists():
                change(trial / "result.json", status=True)
    (here / f"recipe{HOSTILE}.yaml").write_text(yaml.safe_dump(RECIPE))
    (here / "log.txt").write_text(
        f"{{'loss': 0.0, 'reward': 0.1}}{HOSTILE}\nTraceback (most recent call "
        f"last):\nValueError: {HOSTILE}\n"
    )
    write_lines(
        here / "log.jsonl", ({"step": n, "reward": 0.1, HOSTILE: HOSTILE} for n in range(9))
    )
    return here


@pytest.fixture
def shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``shown("status", "s")``: all that a command writes to a terminal."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def give(*words: str) -> str:
        out = Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", out)
        with pytest.raises((SystemExit, typer.Exit)):
            build_app()(list(words), prog_name="grposweep")
        return out.getvalue()

    return give


COMMANDS = {
    "status": ("status", "s"),
    "status of a hostile name": ("status", f"t{HOSTILE}"),
    "status of no sweep": ("status", HOSTILE),
    "show": ("show", "s", "0"),
    "show a failure": ("show", "s", "5"),
    "show no trial": ("show", "s", HOSTILE),
    "list": ("list",),
    "export": ("export", "s"),
    "compare": ("compare", "s", f"t{HOSTILE}"),
    "best": ("best", "s"),
    "best as a command": ("best", "s", "--as", "command"),
    "best as a recipe": ("best", "s", "--as", "trl"),
    "cancel": ("cancel", f"t{HOSTILE}"),
    "retry": ("retry", "s", HOSTILE),
    "rerun": ("rerun", f"t{HOSTILE}", "0"),
    "rerun of no trial": ("rerun", f"t{HOSTILE}", HOSTILE),
    "rerun with a hostile key": ("rerun", "s", "0", f"{HOSTILE}=1"),
    "continue": ("continue", "s", "0", f"{HOSTILE}=1", "--from", "1"),
    "continue no trial": ("continue", f"t{HOSTILE}", HOSTILE, "lr=1", "--from", "1"),
    "sync": ("sync", f"t{HOSTILE}"),
    "diagnose": ("diagnose", "log.txt"),
    "diagnose lines": ("diagnose", "log.jsonl"),
    "lint": ("lint", f"recipe{HOSTILE}.yaml"),
    "plan": ("plan", f"recipe{HOSTILE}.yaml"),
    "fit": ("fit", f"recipe{HOSTILE}.yaml"),
    "space": ("space", "-m", f"lr={HOSTILE}"),
}


# rerun trains, with the fake trainer
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "rerun" else name for name in COMMANDS],
)
def test_a_command_shows_no_control_character_of_a_file(
    shown: Callable[..., str], name: str
) -> None:
    """Its own colours stay."""
    text = shown(*COMMANDS[name])
    assert text
    assert {sign for sign in STEERING if sign in text} == set()


def test_markup_and_emoji_of_files_are_shown_as_they_are(shown: Callable[..., str]) -> None:
    """A label such as [red] is a label."""
    assert "[red]x[bold]:bomb:" in shown("show", "s", "5").replace("\n", "")


def test_what_is_piped_is_exact(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs read it."""
    monkeypatch.chdir(folder)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(SystemExit):
        build_app()(["export", "s"], prog_name="grposweep")
    assert HOSTILE in out.getvalue()
