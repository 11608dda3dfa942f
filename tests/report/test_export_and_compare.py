"""``grposweep best``, ``export`` and ``compare``: what a sweep found, for people and for other
programs.
"""

import csv
import io
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from shlex import quote, split

import pytest
from omegaconf import OmegaConf

from grporecipe.fields.recipes import read_recipe
from grporecipe.files import write_json
from grporecipe.model import planning
from grporecipe.reading.load import Options, load_recipe
from grposweep.config.compose import load_experiment
from grposweep.config.to_setting import read_setting
from grposweep.report._ranking import RankedPoint
from grposweep.report._verdict import compare_points
from grposweep.report.tables import at, draw_curves
from grposweep.report.view import read_sweep
from grposweep.search.sampling import Sampling
from made import Made, best_of, make_sweep
from support import RUN, Run, environment, trials, unwrap, update
from support import grposweep as run_grposweep

from .conftest import Commands, write_sweep
from .test_ranking import trial


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two sweeps: a with replicates, b without."""
    outputs = tmp_path_factory.mktemp("outputs")
    make_sweep(outputs / "a", Made(trials=12, replicates=2))
    return make_sweep(outputs / "b", Made(trials=6)).parent


@pytest.fixture
def made(commands: Commands, both: Path) -> Path:
    """A copy of them in outputs; the folder of the first."""
    return Path(shutil.copytree(both, "outputs")).resolve() / "a"


def test_best_names_the_winner_and_what_it_beat(commands: Commands, made: Path) -> None:
    """By its value on fresh seeds, with that of the search below."""
    view = read_sweep(made)
    ended = commands("best", "a")
    assert view.best is not None
    assert view.best_point is not None
    assert f"trial {view.best.number} of a: eval_reward {view.best_point.text}" in ended.out
    assert f"in the search: {view.best.objective:.4f} ± 0.0235" in ended.out
    assert f"grposweep rerun {quote(str(view.best.path))}" in ended.out


def test_best_states_what_fresh_seeds_say_and_whether_there_is_a_model(
    commands: Commands, made: Path
) -> None:
    """The value on the search's own seed does not rank points that fresh seeds have confirmed."""
    assert "on 2 fresh seeds: trial " in commands("best", "a").out
    assert "second: trial" not in commands("best", "a").out
    trained = {"baseline": {"trainer": {"kind": "trl", "keep": "best"}}}
    folder = write_sweep("c", trials=6, settings=trained).resolve()
    assert "second: trial" in commands("best", "c").out
    assert "Train it again: grposweep rerun " in commands("best", "c").out
    best = best_of(folder)
    (best.path / "model" / "adapter").mkdir(parents=True)
    assert f"its model is in {best.path / 'model'}" in commands("best", "c").out


def test_the_command_that_best_shows_bears_a_blank_in_a_path(commands: Commands) -> None:
    """Pasted into a shell, the trial's folder is one word."""
    folder = write_sweep("with a blank", trials=6)
    shown = commands("best", str(folder)).out.split("repeat it: ")[1]
    best = best_of(folder.resolve())
    assert split(shown) == ["grposweep", "rerun", str(best.path)]


def test_the_winner_is_a_hydra_configuration_of_the_same_experiment(
    commands: Commands, made: Path
) -> None:
    """All its values; what conf/ defines by another key refers to it again."""
    assert commands("best", "a", "--export", "w.yaml").code == 0
    text = Path("w.yaml").read_text()
    best = best_of(made)
    assert text.startswith(
        f"# python {quote(str(RUN))} --config-dir {quote(str(Path.cwd()))} --config-name w\n"
    )
    content = OmegaConf.create(text)
    recorded = asdict(load_experiment(best.path / "config.yaml"))
    names = ("model", "task", "batch", "kl", "loss", "schedule", "lr", "seed")
    values = OmegaConf.to_container(OmegaConf.masked_copy(content, list(names)), resolve=True)
    assert values == {name: recorded[name] for name in names}
    assert (
        OmegaConf.to_container(content)["batch"]["num_generations_eval"]
        == "${task.eval_generations}"
    )
    assert content["defaults"] == ["config", "_self_"]


@pytest.mark.slow
def test_options_replace_the_sections_of_an_exported_configuration(run: Run, here: Path) -> None:
    """The same option is the same trial, another changes its group alone, and the trial's command
    repeats it from any folder.
    """
    first = trials(
        run("trainer=fake", "schedule.budget_completions=800", "kl=low", "lr=1e-3", "name=s").sweep
    )[0]
    assert run_grposweep(here, "best", "s", "--export", "mine.yaml").code == 0
    mine = ("--config-dir", ".", "--config-name=mine")
    swept = trials(run(*mine, "-m", "kl=low,high").sweep)
    assert [OmegaConf.load(trial / "config.yaml").kl.beta for trial in swept] == [0.001, 0.04]
    assert swept[0].name == first.name
    command = split((swept[1] / "command.sh").read_text().splitlines()[-1])[2:]
    assert trials(run(*command).sweep)[0].name == swept[1].name.replace("0001", "0000")


@pytest.mark.slow
def test_an_exported_configuration_has_no_name_of_an_option(run: Run, here: Path) -> None:
    """Its sections become options of its name."""
    run("trainer=fake", "schedule.budget_completions=800", "name=s")
    run_grposweep(here, "best", "s", "--export", "low.yaml")
    ended = run("--config-dir", ".", "--config-name", "low")
    assert (ended.code, "kl has an option low already" in ended.err) == (2, True)


def test_a_file_that_holds_something_else_is_replaced_only_with_force(commands: Commands) -> None:
    """The same export again is no other file."""
    write_sweep("named", trials=4)
    export = ("best", "named", "--export", "mine.sh")
    assert [commands(*export).code for _ in range(2)] == [0, 0]
    Path("mine.sh").write_text("my own\n")
    ended = commands(*export)
    assert (ended.code, Path("mine.sh").read_text()) == (2, "my own\n")
    assert "add --force" in ended.err
    assert commands(*export, "--force").code == 0
    assert Path("mine.sh").read_text() != "my own\n"


def test_the_winner_is_a_recipe_that_reads_back_to_the_same_setting(
    commands: Commands, made: Path
) -> None:
    """Sizes, steps, learning rate, KL; in TRL's words."""
    assert commands("best", "b", "--export", "r.yaml", "--as", "trl").code == 0
    best = best_of(Path("outputs/b"))
    setting = read_setting(load_experiment(best.path / "config.yaml"))
    assert "# Not in it: the model (here the tiny one" in Path("r.yaml").read_text()
    again = read_recipe(load_recipe(Path("r.yaml"), Options("trl", None, 1))).setting
    kept = (
        "num_generations",
        "learning_rate",
        "beta",
        "temperature",
        "max_completion_length",
        "num_iterations",
    )
    assert [getattr(again, name) for name in kept] == [getattr(setting, name) for name in kept]
    assert planning.total_steps(again) == planning.total_steps(setting)


@pytest.mark.parametrize("kind", ["easyr1", "open-r1"])
def test_the_winner_of_another_program_is_no_recipe_of_trl(
    commands: Commands, made: Path, kind: str
) -> None:
    """Its own recipe is what repeats it."""
    best = best_of(Path("outputs/b"))
    (best.path / "recipe.yaml").write_text("num_generations: 8\n")
    config = OmegaConf.load(best.path / "config.yaml")
    config.trainer.kind = kind
    OmegaConf.save(config, best.path / "config.yaml")
    ended = commands("best", "b", "--as", "trl")
    assert (ended.code, "Set --as recipe." in ended.err) == (2, True)


def test_a_value_of_several_lines_stays_in_its_comment(commands: Commands, made: Path) -> None:
    """A line of its own would be a command, or a key."""
    best = best_of(made)
    hostile = "note\ntouch X #\r\u2028y"
    record = {
        "given": {"beta": 0.1},
        "rewards": [hostile],
        "model": hostile,
        "world_size": 1,
        "command": ["a\nb"],
    }
    write_json(best.path / "trained_with.json", record)
    written = commands("best", "a", "--as", "trl").out
    assert set(OmegaConf.create(written)) == {"beta", "output_dir"}
    assert [line for line in written.splitlines() if line[0] != "#"] == written.splitlines()[-2:]


def test_the_recipe_of_another_trainers_winner_is_the_one_that_it_read(
    commands: Commands, made: Path
) -> None:
    """A yaml file takes it without ``--as``; the line above it names the trial."""
    best = best_of(made)
    recipe = "num_generations: 8\nlearning_rate: 3.0e-06\nreward_funcs: [accuracy]\n"
    (best.path / "recipe.yaml").write_text(recipe)
    assert commands("best", "a", "--export", "own.yaml").code == 0
    assert OmegaConf.load("own.yaml") == OmegaConf.create(recipe)
    assert Path("own.yaml").read_text().startswith(f"# trial {best.number} of a, ")


def test_a_recipe_names_the_keys_of_the_task_that_it_lacks(run: Run, here: Path) -> None:
    """A system prompt changes every prompt, and no key of a recipe holds it; one of several lines
    stays in its comment.
    """
    run("trainer=fake", "name=s", "task.system_prompt='think\nfirst'", "task.eval_generations=4")
    said = run_grposweep(here, "best", "s", "--as", "trl").out
    assert "task.system_prompt=think\\nfirst" in said
    assert "task.eval_generations=4" in said


def test_a_shell_script_holds_the_winners_command(commands: Commands, made: Path) -> None:
    """By the file's ending; a form alone goes to the terminal."""
    commands("best", "a", "--export", "w.sh")
    assert Path("w.sh").read_text() == commands("best", "a", "--as", "command").out
    assert "python src/run.py lr=" in Path("w.sh").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--export", "w.txt"), "name a .yaml or .sh file"),
        (("--export", "no/w.yaml"), "cannot be written"),
        (("--export", "config.yaml"), "cannot have that name"),
        (("--as", "recipe"), "has no recipe"),
    ],
)
def test_what_cannot_be_exported_is_bad_input(
    commands: Commands, made: Path, arguments: tuple[str, ...], says: str
) -> None:
    """One message, exit code 2."""
    ended = commands("best", "a", *arguments)
    assert (ended.code, says in ended.err) == (2, True)


def test_a_sweep_without_a_result_has_no_best(commands: Commands) -> None:
    """Nor anything to compare. The command that tells how far it is bears a blank in its name."""
    write_sweep("not yet", trials=1, running=1)
    ended = commands("best", "not yet")
    assert (ended.code, split(ended.err)[-3:]) == (2, ["grposweep", "status", "not yet"])
    assert commands("compare", "not yet", "not yet").code == 2


def test_export_has_a_row_a_trial_and_a_column_a_parameter(commands: Commands, made: Path) -> None:
    """The same numbers in both forms; what there is not is empty."""
    rows = json.loads(commands("export", "a", "--format", "json").out)
    view = read_sweep(made)
    assert [row["objective"] for row in rows] == [trial.objective for trial in view.trials]
    assert all(set(view.parameters) <= row.keys() for row in rows)
    commands("export", "a", "--output", "rows.csv")
    table = list(csv.DictReader(io.StringIO(Path("rows.csv").read_text())))
    assert [float(row["lr"]) for row in table] == [row["lr"] for row in rows]
    failed = next(row for row in table if row["state"] == "failed")
    assert (failed["objective"], "out of memory" in failed["failure"]) == ("", True)
    assert all(bool(row["objective_se"]) == bool(row["objective"]) for row in table)


def test_a_column_that_there_is_not_is_refused_with_the_nearest(
    commands: Commands, made: Path
) -> None:
    """Nothing is written."""
    ended = commands("export", "a", "--columns", "objectiv", "--output", "rows.csv")
    assert ended.code == 2
    assert "--columns objectiv: there is no such column. Set some of objective" in ended.err
    assert not Path("rows.csv").exists()


def made_point(values: list[float], sampling: Sampling, seed: int = 0) -> RankedPoint:
    """A point with these objectives on seeds from this one, each with this sampling."""
    found = [trial(n, 1e-3, value, seed=n) for n, value in enumerate(values, seed)]
    for each in found:
        # computed already
        vars(each)["sampling"] = sampling
    return RankedPoint(found, found)


@pytest.mark.parametrize(
    ("one", "other", "seed", "error", "said"),
    [
        # a t of 5.47 at two degrees of freedom, those of the smaller side
        ([0.5, 0.52, 0.54], [0.6, 0.58, 0.63, 0.61], 9, 0.001, "p = 0.032 (t-test over 3 and 4"),
        # seeds that move both results by tenths hide no gain of a hundredth
        ([0.5, 0.7, 0.9], [0.51, 0.711, 0.912], 0, None, "± 0.0025 (95 %), p = 0.0027 (t-test, pa"),
        # two shares of 16 prompts that both seeds repeat
        ([0.5, 0.5], [0.6, 0.6], 0, 0.12, "+0.1000 ± 0.2352 (95 %), p = 0.4 (t-test, paired over"),
        ([0.5, 0.5], [0.6, 0.6], 0, None, "+0.1000; neither seeds nor standard errors tell its"),
        # 2.1 standard errors
        (
            [0.5],
            [0.53],
            0,
            0.01,
            "+0.0300 ± 0.0277 (95 %), p = 0.034 (z-test from the evaluations'",
        ),
        ([0.5], [0.53], 0, None, "so this may be chance"),
    ],
)
def test_seeds_count_and_without_them_the_evaluations_errors(
    one: list[float], other: list[float], seed: int, error: float | None, said: str
) -> None:
    """Pairs of the same seeds, two groups of other seeds, or one evaluation each."""
    verdict = compare_points(
        made_point(one, Sampling(error)), made_point(other, Sampling(error), seed)
    )
    assert said in str(verdict)


def test_two_trials_on_the_same_prompts_are_compared_by_prompt() -> None:
    """All four prompts gain about a tenth, which two separate intervals of ± 0.3 would hide."""
    one = made_point([0.5], Sampling(0.16, [0.0, 0.4, 0.6, 1.0], "a"))
    other = made_point([0.6], Sampling(0.16, [0.12, 0.48, 0.71, 1.09], "a"))
    assert str(compare_points(one, other)).startswith(
        "+0.1000 ± 0.0291 (95 %), p = 0.0016 (t-test, paired over 4 prompts"
    )


def test_the_best_of_a_sweep_is_judged_by_its_other_seeds(commands: Commands, made: Path) -> None:
    """It was chosen for its luck as well. Its own trial is no other side."""
    best = best_of(made)
    assert "on 2 fresh seeds" in commands("compare", "a", "b").out
    ended = commands("compare", "a", f"a/{best.number}")
    assert (ended.code, "name the same trial" in ended.err) == (2, True)


def test_two_seeds_of_a_point_are_compared_by_their_own_results(
    commands: Commands, made: Path
) -> None:
    """The mean over the seeds of their point is the same on both sides, so it would say that they
    are equal.
    """
    best = best_of(made)
    other = next(
        trial
        for trial in read_sweep(made).ranked
        if trial.is_replicate and trial.point == best.point
    )
    assert other.objective is not None
    assert best.objective is not None
    said = commands("compare", f"a/{best.number}", f"a/{other.number}").out
    assert f"B - A: {other.objective - best.objective:+.4f}" in said


def test_a_comparison_shows_what_differs_within_80_columns(commands: Commands, made: Path) -> None:
    """Settings, both curves, the difference; and that the larger search flatters its best."""
    ended = commands("compare", "a", "b", "a/0")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "B - A" in ended.out
    assert "C - A" in ended.out
    assert "the best of many trials looks better than it is" in ended.out
    row = next(line.split() for line in ended.out.splitlines() if line.strip().startswith("lr "))
    assert len(row) == 4


def test_other_files_are_those_of_the_compared_trials(commands: Commands) -> None:
    """A sweep whose reward was corrected began with another file than its retried trials had."""
    for name, digest in (("early", "1"), ("late", "2")):
        files = {"files": {"rewards.py": digest}}
        make_sweep(Path("outputs", name), Made(trials=4, settings={"provenance": files}))
    assert "rewards.py has changed" in commands("compare", "early", "late").out
    for folder in Path("outputs/early/trials").iterdir():
        write_json(folder / "provenance.json", {"files": {"rewards.py": "2"}})
    assert "rewards.py has changed" not in commands("compare", "early", "late").out


@pytest.mark.parametrize(
    "names", [("a",), ("a", "zz"), ("a", "a/99"), ("a",) * 7, ("a/1", "a/1"), ("a", "a/best")]
)
def test_what_cannot_be_compared_is_bad_input(
    commands: Commands, made: Path, names: tuple[str, ...]
) -> None:
    """One message, exit code 2."""
    ended = commands("compare", *names)
    assert ended.code == 2
    assert ended.err.startswith("error: ")


def test_curves_share_their_axes_and_meet_in_a_star() -> None:
    """Straight between measurements, nothing outside of them."""
    assert at([(0, 0.0), (10, 1.0)], 5) == 0.5
    assert at([(0, 0.0), (10, 1.0)], 11) is None
    lines = draw_curves(
        {"A": [(0, 0.0), (100, 1.0)], "B": [(0, 1.0), (100, 0.0)]}, width=21, height=5
    )
    assert lines[0] == "  1.0000 │BBB               AAA"
    assert lines[2].count("*") >= 1


@pytest.mark.slow
def test_trls_own_parser_takes_the_exported_recipe(commands: Commands, made: Path) -> None:
    """With the numbers of the trial."""
    from trl.scripts.grpo import make_parser

    commands("best", "a", "--export", "r.yaml", "--as", "trl")
    best = best_of(made)
    experiment = load_experiment(best.path / "config.yaml")
    arguments = [
        "--config",
        "r.yaml",
        "--output_dir",
        "out",
        "--use_cpu",
        "true",
        "--bf16",
        "false",
    ]
    real = make_parser().parse_args_and_config(arguments)[1]
    assert real.learning_rate == experiment.lr
    assert real.num_generations == experiment.batch.num_generations
    assert real.beta == experiment.kl.beta


@pytest.mark.slow
def test_hydra_composes_the_exported_winner_to_the_same_trial(
    run: Run, here: Path, commands: Commands
) -> None:
    """The first line of the file is the command; its trial has the winner's identity, and it can be
    swept.
    """
    sweep = run(
        "trainer=fake", "name=s", "-m", "lr=1e-3,3e-3", "batch=small,medium", "kl=low"
    ).sweep
    assert commands("best", str(sweep), "--export", str(here / "w.yaml")).code == 0
    command = (here / "w.yaml").read_text().splitlines()[0].removeprefix("# python ")
    best = best_of(sweep)
    for more, count in (("name=one", 1), ("name=two -m lr=1e-4,1e-3", 2)):
        line = f"{quote(sys.executable)} {command} {more}"
        subprocess.run(
            ["sh", "-c", line], cwd=here, env=environment(), check=True, capture_output=True
        )
        found = trials(here / "outputs" / more.split()[0].removeprefix("name="))
        assert len(found) == count
        assert best.path.name.split("-")[1] in {folder.name.split("-")[1] for folder in found}


def test_the_recipe_of_a_trial_does_not_write_into_its_folder(commands: Commands) -> None:
    """A training from it would replace the model that the sweep keeps."""
    sweep = write_sweep(trials=3)
    best = json.loads(commands("status", "s", "--json").out)["best"]["number"]
    (trial,) = (
        path for path in (sweep / "trials").iterdir() if path.name.startswith(f"{best:04}-")
    )
    (trial / "recipe.yaml").write_text(
        f"learning_rate: 1e-6\noutput_dir: {trial.resolve()}/model\n"
    )
    assert f"output_dir: output-{trial.name}/model" in commands("best", "s", "--as", "recipe").out


def test_a_comparison_that_was_chosen_by_its_results_counts_the_others(
    commands: Commands, made: Path
) -> None:
    """The best of six trials against another of them is one of 15 pairs; two named trials are a
    comparison of their own.
    """
    assert read_sweep(made.with_name("b")).best is not None
    named = commands("compare", "b/1", "b/2")
    chosen = commands("compare", "b", "b/2")
    assert "comparisons" not in named.out
    assert "for the best of" in unwrap(chosen.out)
    points = [made_point([value], Sampling(0.05)) for value in (0.5, 0.63)]
    assert "± 0.1386 (95 %), p = 0.066" in str(compare_points(*points))
    assert "± 0.2075 (95 %), p = 0.99" in str(compare_points(*points, among=15))


@pytest.mark.parametrize(("value", "among"), [(0.5, 4), (0.7, 3)])
def test_of_two_bests_the_trials_of_the_better_one_count(
    commands: Commands, made: Path, value: float, among: int
) -> None:
    """Its luck makes the difference: four trials of b have finished, and three of c."""
    other = make_sweep(made.with_name("c"), Made(trials=3))
    result = next(other.glob("trials/0000-*/result.json"))
    update(result, objective=value)
    said = unwrap(commands("compare", "c", "b").out)
    assert f"for the best of {among} comparisons" in said
    assert "the best of many trials looks better than it is" in said
