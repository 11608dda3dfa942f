"""The report's text, without a browser: complete, in one file, and with everything from outside
escaped.
"""

import html
import json
import re
from pathlib import Path

import pytest
import yaml

from grporecipe.errors import UserError
from grposweep.report.export import write_winner
from grposweep.report.html_page import render_report, script_json, write_report
from grposweep.report.view import SweepView, read_sweep
from made import Made, make_comparison, make_sweep

from .conftest import Commands, write_sweep

HOSTILE = "</script><script>alert(1)</script><!-- \"'&"


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> SweepView:
    """Twenty trials, the three best on three more seeds each."""
    return read_sweep(
        make_sweep(tmp_path_factory.mktemp("page") / "s", Made(trials=20, replicates=3))
    )


def test_the_command_writes_one_file_into_the_sweeps_folder(commands: Commands) -> None:
    """And says where; with everything that has a section."""
    write_sweep(trials=20)
    ended = commands("report")
    assert ended.code == 0
    text = Path("outputs/s/report.html").read_text()
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert [name for name in headings if name[0].isupper() and name != "GPU hours"] == [
        "What to use",
        "Leaderboard",
        "Learning curves",
        "What the parameters do",
        "Invalid points",
        "Trials stopped early",
        "Failures",
        "Cost",
        "Provenance",
    ]


@pytest.mark.slow
def test_the_pages_of_a_folder_share_one_plotly(commands: Commands) -> None:
    """A page elsewhere has its own in its folder, and with --offline it is one file."""
    for name in ("a", "b"):
        make_sweep(Path("outputs") / name, Made(trials=2))
        commands("report", name)
        assert Path("outputs", name, "report.html").stat().st_size < 200_000
    (shared,) = Path("outputs").glob("plotly-*.min.js")
    assert f'src="../{shared.name}"' in Path("outputs/a/report.html").read_text()
    commands("report", "a", "--output", "r.html")
    assert f'src="{shared.name}"' in Path("r.html").read_text()
    assert Path(shared.name).read_bytes() == shared.read_bytes()
    commands("report", "a", "--offline", "--output", "alone.html")
    assert shared.read_text() in Path("alone.html").read_text()
    shared.unlink()
    shared.mkdir()
    refused = commands("report", "a")
    assert (refused.code, shared.name in refused.err, "Add --offline" in refused.err) == (
        2,
        True,
        True,
    )


@pytest.mark.slow
def test_a_foreign_plotly_of_the_same_size_is_replaced(commands: Commands) -> None:
    """The page that is made next to it would run it."""
    write_sweep(trials=2)
    commands("report")
    (shared,) = Path("outputs").glob("plotly-*.min.js")
    own = shared.read_bytes()
    shared.write_bytes(b"x" * len(own))
    commands("report")
    assert shared.read_bytes() == own


def test_a_report_that_cannot_be_written_is_one_message(commands: Commands) -> None:
    """Another user's sweep is read-only."""
    write_sweep(trials=2)
    ended = commands("report", "--output", "/proc/nowhere/r.html")
    assert ended.code == 2
    assert "--output" in ended.err


@pytest.mark.slow
def test_the_file_names_no_place_in_a_network(view: SweepView) -> None:
    """No element loads anything; the policy in its head forbids it as well."""
    text = render_report(view)
    ours = re.sub(r"<script nonce=.*?</script>", "", text, flags=re.S)
    assert re.findall(r"(?:src|href)=[\"'](?!#)", ours) == []
    assert "default-src 'none'" in ours


def test_each_change_of_one_factor_is_a_row_of_the_page(tmp_path: Path) -> None:
    """With the parameter's name, its value and the verdict."""
    text = render_report(read_sweep(make_comparison(tmp_path / "s", [{"lr": 1e-5}, {"kl": "low"}])))
    rows = re.search("<h2>What each change does</h2>.*?</section>", text, flags=re.S)
    assert rows is not None
    assert re.findall("</td><td>(lr|kl)</td><td>(.*?)</td>", rows[0]) == [
        ("lr", "1e-05"),
        ("kl", "low"),
    ]


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    """Names of sweeps and parameters, labels, messages, overrides."""
    made = Made(
        trials=20,
        parameters={HOSTILE: [HOSTILE, "b"]},
        message=HOSTILE,
        metric=HOSTILE,
        settings={"overrides": [HOSTILE]},
    )
    text = render_report(read_sweep(make_sweep(tmp_path / "<b>s", made)))
    assert "<script>alert" not in text
    assert "<b>s" not in text
    assert text.count("</script>") == 3


@pytest.mark.slow
def test_the_page_holds_the_files_that_its_commands_write(tmp_path: Path) -> None:
    """The winner's configuration and TRL recipe as ``grposweep best`` writes them, escaped."""
    sweep = make_sweep(tmp_path / "s", Made(trials=3))
    for config in sweep.glob("trials/*/config.yaml"):
        content = yaml.safe_load(config.read_text())
        content["model"]["path"] = content["tracker"]["project"] = HOSTILE
        config.write_text(yaml.safe_dump(content))
    view = read_sweep(sweep)
    assert view.best is not None
    hidden = re.findall("<pre hidden>(.*?)</pre>", text := render_report(view), flags=re.S)
    assert len(hidden) == 2
    for held, form in zip(hidden, ("hydra", "trl"), strict=True):
        assert "<" not in held
        assert html.unescape(held).endswith(write_winner(view, view.best, form, Path("best.yaml")))
    assert HOSTILE in yaml.safe_load(html.unescape(hidden[1]))["model_name_or_path"]
    assert text.count("</script>") == 3


def test_json_cannot_end_the_element_that_holds_it() -> None:
    """And reads back as it was."""
    written = script_json({"a": HOSTILE})
    assert "<" not in written
    assert json.loads(written) == {"a": HOSTILE}


def test_a_confirmed_point_is_worth_its_new_seeds_alone(view: SweepView) -> None:
    """The search chose it for its luck on the first one; Student's t with two degrees of
    freedom.
    """
    place = view.leaderboard[0]
    confirming = [trial.objective or 0.0 for trial in place.trials if trial.role == "confirm"]
    mean = sum(confirming) / 3
    deviation = (sum((value - mean) ** 2 for value in confirming) / 2) ** 0.5
    assert place.value == pytest.approx(mean)
    assert place.half == pytest.approx(4.302653 * deviation / 3**0.5)
    assert (place.source, place.fate) == ("seeds", "best on fresh seeds")


def test_a_point_of_one_trial_has_the_interval_of_its_prompts(view: SweepView) -> None:
    """Which is reported."""
    place = next(place for place in view.leaderboard if not place.fate)
    assert (place.source, place.half) == ("prompts", pytest.approx(1.959964 * 0.012))


def test_a_thinned_curve_keeps_its_ends(view: SweepView) -> None:
    """And as many points as it may have."""
    curve = view.trial(0).curve("reward")
    kept = view.trial(0).curve("reward", 50)
    assert (len(kept), kept[0], kept[-1]) == (50, curve[0], curve[-1])


def test_a_damaged_sweep_is_refused_in_one_message(tmp_path: Path) -> None:
    """Its search space is unknown."""
    sweep = make_sweep(tmp_path / "s", Made(trials=1))
    (sweep / "sweep.yaml").unlink()
    with pytest.raises(UserError, match=r"no sweep\.yaml"):
        write_report(read_sweep(sweep))
