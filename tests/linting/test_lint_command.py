"""``grposweep lint`` from the outside: exit codes, both forms, hostile files, interrupts and closed
pipes.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import PROJECT, Run, Write, environment, unwrap

NEWEST = ("--framework-version", "1.16")
PLAN = [
    "completions_per_rollout",
    "prompts_per_rollout",
    "completions_per_step",
    "prompts_per_step",
    "steps_per_rollout",
    "rollouts_per_epoch",
    "dropped_prompts",
    "total_steps",
]


def test_a_valid_recipe_is_one_quiet_line(lint: Run, recipe: Write) -> None:
    """Exit code 0, and a closing line."""
    recipe()
    ended = lint("recipe.yaml", "--processes", "8")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "1 file: 0 errors, 0 warnings\n"


def test_a_number_of_processes_that_replaces_the_file_s_own_is_printed(
    lint: Run, here: Path
) -> None:
    """Not if both are the same."""
    (here / "run.sh").write_text(
        "accelerate launch --num_processes 8 -m trl.scripts.grpo --num_generations 8\n"
    )
    assert (
        "run.sh: it is for 8 processes, and judged for 4" in lint("run.sh", "--processes", "4").err
    )
    assert lint("run.sh", "--processes", "8").err == ""


def test_the_version_that_valid_files_were_judged_by_is_stated_with_their_names(
    lint: Run, recipe: Write, here: Path
) -> None:
    """Of several files it would not be clear which one is meant."""
    (here / "requirements.txt").write_text("trl==1.16.0\n")
    recipe(name="a.yaml")
    recipe(name="b.yaml")
    ended = lint("a.yaml", "b.yaml", "--processes", "8")
    assert ended.out.splitlines()[1].startswith("a.yaml, b.yaml: judged by TRL 1.16.0 (")


def test_a_version_that_nothing_states_is_said_to_be_assumed_with_the_reason_and_the_option(
    lint: Run, recipe: Write
) -> None:
    """Which release takes all keys is no statement of the recipe."""
    recipe(start="num_generations: 8\nper_device_train_batch_size: 1\n")
    out = unwrap(lint("recipe.yaml", "--processes", "7").out)
    assert (
        "assumed, because the recipe states no version, and it accepts all keys; set "
        "--framework-version"
    ) in out
    recipe(start="num_generations: 7\nper_device_train_batch_size: 1\nmax_prompt_length: 512\n")
    out = unwrap(lint("recipe.yaml", "--processes", "8").out)
    assert re.search(
        r"states no version, and 0\.\d+\.\d to \d+\.\d+\.\d accept all keys; set --framework", out
    )


def test_an_error_points_at_its_line_and_shows_ways_out(lint: Run, recipe: Write) -> None:
    """The place, the source line, the reason, three fixes of different kinds; exit code 1."""
    recipe(start="num_generations: 8\nper_device_train_batch_size: 1\n")
    ended = lint("recipe.yaml", "--processes", "7")
    assert ended.code == 1
    assert "recipe.yaml:1: GB101 error\n       1 | num_generations: 8\n" in ended.out
    for fix in (
        "fix: gradient_accumulation_steps: 8",
        " or: num_generations: 7",
        " or: launch 8 processes",
    ):
        assert fix in ended.out
    # the closing line is one line, as guides quote it
    assert max(map(len, ended.out.splitlines()[:-1])) <= 80


def test_only_a_fix_that_the_option_alone_writes_is_marked_safe(lint: Run, recipe: Write) -> None:
    """A renamed key is; one whose value had an effect is not."""
    recipe(start="torch_dtype: bfloat16\nmax_prompt_length: 512\n")
    out = lint("recipe.yaml", "--processes", "8", *NEWEST).out
    assert "\n    fix (safe): torch_dtype removed, dtype: bfloat16\n" in out
    assert "\n    fix: max_prompt_length removed\n" in out
    assert "1 fixable with --fix (1 more with --unsafe-fixes)" in out


def test_json_has_exactly_the_promised_fields(lint: Run, recipe: Write) -> None:
    """One object per file: file, framework, version, processes, ok, plan, problems with fixes."""
    recipe(start="num_generations: 8\nper_device_train_batch_size: 1\n")
    answer = json.loads(lint("recipe.yaml", "--processes", "7", "--format", "json").out)
    assert list(answer) == ["file", "framework", "version", "processes", "ok", "plan", "problems"]
    assert (answer["file"], answer["framework"], answer["processes"], answer["ok"]) == (
        "recipe.yaml",
        "trl",
        7,
        False,
    )
    assert list(answer["plan"]) == PLAN
    problem = next(item for item in answer["problems"] if item["code"] == "GB101")
    assert list(problem) == [
        "code",
        "severity",
        "message",
        "keys",
        "line",
        "fixes",
        "safe",
        "sources",
    ]
    assert problem["safe"] == [False, False, False]
    assert problem["fixes"] == [
        {"gradient_accumulation_steps": 8},
        {"num_generations": 7},
        {"processes": 8},
    ]
    assert problem["line"] == 1
    assert "num_generations" in problem["keys"]


def test_an_invalid_batch_has_no_nonsense_in_its_plan(lint: Run, recipe: Write) -> None:
    """7 completions per rollout are known; prompts and steps of them are not."""
    recipe(start="num_generations: 8\nper_device_train_batch_size: 1\n")
    plan = json.loads(
        lint("recipe.yaml", "--processes", "7", "--dataset-size", "100", "--format", "json").out
    )["plan"]
    assert plan == {**dict.fromkeys(PLAN), "completions_per_rollout": 7, "completions_per_step": 7}


def test_a_valid_plan_has_whole_numbers(lint: Run, recipe: Write) -> None:
    """8 x 8 x 4 = 256 completions, 32 prompts, 31 rollouts of 1,000 prompts, 8 dropped."""
    recipe()
    out = lint("recipe.yaml", "--processes", "8", "--dataset-size", "1000", "--format", "json").out
    assert json.loads(out)["plan"] == dict(
        zip(PLAN, [256, 32, 256, 32, 1, 31, 8, 500], strict=True)
    )
    assert ".0" not in out.split('"plan"')[1].split("}")[0]


def test_unstated_processes_are_null_and_named_once(lint: Run, recipe: Write) -> None:
    """One warning says which counts work; numbers that depend on them are null."""
    recipe(start="num_generations: 6\nper_device_train_batch_size: 1\nmax_steps: 100\n")
    answer = json.loads(lint("recipe.yaml", "--format", "json", "--select", "GB,GT").out)
    assert (answer["processes"], answer["ok"], answer["plan"]["completions_per_rollout"]) == (
        None,
        True,
        None,
    )
    assert [item["code"] for item in answer["problems"]] == ["GT201"]
    assert "multiples of 6" in answer["problems"][0]["message"]


UNUSABLE = {
    "missing": (None, "No such file"),
    "a binary": (b"\x7fELF\0\0", "binary"),
    "not UTF-8": ("num_generations: 8 # größe".encode("latin-1"), "not UTF-8"),
    "not YAML": (b"a: [1, 2\nb: 3\n", "not YAML (line"),
    "tabs": (b"a:\n\tb: 1\n", "not YAML (line 2)"),
    "a full-width colon": (
        "# a\uff1ab\na\uff1a1\nb: 3\n".encode(),
        "Line 2 has a full-width '\uff1a': write ':'",
    ),
    "a list": (b"- 1\n- 2\n", "a list and not a mapping"),
    "a word": (b"hello\n", "a single value and not a mapping"),
    "empty": (b"", "empty"),
    "comments only": (b"# nothing\n", "empty"),
    "nested without end": (b"a: " + b"[" * 100_000 + b"]" * 100_000, "nested more than 100 levels"),
    "lists in lists": (b"- " * 100_000, "nested more than 100 levels"),
    "two documents": (b"a: 1\n---\nb: 2\n", "not YAML"),
    "an accelerate configuration": (
        b"distributed_type: DEEPSPEED\nnum_processes: 8\n",
        "accelerate configuration",
    ),
    "a script without a launch": (b"#!/bin/bash\necho hello\n", "no launch command"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_input_is_one_message_and_the_others_are_answered(
    name: str, lint: Run, recipe: Write, here: Path
) -> None:
    """Exit code 2 wins; no traceback."""
    data, words = UNUSABLE[name]
    if data is not None:
        (here / "bad.yaml").write_bytes(data)
    recipe(start="num_generations: 7\nper_device_train_batch_size: 8\n")
    ended = lint("bad.yaml", "recipe.yaml", "--processes", "8")
    assert ended.code == 2
    assert ended.err.startswith("error: bad.yaml: ")
    assert words in ended.err
    assert len(ended.err.splitlines()) == 1
    assert "recipe.yaml:1: GB101" in ended.out
    assert "1 could not be judged" in ended.out


def test_a_named_pipe_is_refused_and_not_waited_for(lint: Run, here: Path) -> None:
    """Opening one without a writer waits without end."""
    os.mkfifo(here / "pipe.yaml")
    assert (
        lint("pipe.yaml").err == "error: pipe.yaml: it cannot be read: it is not a regular file.\n"
    )


def test_unusable_input_is_answered_in_json_too(lint: Run, recipe: Write) -> None:
    """One object per file of any kind."""
    recipe()
    ended = lint("missing.yaml", "recipe.yaml", "--processes", "8", "--format", "json")
    answers = [json.loads(line) for line in ended.out.splitlines()]
    assert [(answer["file"], answer["ok"]) for answer in answers] == [
        ("missing.yaml", False),
        ("recipe.yaml", True),
    ]
    assert "No such file" in answers[0]["error"]
    assert ended.code == 2


@pytest.mark.parametrize(
    "name",
    [
        "with space.yaml",
        'it\'s "quoted".yaml',
        "new\nline.yaml",
        "--format.yaml",
        "ünï.yaml",
        "\x1b[31m.yaml",
    ],
)
def test_hostile_names_are_shown_on_one_line(name: str, lint: Run, recipe: Write) -> None:
    """Names with blanks, quotes, newlines, escapes and dashes."""
    recipe("num_generations_evil: 1\n", name)
    ended = lint("--processes", "8", "--", name)
    assert ended.code == 1
    assert "GV102 error" in ended.out.splitlines()[0]
    assert "\x1b" not in ended.out
    answer = json.loads(lint("--processes", "8", "--format", "json", "--", name).out)
    assert answer["file"] == name


def test_a_terminal_without_unicode_gets_escapes(recipe: Write) -> None:
    """No UnicodeEncodeError where a log takes ASCII only; nor for a name that is no UTF-8."""
    path = recipe("größe: 1 # ü\n", "ü.yaml")
    command = [sys.executable, "-m", "grposweep", "lint", str(path), b"\xff.yaml"]
    done = subprocess.run(
        command,
        capture_output=True,
        check=False,
        text=True,
        env=environment(PYTHONPATH=str(PROJECT / "src"), PYTHONIOENCODING="ascii"),
    )
    assert done.returncode == 2
    assert "GV110" in done.stdout
    assert "gr\\xf6\\xdfe" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("start", "end"), [("\ufeff", "\n"), ("", "\r\n"), ("\ufeff", "\r\n")])
def test_byte_order_marks_and_windows_line_ends_are_read(
    start: str, end: str, lint: Run, here: Path
) -> None:
    """Lines still count from 1."""
    (here / "r.yaml").write_bytes(f"{start}num_generations: 8{end}beta_: 1{end}".encode())
    answer = json.loads(
        lint("r.yaml", "--processes", "8", "--format", "json", "--select", "GV").out
    )
    assert [(item["code"], item["line"]) for item in answer["problems"]] == [("GV102", 2)]


def test_rules_can_be_selected_and_ignored_visibly(lint: Run, recipe: Write) -> None:
    """By code or family, together or apart; what is off is reported."""
    recipe("torch_dtype: bfloat16\n", start="num_generations: 8\nper_device_train_batch_size: 1\n")
    assert (
        lint("recipe.yaml", "--processes", "7", "--select", "GV", *NEWEST).out.count(" error\n")
        == 1
    )
    ended = lint("recipe.yaml", "--processes", "7", "--ignore", "GV101,GB101")
    assert ended.code == 0
    assert "switched off: GB101, GV101" in ended.out
    unknown = lint("recipe.yaml", "--select", "XX")
    assert (unknown.code, "Families are" in unknown.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--processes", "0"],
        ["--gpu", "0GiB"],
        ["--framework", "rllm"],
        ["--unsafe-fixes"],
        ["--fomrat", "json"],
    ],
)
def test_bad_options_are_one_message(arguments: list[str], lint: Run, recipe: Write) -> None:
    """Exit code 2, and no traceback."""
    recipe()
    ended = lint("recipe.yaml", *arguments)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_no_file_at_all_is_bad_input(lint: Run) -> None:
    """With an option, so that it is not a call for help."""
    assert lint("--format", "json").code == 2


def test_an_older_release_judges_by_its_own_rules(lint: Run, recipe: Write) -> None:
    """TRL 0.16 knows no accumulation in its divisibility rule, and has a max_prompt_length."""
    recipe(
        "max_prompt_length: 512\n",
        start="per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n",
    )
    old = lint(
        "recipe.yaml", "--processes", "7", "--framework-version", "0.16", "--select", "GB,GV"
    ).out
    new = lint("recipe.yaml", "--processes", "7", "--select", "GB,GV", *NEWEST).out
    assert ("GB101" in old, "GV101" in old) == (True, False)
    assert ("GB101" in new, "GV101" in new) == (False, True)


def test_a_rule_on_the_model_s_shape_needs_no_gpu(lint: Run, recipe: Write) -> None:
    """Qwen2.5-0.5B has 14 attention heads, which vLLM cannot divide among four GPUs."""
    engine = "use_vllm: true\nvllm_mode: colocate\nvllm_tensor_parallel_size: {}\n"
    text = f"model_name_or_path: Qwen/Qwen2.5-0.5B\nnum_generations: 8\n{engine}"
    for size, code in ((4, 1), (2, 0)):
        path = recipe(text.format(size))
        assert lint(str(path), "--processes", "4", "--select", "GT108").code == code


@pytest.mark.slow
def test_a_closed_pipe_is_no_traceback(recipe: Write, here: Path) -> None:
    """``grposweep lint ... | head -1``."""
    names = [recipe("bad_key: 1\n", f"{n}.yaml").name for n in range(300)]
    command = [sys.executable, "-m", "grposweep", "lint", *names]
    process = subprocess.Popen(
        command,
        cwd=here,
        env=environment(PYTHONPATH=str(PROJECT / "src")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


@pytest.mark.slow
def test_an_interrupt_is_no_traceback(here: Path) -> None:
    """Ctrl-C in the middle of a folder."""
    for number in range(3000):
        (here / f"{number}.yaml").write_text("num_generations: 7\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "grposweep", "lint", ".", "--format", "json"],
        cwd=here,
        env=environment(PYTHONPATH=str(PROJECT / "src")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a background process inherits deafness
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    # the rest does not fit into the pipe, so it has not ended
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"")


def test_lint_imports_nothing_heavy(recipe: Write) -> None:
    """Half a second from the keyboard to the answer leaves no room for torch, Hydra or Optuna."""
    code = (
        "import sys; from grposweep.cli import main; sys.argv[1:] = ['lint', sys.argv[1], "
        "'--processes', '8']\n"
        "try: main()\nexcept SystemExit as end: print(end.code, sorted(HEAVY & set(sys.modules)))"
    ).replace(
        "HEAVY",
        "{'torch','transformers','trl','hydra','omegaconf','optuna','numpy','scipy','rich','pydantic','grposweep.schema'}",
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(recipe())],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PYTHONPATH=str(PROJECT / "src")),
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_rules_are_listed_and_explained(lint: Run) -> None:
    """All of them by family, one family, one rule in full."""
    everything = lint(command="rules").out
    assert {"GB  the training batch", "GV  keys and versions"} <= set(everything.splitlines())
    assert "GB101" not in lint("GV", command="rules").out
    one = lint("gv103", command="rules").out
    assert one.startswith("GV103 (warning)")
    assert "argparse" in one
    assert lint("GX", command="rules").code == 2


def test_rules_are_found_by_words(lint: Run) -> None:
    """In the family's topic, the title, the first line and the fields that a rule reads; all of the
    words.
    """
    found = lint("kl", command="rules").out
    assert ("GK101" in found, "GK the KL" in unwrap(found), "GB101" in found) == (
        True,
        True,
        False,
    )
    assert "GS202" in lint("warmup", command="rules").out
    both = lint("learning", "rate", command="rules").out
    assert ("GS206" in both, "GA204" in both, "GK101" in both) == (True, True, False)
    nothing = lint("learning", "xyzzy", command="rules")
    assert (nothing.code, "no rule with these words" in nothing.err) == (2, True)
