"""``grposweep rerun``: a recorded trial once more, exactly or changed, judged first, and in a sweep
of its own.
"""

import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from grporecipe.errors import UserError
from grporecipe.files import text_sha256
from grposweep.config.compose import Session, load_experiment
from grposweep.config.points import apply_values
from grposweep.schema import Experiment
from grposweep.search.parse import parse_values
from grposweep.storage.folders import TrialFolder
from grposweep.storage.inputs import TrialInputs
from grposweep.storage.provenance import difference, first_difference
from grposweep.storage.records import TrialRecord
from grposweep.sweep.rerun import recorded_by
from support import Ended, Run, grposweep, lines, read, trials

FAKE = ("trainer=fake", "name=s", "schedule.budget_completions=512", "-m", "lr=1e-3,3e-3", "kl=low")


def changed(recorded: Experiment, overrides: list[str], session: Session) -> Experiment:
    """A recorded experiment at overrides as they are typed."""
    return apply_values(recorded, parse_values(overrides, session.loader), session)


def test_what_refers_to_another_key_by_conf_does_so_again(session: Session) -> None:
    """Recorded configurations are resolved; a length that was not the task's stays as it was."""
    recorded = Experiment()
    again = changed(recorded, ["task.max_completion_length=99"], session)
    assert again.generation.max_completion_length == 99
    recorded.generation.max_completion_length = 7
    assert (
        changed(
            recorded, ["task.max_completion_length=99"], session
        ).generation.max_completion_length
        == 7
    )


def test_an_option_replaces_its_group_and_a_key_its_value(session: Session) -> None:
    """The rest stays as recorded."""
    recorded = Experiment()
    recorded.kl.enabled, recorded.kl.beta, recorded.seed = True, 0.5, 3
    again = changed(recorded, ["kl=none", "batch.num_generations=4", "model.path='a b'"], session)
    assert (again.kl.beta, again.seed, again.batch.num_generations, again.model.path) == (
        0.0,
        3,
        4,
        "a b",
    )


@pytest.mark.parametrize(
    "override", ["lr=1,2", "sweeps=lr_batch", "nothing=1", "kl=lowe", "lr=fast", "lr"]
)
def test_what_cannot_be_one_run_is_bad_input(session: Session, override: str) -> None:
    """Before anything starts."""
    with pytest.raises(UserError):
        changed(Experiment(), [override], session)


def test_two_histories_differ_by_numbers_and_never_by_times() -> None:
    """Named with its step; a missing end is a difference as well."""
    one = [{"step": 1, "loss": 0.5, "time": 1.0}, {"step": 2, "loss": 0.25, "time": 2.0}]
    assert first_difference(one, [{**line, "time": 9.0} for line in one]) is None
    assert (
        first_difference(one, [one[0], {**one[1], "loss": 0.5}]) == "loss 0.25 became 0.5 at step 2"
    )
    assert (
        first_difference([{"step": 1, "a": 1, "b": 2}], [{"step": 1, "a": 3, "b": 4}])
        == "a 1 became 3 at step 1"
    )
    assert first_difference(one, one[:1]) == "2 lines of metrics became 1"


@pytest.mark.slow
def test_a_second_rerun_shows_the_recorded_result(run: Run, here: Path) -> None:
    """And ``force=true`` runs it again."""
    run(*FAKE)
    first = grposweep(here, "rerun", "1")
    second = grposweep(here, "rerun", "1")
    assert first.code == second.code == 0
    assert "every number of metrics.jsonl is the same" in first.out
    assert "has repeated it already, and nothing is trained. Add force=true" in second.out
    forced = grposweep(here, "rerun", "1", "force=true")
    assert len(trials(forced.sweep)) == 2
    assert forced.out.count("every number of metrics.jsonl is the same") == 1


@pytest.mark.slow
def test_a_rerun_is_a_sweep_of_its_own_that_names_its_origin(run: Run, here: Path) -> None:
    """In a new sweep; the original is not touched; the change reaches the configuration."""
    original = run(*FAKE).sweep
    before = {path: path.stat().st_mtime_ns for path in original.rglob("*")}
    ended = grposweep(here, "rerun", "s", "0", "lr=1e-2")
    assert ended.sweep.parent == original.parent
    origin = yaml.safe_load((ended.sweep / "sweep.yaml").read_text())["provenance"]["rerun_of"]
    assert origin == {
        "sweep": str(original),
        "trial": trials(original)[0].name,
        "overrides": ["lr=1e-2"],
    }
    assert load_experiment(trials(ended.sweep)[0] / "config.yaml").lr == 1e-2
    assert {path: path.stat().st_mtime_ns for path in original.rglob("*")} == before


@pytest.mark.slow
def test_a_change_that_breaks_a_rule_starts_nothing(run: Run, here: Path) -> None:
    """The rule's message with its fixes, and no new folder."""
    run(*FAKE)
    ended = grposweep(here, "rerun", "0", "batch.num_generations=7")
    assert ended.code == 2
    assert "GB101" in ended.err
    assert [path.name for path in (here / "outputs").iterdir()] == ["s"]


@pytest.mark.slow
def test_it_runs_where_the_sweep_ran_and_says_what_differs_from_then(
    run: Run, here: Path, tmp_path: Path
) -> None:
    """Found by its path from another folder; another version of a package is named."""
    folder = trials(run(*FAKE).sweep)[0]
    text = (folder / "provenance.json").read_text()
    (folder / "provenance.json").write_text(text.replace('"trl": "', '"trl": "0.0.'))
    ended = grposweep(tmp_path, "rerun", str(folder))
    assert ended.code == 0
    assert f"in {here}" in ended.out
    assert "not as recorded: trl 0.0." in ended.out
    assert ended.sweep.parent == here / "outputs"


@pytest.mark.slow
def test_a_trial_runs_the_copy_of_the_code_that_its_job_ran(run: Run, here: Path) -> None:
    """The last job's script names it; a copy that differs from today's code is used, and that is
    reported.
    """
    folder = trials(run(*FAKE).sweep)[0]
    copy = folder.parents[1] / "code" / "0123456789ab"
    shutil.copytree(Path(__file__).parents[2] / "src" / "grposweep", copy / "grposweep")
    with (copy / "grposweep" / "train" / "fake.py").open("a") as file:
        file.write('\nprint("an older version")\n')
    (folder / "job-0.sbatch").write_text(f"export PYTHONPATH={copy}\n")
    ended = grposweep(here, "rerun", "0")
    assert "the sweep's own copy of the code" in ended.out
    assert "an older version" in (trials(ended.sweep)[0] / "logs" / "rank-0.log").read_text()


@pytest.mark.slow
def test_a_rerun_knows_the_options_of_the_sweep_s_own_conf(run: Run, here: Path) -> None:
    """And says which evaluation counts if that is what was changed."""
    assert grposweep(here, "init", "conf").code == 0
    (here / "conf" / "batch" / "mine.yaml").write_text(
        (here / "conf" / "batch" / "small.yaml").read_text()
    )
    run(
        "--config-dir",
        "conf",
        "trainer=fake",
        "name=s",
        "schedule.budget_completions=512",
        "-m",
        "lr=1e-3,2e-3",
    )
    assert grposweep(here, "rerun", "s", "0", "batch=mine").code == 0
    said = grposweep(here, "rerun", "s", "0", "search.last=2", "force=true").out
    assert (
        "with search.last=2, by which another evaluation of the training counts: every number"
        in said
    )


@pytest.fixture
def edited(run: Run, here: Path) -> Path:
    """A trial whose data file was edited after the sweep."""
    (here / "prompts.jsonl").write_text('{"prompt": "1+0=", "answer": "1"}\n' * 9)
    task = ("task=jsonl", "task.path=prompts.jsonl", "task.eval_prompts=1")
    folder = trials(
        run(
            "trainer=fake", "name=s", "schedule.budget_completions=512", *task, "-m", "lr=1e-3"
        ).sweep
    )[0]
    (here / "prompts.jsonl").write_text('{"prompt": "1+0=", "answer": "2"}\n' * 9)
    return folder


def data_of(ended: Ended, here: Path) -> str:
    """The prompts that the last trial of a rerun reads."""
    return Path(
        TrialInputs.read(trials(ended.sweep)[-1]).path(str(here / "prompts.jsonl"))
    ).read_text()


def test_a_rerun_reads_the_sweep_s_copy_of_an_edited_file(edited: Path, here: Path) -> None:
    """The recorded content is used although the user's file has changed, and the output says so."""
    ended = grposweep(here, "rerun", "s", "0")
    assert ended.code == 0, ended.err
    assert '"answer": "1"' in data_of(ended, here)
    assert (
        read(trials(ended.sweep)[0] / "provenance.json")["files"]
        == read(edited / "provenance.json")["files"]
    )
    assert "uses the sweep's own copy of prompts.jsonl" in ended.out


@pytest.mark.slow
def test_a_rerun_with_accepted_changes_is_another_sweep(edited: Path, here: Path) -> None:
    """``accept`` reads the present file; ``recorded`` and ``force`` keep to the copy."""
    kept = grposweep(here, "rerun", str(edited), "search.changed_files=recorded")
    accepted = grposweep(here, "rerun", str(edited), "search.changed_files=accept", "force=true")
    forced = grposweep(here, "rerun", str(edited), "search.changed_files=recorded", "force=true")
    assert kept.sweep == forced.sweep != accepted.sweep
    assert '"answer": "2"' in data_of(accepted, here)
    assert '"answer": "1"' in data_of(forced, here)
    assert "with prompts.jsonl has changed" in accepted.out


@pytest.mark.slow
def test_a_rerun_asks_for_a_file_that_has_no_copy(edited: Path, here: Path) -> None:
    """A recorded file that was edited and never copied cannot be read as it was."""
    shutil.rmtree(edited.parents[1] / "inputs")
    ended = grposweep(here, "rerun", str(edited))
    assert ended.code == 2
    assert "has no copy of prompts.jsonl" in ended.err


@pytest.mark.slow
def test_a_study_s_trial_is_repeated_by_its_command_with_the_study_s_own_values(run: Run) -> None:
    """``sweeps=smoke`` shortens every trial; so does the trial's command."""
    folder = trials(run("trainer=fake", "sweeps=smoke").sweep)[0]
    command = (folder / "command.sh").read_text().splitlines()[-1]
    # without the interpreter and run.py
    command = shlex.split(command)[2:]
    again = trials(run(*command).sweep)[0]
    assert read(again / "plan.json") == read(folder / "plan.json")
    assert again.name.split("-")[1] == folder.name.split("-")[1]


@pytest.mark.slow
def test_a_real_trial_repeats_bit_for_bit(run: Run, here: Path) -> None:
    """TRL on the tiny model: every number of every line."""
    short = (
        "schedule=steps",
        "schedule.max_steps=6",
        "schedule.evaluations=2",
        "task.eval_prompts=16",
    )
    original = trials(run(*short, "lr=1e-3", "seed=5").sweep)[0]
    ended = grposweep(here, "rerun", "0")
    again = trials(ended.sweep)[0]
    pair = [lines(folder / "metrics.jsonl") for folder in (original, again)]
    assert "every number of metrics.jsonl is the same" in ended.out
    assert first_difference(*pair) is None
    assert len(pair[1]) == 6 + 3


def test_a_configuration_that_was_cut_off_is_not_run(tmp_path: Path) -> None:
    """What is left of it may be valid, and would be another trial."""
    trial = TrialFolder(tmp_path / "0000-abcdef")
    text = "trainer:\n  kind: fake\nlr: 0.001\n"
    trial.path.mkdir()
    (trial.path / "config.yaml").write_text(text)
    TrialRecord({}, {}, text_sha256(text), 0).write(trial.path)
    assert recorded_by(trial) == {}
    (trial.path / "config.yaml").write_text(text[:20])
    with pytest.raises(UserError, match="is not what the trial began with"):
        recorded_by(trial)


def test_a_difference_of_the_code_is_named() -> None:
    """Equal provenances have none."""
    assert difference({"git_sha": "a" * 40}, {"git_sha": "b" * 40}) == "code aaaaaaa -> bbbbbbb"
    assert difference({"git_sha": "a"}, {"git_sha": "a"}) is None
