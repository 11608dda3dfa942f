"""``search.points``: points that are listed, instead of parameters that span a grid."""

from pathlib import Path

import pytest
import yaml

from grporecipe.errors import UserError
from grposweep.schema import Search
from grposweep.search.listed import list_points
from grposweep.search.space import Space
from refused import says
from support import Run, grposweep, lines, read, run_in, trials

TWO = "search.points={lr:1e-3,batch:small},{lr:1e-4,batch:medium}"


def listed(path: Path) -> tuple[dict[str, object], ...]:
    """The points of a file."""
    return list_points(Space(), Search(points=str(path))).points


def test_a_row_of_a_csv_file_is_a_point(tmp_path: Path) -> None:
    """A cell is a number, a Boolean or text as it stands; an empty one leaves its key as
    configured. Excel begins with a mark.
    """
    (tmp_path / "p.csv").write_text(
        '\ufefflr, task.system_prompt, model.use_kernels\n1e-3, "Think, then say a = 1.", '
        "true\n\n2,,\n"
    )
    said = {"task.system_prompt": "Think, then say a = 1.", "model.use_kernels": True}
    assert listed(tmp_path / "p.csv") == ({"lr": 0.001, **said}, {"lr": 2})


def test_all_mistakes_of_a_csv_file_are_named_at_once(tmp_path: Path) -> None:
    """A column twice, a row that is too short, a list that does not end, a number that is not
    finite.
    """
    (tmp_path / "p.csv").write_text("lr,lr\n1e-3\n[1,2\ninf,2\n")
    with pytest.raises(
        UserError, match="(?s)" + says("4 keys ... 'lr' ... row 1 has 1 cells ... lr=[1 ... inf")
    ):
        listed(tmp_path / "p.csv")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no points"),
        ("lr,batch\n", "no points"),
        ("lr;batch\n1e-3;small\n", "';'"),
        (None, "No such file"),
    ],
)
def test_a_file_without_points_is_refused(tmp_path: Path, content: str | None, why: str) -> None:
    """It is empty, has a header only, separates columns by semicolons, or is not there."""
    if content is not None:
        (tmp_path / "p.csv").write_text(content)
    with pytest.raises(UserError, match=why):
        listed(tmp_path / "p.csv")


def test_of_many_mistakes_the_first_are_shown_with_their_number(here: Path) -> None:
    """A file whose column has a wrong kind of value."""
    (here / "p.csv").write_text("batch\n" + "".join(f"b{number}\n" for number in range(12)))
    said = run_in(here, "trainer=fake", "-m", "search.points=p.csv").err
    assert said.startswith("error: 12 keys cannot work:\n- batch=b0")
    assert len(said.splitlines()) == 10
    assert said.endswith("- and 4 more\n")


@pytest.mark.slow
def test_listed_points_are_judged_run_and_extended_by_the_same_command(
    run: Run, here: Path
) -> None:
    """An invalid point never starts. Once it is corrected, and another one is added, only these two
    are trained.
    """
    points = here / "p.csv"
    words = ("trainer=fake", "schedule=steps", "schedule.max_steps=2", "-m", "search.points=p.csv")
    points.write_text("lr,batch.num_generations\n1e-3,8\n1e-4,12\n")
    first = run(*words)
    assert "GB101" in first.out
    assert [line["point"] for line in lines(first.sweep / "invalid.jsonl")] == [
        {"lr": 1e-4, "batch.num_generations": 12}
    ]
    points.write_text("lr,batch.num_generations\n1e-3,8\n1e-4,4\n2e-4,\n")
    second = run(*words)
    assert "3 trials (grid), 1 of them recorded already" in second.out
    assert second.sweep == first.sweep
    found = [read(trial / "trial.json")["point"] for trial in trials(first.sweep)]
    size = "batch.num_generations"
    assert found == [{"lr": 1e-3, size: 8}, {"lr": 1e-4, size: 4}, {"lr": 2e-4}]
    assert yaml.safe_load((first.sweep / "sweep.yaml").read_text())["space"][0]["choices"] == [
        1e-3,
        1e-4,
        2e-4,
    ]
    # a list that lacks a recorded point is another sweep
    points.write_text("lr,batch.num_generations\n1e-3,8\n1e-5,4\n2e-4,\n")
    other = run(*words)
    assert other.code == 2
    assert (
        "1 trial whose points are not in the list, such as lr=0.0001 num_generations=4" in other.err
    )


def test_space_counts_listed_points(here: Path) -> None:
    """Each value with the points that have it, not with those of a product."""
    shown = grposweep(here, "space", f"{TWO},{{lr:1e-3,batch.num_generations:12}}")
    assert shown.out.startswith("3 points, 2 valid, 1 invalid")
    assert "1 of 2" in next(
        line for line in shown.out.splitlines() if line.strip().startswith("lr  ")
    )
