"""``lint --fix``: only what changes is touched, nothing gets worse, and a second run has nothing to
do.
"""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grporecipe.linting.apply_fixes import edit, fix_file, render_value
from grporecipe.linting.linter import Diagnostic, LintResult, lint_recipe, select_rules
from grporecipe.reading.load import Options, load_recipe
from support import Run, Write, examples

NEWEST = ("--framework-version", "1.16")
OLD = """\
# An old recipe, well commented
model_name_or_path: 'Qwen/Qwen2.5-1.5B-Instruct'   # quotes stay

torch_dtype: bfloat16   # renamed
num_generations:   8    # odd blanks stay
per_device_train_batch_size: 8
learning_rate: 1e-6
warmup_ratio: 0.1 # a share
max_steps: 100
evaluation_strategy: "no"
save_steps: 100
overwrite_output_dir: true
reward_funcs:
  - accuracy   # a list, indented
# the end
"""
FIXED = """\
# An old recipe, well commented
model_name_or_path: 'Qwen/Qwen2.5-1.5B-Instruct'   # quotes stay

dtype: bfloat16   # renamed
num_generations:   8    # odd blanks stay
per_device_train_batch_size: 8
learning_rate: 1.0e-06
warmup_steps: 0.1 # a share
max_steps: 100
eval_strategy: "no"
save_steps: 100
reward_funcs:
  - accuracy   # a list, indented
# the end
"""


@pytest.mark.parametrize(("mark", "end"), [("", "\n"), ("", "\r\n"), ("\ufeff", "\n")])
def test_safe_fixes_keep_comments_order_quotes_and_line_ends(
    mark: str, end: str, lint: Run, recipe: Write
) -> None:
    """Byte for byte, but for the keys that are fixed."""
    path = recipe(start=(mark + OLD).replace("\n", end))
    ended = lint("recipe.yaml", "--processes", "8", "--fix", "--select", "GV", *NEWEST)
    assert (ended.code, ended.err) == (0, "")
    assert path.read_bytes() == (mark + FIXED).replace("\n", end).encode()
    assert "recipe.yaml: fixed GV101: torch_dtype removed, dtype: bfloat16" in ended.out
    assert "5 fixes written" in ended.out


def test_a_second_run_changes_nothing(lint: Run, recipe: Write) -> None:
    """Idempotent, and the file is not even touched."""
    path = recipe(start=OLD)
    lint("recipe.yaml", "--processes", "8", "--fix", "--unsafe-fixes")
    before = path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino
    ended = lint("recipe.yaml", "--processes", "8", "--fix", "--unsafe-fixes")
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert "written" not in ended.out


def test_fixes_that_change_training_wait_for_the_other_flag(lint: Run, recipe: Write) -> None:
    """A batch with other sizes is another batch."""
    path = recipe(start="num_generations: 8\nper_device_train_batch_size: 1 # small\n")
    first = lint("recipe.yaml", "--processes", "7", "--fix", "--select", "GB")
    assert first.code == 1
    assert "1 fixable by --fix --unsafe-fixes (changes training)" in first.out
    assert path.read_text() == "num_generations: 8\nper_device_train_batch_size: 1 # small\n"
    second = lint("recipe.yaml", "--processes", "7", "--fix", "--unsafe-fixes", "--select", "GB")
    assert second.code == 0
    assert path.read_text() == (
        "num_generations: 8\nper_device_train_batch_size: 1 # "
        "small\ngradient_accumulation_steps: 8\n"
    )


def test_a_warmup_below_zero_is_fixed_where_it_is_set(lint: Run, recipe: Write) -> None:
    """A share of warmup in the same file does not count then, and keeps its value."""
    path = recipe(
        start=(
            "warmup_steps: -1\nwarmup_ratio: 0.1\nnum_generations: "
            "8\nper_device_train_batch_size: 8\n"
        )
    )
    assert "warmup_steps=-1" in lint("recipe.yaml").out
    assert lint("recipe.yaml", "--fix", "--unsafe-fixes").code == 0
    assert yaml.safe_load(path.read_text())["warmup_ratio"] == 0.1
    assert yaml.safe_load(path.read_text())["warmup_steps"] == 0


def test_an_evaluation_size_is_a_safe_fix(lint: Run, recipe: Write) -> None:
    """It changes no training."""
    path = recipe("eval_strategy: steps\neval_steps: 50\nper_device_eval_batch_size: 4\n")
    assert lint("recipe.yaml", "--processes", "1", "--fix").code == 0
    assert "per_device_eval_batch_size: 8\n" in path.read_text()


def test_duplicate_keys_without_effect_are_removed(lint: Run, recipe: Write) -> None:
    """The last line stays as it is."""
    path = recipe("beta: 0.1 # first\nepsilon: 0.3\nbeta: 0.0 # last\n")
    assert lint("recipe.yaml", "--processes", "8", "--fix", "--select", "GV", *NEWEST).code == 0
    assert path.read_text().endswith("save_steps: 100\nepsilon: 0.3\nbeta: 0.0 # last\n")


def test_scripts_are_not_rewritten_and_that_is_reported(lint: Run, here: Path) -> None:
    """Bash is not YAML."""
    script = "accelerate launch --num_processes 8 train_grpo.py --torch_dtype bfloat16\n"
    (here / "run.sh").write_text(script)
    ended = lint("run.sh", "--fix", *NEWEST)
    assert (here / "run.sh").read_text() == script
    assert "shell scripts are not rewritten" in ended.out


def test_links_and_modes_survive(lint: Run, recipe: Write, here: Path) -> None:
    """The file behind a link is written, not the link."""
    path = recipe("torch_dtype: auto\n", "real.yaml")
    path.chmod(0o640)
    (here / "link.yaml").symlink_to("real.yaml")
    assert lint("link.yaml", "--processes", "8", "--fix", *NEWEST).code == 0
    assert (here / "link.yaml").is_symlink()
    assert "dtype: auto\n" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_out_of_a_repository_is_left_alone(
    lint: Run, recipe: Write, here: Path, tmp_path: Path
) -> None:
    """A cloned repository must not reach the user's other files."""
    (here / ".git").mkdir()
    own = tmp_path / "own.yaml"
    recipe("torch_dtype: auto\n").rename(own)
    (here / "link.yaml").symlink_to(own)
    before = own.read_text()
    ended = lint(".", "--processes", "8", "--fix", *NEWEST)
    assert own.read_text() == before
    assert f"Run lint on {own} to fix that file" in " ".join((ended.out + ended.err).split())


def test_json_answers_are_about_the_fixed_file(lint: Run, recipe: Write) -> None:
    """One object per file, as without --fix."""
    recipe("torch_dtype: auto\n")
    answer = json.loads(
        lint("recipe.yaml", "--processes", "8", "--fix", "--format", "json", *NEWEST).out
    )
    assert answer["ok"] is True


LINES = st.lists(
    st.sampled_from(
        [
            "num_generations: 8",
            "num_generations: '8'  # quoted",
            "per_device_train_batch_size: 3",
            "torch_dtype: auto # type",
            "gradient_accumulation_steps: 2",
            "warmup_ratio: 0.1",
            "warmup_steps: 5",
            "learning_rate: 1e-6",
            "beta: 0.1",
            "beta: -0.1",
            "beta: null",
            "eval_strategy: no",
            "evaluation_strategy: steps",
            "per_device_eval_batch_size: 3",
            "max_prompt_length: 512",
            "num_generatons: 4",
            "loss_type: gpro",
            "sync_ref_model: true",
            "# a comment",
            "",
            "reward_funcs:\n  - a # first\n  - b",
            "reward_funcs: accuracy",
            "max_steps: 10.0",
            "use_vllm: 'no'",
            "lr: 1e-5",
        ]
    ),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(lines=LINES, unsafe=st.booleans(), processes=st.sampled_from([None, 1, 7, 8]))
def test_fixes_make_no_file_worse_and_a_second_run_changes_nothing(
    lines: list[str], unsafe: bool, processes: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No new error, comments in place, and nothing left for a second run."""
    path = tmp_path_factory.mktemp("fix") / "recipe.yaml"
    path.write_text("\n".join(["seed: 1", *lines]) + "\n", encoding="utf-8")
    options, comments = Options("trl", processes=processes), path.read_text().count("# a comment")
    before = lint_recipe(load_recipe(path, options))
    repaired = fix_file(path, options, select_rules(), unsafe)
    after = lint_recipe(load_recipe(path, options))
    assert {found.code for found in errors_of(after)} <= {found.code for found in errors_of(before)}
    assert len(errors_of(after)) <= len(errors_of(before))
    assert repaired.result.diagnostics == after.diagnostics
    assert path.read_text().count("# a comment") == comments
    text = path.read_text()
    assert fix_file(path, options, select_rules(), unsafe).changes == ()
    assert path.read_text() == text


def errors_of(verdict: LintResult) -> list[Diagnostic]:
    """Those that prune."""
    return [found for found in verdict.diagnostics if found.severity == "error"]


EDITS = {
    "a flow mapping": ("{a: 1, b: 2}\n", {"a": None}),
    "two keys on a line with a comment key": ("{a: 1}", {"c": 1}),
    "an anchor that others use": ("a: &x 1\nb: *x\n", {"a": None}),
    "a mapping that holds itself": ("a: &a {b: *a}\nc: &c [*c]\n", {"c": None, "d": 1}),
    "a merge": ("x: &x {a: 1}\n<<: *x\n", {"a": 2}),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_cannot_be_edited_cleanly_is_left_alone(name: str) -> None:
    """Rather no fix than another file."""
    text, change = EDITS[name]
    edited = edit(text, change)
    assert edited is None or yaml.safe_load(edited) == {
        **{k: v for k, v in yaml.safe_load(text).items() if k not in change},
        **{k: v for k, v in change.items() if v is not None},
    }


@pytest.mark.parametrize(
    ("text", "change", "expected"),
    [
        ("a: 1 # x\nb: 2", {"b": 3}, "a: 1 # x\nb: 3"),
        ("a: 1 # x\nb: 2", {"c": 3}, "a: 1 # x\nb: 2\nc: 3\n"),
        ("a:\nb: 2\n", {"a": 3}, "a: 3\nb: 2\n"),
        ("a:\n  - 1\n  - 2\n# about b\nb: 2\n", {"a": None}, "# about b\nb: 2\n"),
        ("a: |\n  text\n  more\nb: 2\n", {"a": None}, "b: 2\n"),
        ('"a": 1\n', {"a": None, "b": 1}, "b: 1\n"),
        ("a: 1\nb: 2\n", {"a": None, "b": 5}, "b: 5\n"),
    ],
)
def test_edits_are_where_the_keys_are(text: str, change: dict[str, object], expected: str) -> None:
    """Nothing else moves."""
    assert edit(text, change) == expected


@pytest.mark.slow
@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=12),
    )
)
def test_values_are_read_back_as_they_were_written(value: object) -> None:
    """Also "no", "1e-6" and "~"."""
    back = yaml.safe_load(f"a: {render_value(value)}\n")["a"]
    assert back == value
    assert type(back) is type(value)
