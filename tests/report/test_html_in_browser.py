"""The report as a user meets it: opened from disk in a real browser, sorted, filtered, in the dark,
on a phone.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from grposweep.report.html_page import write_report
from grposweep.report.trial_view import State
from grposweep.report.view import read_sweep
from grposweep.storage.completions import KeptCompletion, keep_completions
from made import Made, best_of, make_comparison, make_sweep

from .browser import FIGURES, open_page, start_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
HOSTILE = (
    "</script><script>window.taken=1</script><img src=x "
    "onerror='window.taken=1'>\"'`{{7*7}}&lt;b&gt;"
)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """One Chromium for all of them."""
    with start_browser() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty trials in every state, three points confirmed on other seeds."""
    made = Made(trials=40, running=2, queued=1, replicates=3)
    return write_report(read_sweep(make_sweep(tmp_path_factory.mktemp("page") / "s", made)))


@pytest.fixture(scope="module")
def page(browser: "Browser", report: Path) -> Iterator["Page"]:
    """The page, which must stay silent and alone. Who changes it changes it back."""
    with open_page(browser, report) as opened:
        yield opened


@pytest.fixture
def own_page(browser: "Browser", report: Path) -> Iterator["Page"]:
    """A page for one test that changes its figures."""
    with open_page(browser, report) as opened:
        yield opened


def column(page: "Page", name: str) -> list[str]:
    """The cells of a column of the leaderboard, those of hidden rows left out."""
    headings = page.locator("#trials th").all_inner_texts()
    place = next(i for i, text in enumerate(headings, 1) if text.startswith(name))
    return page.locator(f"#trials tbody tr:not([hidden]) td:nth-child({place})").all_inner_texts()


def test_every_figure_is_drawn(page: "Page") -> None:
    """None says that it cannot be."""
    drawn = [name for name in FIGURES if page.locator(f"#plot-{name} .main-svg").count()]
    assert drawn == list(FIGURES)


def test_a_click_on_a_heading_sorts_and_another_turns_it_round(page: "Page") -> None:
    """By value, not by text: 1e-05 comes before 0.001; trials without an objective stay last."""
    heading = page.locator("#trials th button", has_text="lr")
    heading.click()
    rising = [float(text) for text in column(page, "lr")]
    heading.click()
    assert rising == sorted(rising) != [float(text) for text in column(page, "lr")]
    page.locator("#trials th button", has_text="eval_reward").click()
    states = column(page, "state")
    ended = states.count("finished")
    numbers = [float(text) for text in column(page, "eval_reward")[:ended]]
    assert numbers == sorted(numbers, reverse=True)
    # what a stopped trial had reached ranks nothing
    assert "finished" not in states[ended:]


def test_words_and_a_state_filter_rows(page: "Page") -> None:
    """All words must be in a row."""
    page.fill("#filter", "large finished")
    assert set(column(page, "batch")) == {"large"}
    page.fill("#filter", "")
    page.select_option("#state", "failed")
    assert column(page, "state") == ["failed", "failed"]
    page.select_option("#state", "pruned")
    # their last values
    assert all(re.fullmatch(r"0\.\d{4}", text) for text in column(page, "eval_reward"))
    page.select_option("#state", "failed")
    assert page.inner_text("#shown").startswith("2 of ")
    page.select_option("#state", "")


def test_hovering_over_a_figure_names_the_trial(page: "Page") -> None:
    """Its number and its point."""
    dot = page.locator("#plot-slices .scatterlayer .point").nth(4)
    dot.scroll_into_view_if_needed()
    dot.hover(force=True)
    page.wait_for_selector("#plot-slices .hoverlayer .hovertext")
    text = page.text_content("#plot-slices .hoverlayer") or ""
    assert "trial " in text
    assert "batch=" in text


def test_a_click_on_a_row_shows_the_trial_with_its_command(page: "Page") -> None:
    """In a window of its own, which Escape closes."""
    page.locator("#trials tbody tr").first.click()
    assert page.is_visible("#trial")
    assert "python src/run.py lr=" in page.inner_text("#trial-command")
    page.keyboard.press("Escape")
    assert not page.is_visible("#trial")


def test_curves_of_another_metric_over_steps_can_be_chosen(own_page: "Page") -> None:
    """And two other parameters on the map."""
    own_page.select_option("#metric", "kl")
    own_page.select_option("#over", "steps")
    own_page.select_option("#across", "2")
    own_page.wait_for_function(
        "document.querySelector('#plot-curves .xtitle').textContent === 'optimizer steps'"
    )
    assert own_page.text_content("#plot-curves .ytitle") == "kl"
    assert own_page.text_content("#plot-map .xtitle") == "num_generations"


def test_a_logarithmic_axis_has_ticks_at_1_2_and_5(page: "Page") -> None:
    """Of the slices by plotly, of parallel coordinates by our own list; over many decades only the
    powers of ten.
    """
    axis = page.evaluate("document.getElementById('plot-slices').layout.xaxis")
    assert (axis["type"], axis["dtick"]) == ("log", "D2")
    # the searched range with some room
    assert axis["range"] == pytest.approx([-5.12, -1.88])
    assert page.evaluate("ticks125(1e-4, 1e-3)") == pytest.approx([1e-4, 2e-4, 5e-4, 1e-3])
    assert page.evaluate("ticks125(1e-6, 1e-1)") == pytest.approx([10.0**n for n in range(-6, 0)])


def test_a_band_wider_than_the_plot_is_named_and_not_drawn(own_page: "Page") -> None:
    """A standard error of 10 would press all curves into a line."""
    own_page.evaluate(
        "DATA.trials.forEach((trial) => { trial.curves[DATA.metric]?.[2]?.fill(10); }); "
        "drawCurves()"
    )
    low, high = own_page.evaluate("document.getElementById('plot-curves')._fullLayout.yaxis.range")
    values = own_page.evaluate(
        "DATA.trials.flatMap((trial) => trial.curves[DATA.metric]?.[1] ?? [])"
    )
    traces = "document.getElementById('plot-curves').data"
    drawn = own_page.evaluate(f"{traces}.flatMap((trace) => trace.y.filter((y) => y !== null))")
    names = own_page.evaluate(f"{traces}.map((trace) => trace.name ?? '')")
    assert 1 > high > max(*values, *drawn) > min(*values, *drawn) > low > -1
    assert any("band wider than the plot" in name for name in names)


def test_a_surface_is_drawn_from_20_trials_on_and_dots_before(
    page: "Page", browser: "Browser", tmp_path: Path
) -> None:
    """And a small sweep has no section, and no link to one, for what it does not have."""
    kinds = "document.getElementById('plot-map').data.map((trace) => trace.type ?? 'scatter')"
    assert set(page.evaluate(kinds)) & {"contour", "heatmap"}
    sweep = make_sweep(tmp_path / "s", Made(trials=3))
    (sweep / "invalid.jsonl").unlink()
    with open_page(browser, write_report(read_sweep(sweep)), figures=("map",)) as small:
        assert set(small.evaluate(kinds)) == {"scatter"}
        links = small.evaluate(
            "[...document.querySelectorAll('nav a')].map((a) => a.getAttribute('href').slice(1))"
        )
        sections = small.evaluate(
            "[...document.querySelectorAll('section')].map((section) => section.id)"
        )
        assert [name for name in sections if name != "summary"] == links
        assert not {"invalid", "stopped", "failures", "completions", "front", "effects"} & set(
            links
        )


MARKS = """(name) => document.getElementById(name).data.flatMap((trace) =>
  trace.xaxis === undefined || trace.xaxis === "x" ? Array(trace.x.length).fill(trace.marker.symbol ?? "circle") : []).sort()"""


def test_paused_stopped_and_failed_trials_are_in_every_figure(
    browser: "Browser", tmp_path: Path
) -> None:
    """Each with its own mark in slices and map; those with a value are lines, and an axis has
    their states.
    """
    sweep = make_sweep(tmp_path / "s", Made(trials=12))
    for trial in sorted((sweep / "trials").iterdir())[:2]:
        result = {"status": "stopped", "attempt": 0, "step": 40, "objective": 0.4}
        (trial / "result.json").write_text(json.dumps(result))
        (trial / "control.json").write_text('{"action": "pause"}')
    view = read_sweep(sweep)
    marks = {State.PAUSED: "square", State.PRUNED: "diamond", State.FAILED: "x"}
    wanted = sorted(marks.get(trial.state, "circle") for trial in view.trials)
    assert set(wanted) == {"circle", *marks.values()}
    with open_page(browser, write_report(view)) as opened:
        assert opened.evaluate(MARKS, "plot-slices") == wanted
        assert opened.evaluate(MARKS, "plot-map") == wanted
        lines = "document.getElementById('plot-parallel').data[0].dimensions"
        assert opened.evaluate(f"{lines}.at(-1).values.length") == 12 - wanted.count("x")
        states = sorted(opened.evaluate(f"{lines}.at(-2).ticktext"))
        assert " ".join(states) == "finished paused stopped early"


CONTRAST = """(selector) => {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = (text) => {
    const [r, g, b] = text.match(/\\d+/g).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let place = document.querySelector(selector);
  const ink = light(getComputedStyle(place).color);
  while (getComputedStyle(place).backgroundColor === "rgba(0, 0, 0, 0)") place = place.parentElement;
  const back = light(getComputedStyle(place).backgroundColor);
  return (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
}"""


def contrast(page: "Page", selector: str) -> float:
    """Of an element's text to what is behind it, as WCAG counts it; 4.5 is the least for
    reading.
    """
    return float(page.evaluate(CONTRAST, selector))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_the_light_and_in_the_dark(
    browser: "Browser", report: Path, tmp_path: Path, scheme: str
) -> None:
    """Headings, quiet text, states, links."""
    with open_page(browser, report, scheme) as page:
        page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
        read = (
            "h1",
            ".quiet",
            "figcaption",
            "nav a",
            ".state.finished",
            ".state.failed",
            ".state.pruned",
            "td.note",
        )
        assert {place: contrast(page, place) for place in read if contrast(page, place) < 4.5} == {}


def test_figures_follow_when_the_colour_scheme_changes(own_page: "Page") -> None:
    """A laptop in the evening."""
    before = own_page.evaluate(
        "getComputedStyle(document.querySelector('#plot-curves .xtitle')).fill"
    )
    own_page.emulate_media(color_scheme="dark")
    own_page.wait_for_function(
        "before => getComputedStyle(document.querySelector('#plot-curves .xtitle')).fill !== "
        "before",
        arg=before,
    )


def test_a_phone_scrolls_down_and_never_sideways(
    browser: "Browser", report: Path, tmp_path: Path
) -> None:
    """Wide tables scroll within themselves."""
    with open_page(browser, report, width=390) as page:
        page.screenshot(path=tmp_path / "phone.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert (
            page.evaluate(
                "Math.max(...[...document.querySelectorAll('.svg-container')].filter((p) => "
                "!p.closest('.wide')).map((p) => p.getBoundingClientRect().right))"
            )
            <= 390
        )


def test_hostile_names_labels_and_messages_stay_text(browser: "Browser", tmp_path: Path) -> None:
    """In tables, data, hover labels and axes: nothing of them runs, all of it can be read."""
    parameters = {f"batch.{HOSTILE}": [HOSTILE, "b", "c"]}
    made = Made(
        trials=20,
        parameters=parameters,
        message=HOSTILE,
        metric=HOSTILE,
        settings={"overrides": [HOSTILE]},
    )
    sweep = make_sweep(tmp_path / "<img src=x onerror=window.taken=1>", made)
    with open_page(browser, write_report(read_sweep(sweep), tmp_path / "r.html")) as page:
        page.locator("#trials tbody tr").last.click()
        assert page.evaluate("window.taken") is None
        assert page.locator("img").count() == 0
        assert HOSTILE in page.inner_text("#failures")
        assert "<img" in page.inner_text("h1")


def test_a_copy_button_copies_the_file_and_not_the_command_that_writes_it(page: "Page") -> None:
    """The winner's configuration; the buttons of other steps copy their command."""
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) => "
        "{window.copied = text}}})"
    )
    for name, begins in (
        ("Write it as a configuration", "# python"),
        ("Write it as a TRL recipe", "#"),
        ("Train it", "cd /work"),
    ):
        page.locator("#advice dt", has_text=name).locator("+ dd button").click()
        page.wait_for_function("window.copied !== undefined")
        assert page.evaluate("window.copied").startswith(begins)
        assert ("\nlr: " in page.evaluate("window.copied")) == (
            name == "Write it as a configuration"
        )
        page.evaluate("delete window.copied")


def test_one_can_flip_through_a_models_texts_and_none_of_them_runs(
    browser: "Browser", tmp_path: Path
) -> None:
    """Before training next to an evaluation; on a phone the page is no wider than the screen."""
    sweep = make_sweep(tmp_path / "s", Made(trials=5))
    best = best_of(sweep)
    for step in (0, 50, 100):
        said = f"{step} {HOSTILE} {'long' * 200}"
        keep_completions(
            best.path,
            [KeptCompletion(step, 0, 0.5, 1, HOSTILE, said, 1.0, {HOSTILE: 1.0, "b": None})],
        )
    with open_page(
        browser, write_report(read_sweep(sweep)), width=420, figures=("curves",)
    ) as page:
        shown = page.locator("#said .said-block pre")
        assert [text.split()[0] for text in shown.all_inner_texts()] == ["0", "100"]
        page.locator("#said-back").click()
        assert [text.split()[0] for text in shown.all_inner_texts()] == ["0", "50"]
        assert HOSTILE in page.inner_text("#said")
        assert page.evaluate("window.taken") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= 420


def test_a_sweep_that_has_only_begun_has_a_page(browser: "Browser", tmp_path: Path) -> None:
    """Each figure says why it is not there."""
    sweep = make_sweep(tmp_path / "s", Made(trials=2, running=1, queued=1))
    with open_page(browser, write_report(read_sweep(sweep)), figures=FIGURES) as page:
        assert "No trial has a value yet." in page.inner_text("#parameters")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_change_of_one_factor_has_its_interval_and_verdict(
    browser: "Browser", tmp_path: Path, scheme: str
) -> None:
    """In the figure and in the table, by which rates that are far off are worse; all of it can be
    read.
    """
    sweep = make_comparison(tmp_path / "s", [{"lr": 1e-5}, {"lr": 1e-2}, {"kl": "low"}])
    with open_page(
        browser, write_report(read_sweep(sweep)), scheme, figures=("effects", "curves", "slices")
    ) as page:
        assert page.locator("#plot-effects .xerror").count() == 3
        assert page.locator("#effects .verdict").all_inner_texts() == ["worse", "worse", "tied"]
        assert set(column(page, "note")) == {"the baseline", "worse", "tied"}
        assert min(contrast(page, f".verdict.{verdict}") for verdict in ("worse", "tied")) >= 4.5


def test_a_page_that_was_moved_without_plotly_says_so_and_still_sorts(
    browser: "Browser", report: Path, tmp_path: Path
) -> None:
    """With it in the page (``--offline``) it is one file."""
    moved = tmp_path / "moved.html"
    moved.write_bytes(report.read_bytes())
    page = browser.new_page()
    page.goto(moved.as_uri())
    assert "grposweep report --offline" in page.locator("#lacking").inner_text()
    page.locator("#trials th button", has_text="lr").click()
    rates = [float(text) for text in column(page, "lr")]
    assert rates == sorted(rates)
    page.close()
