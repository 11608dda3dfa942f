"""Rewards: what the built-in ones pay, how a user's own is found, and what is reported when it
misbehaves.
"""

import multiprocessing
import threading
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grposweep.schema import Task
from grposweep.train.rewards import (
    RewardError,
    exact,
    format,
    load_reward,
    load_rewards,
    math,
    try_rewards,
)
from refused import says


def test_exact_ignores_surrounding_space_and_reads_conversations() -> None:
    """TRL hands over turns where prompts are conversations."""
    chat = [{"role": "assistant", "content": "46"}]
    assert exact(completions=[" 46\n", "47", chat], answer=["46", "46", "46"]) == [1.0, 0.0, 1.0]


def test_math_compares_values_and_gives_0_to_what_it_cannot_read() -> None:
    """Half-written LaTeX is a wrong answer, not a crash."""
    completions = ["so it is \\boxed{1/2}", "The answer is 0.5", "7", "\\frac{", ""]
    assert math(completions=completions, answer=["0.5"] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_math_works_in_a_thread_and_in_a_forked_process() -> None:
    """math-verify's time limits are signals, which only a main thread may set."""
    paid: list[float] = []
    thread = threading.Thread(
        target=lambda: paid.extend(math(completions=["\\boxed{72}"], answer=["72"]))
    )
    thread.start()
    thread.join()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert (
            pool.apply(math, kwds={"completions": ["\\boxed{72}"], "answer": ["72"]})
            == paid
            == [1.0]
        )


def test_format_wants_both_tags_on_lines_of_their_own() -> None:
    """As Open-R1 wrote it."""
    good = "<think>\na\nb\n</think>\n<answer>\n4\n</answer>"
    assert format(completions=[good, good.replace("\n", ""), "4"]) == [1.0, 0.0, 0.0]


def test_a_reward_may_live_in_a_file_and_name_only_the_columns_it_reads(tmp_path: Path) -> None:
    """No **kwargs needed."""
    (tmp_path / "mine.py").write_text(
        "def short(completions, level):\n    return [l / len(c) for c, l in zip(completions, "
        "level)]\n"
    )
    reward = load_reward(f"{tmp_path}/mine.py:short")
    assert reward(prompts=["p"], completions=["ab"], level=[1], answer=["x"]) == [0.5]
    assert reward.__name__ == "short"


def test_a_reward_file_is_found_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the user is."""
    (tmp_path / "mine.py").write_text(
        "def one(completions, **_): return [1 for _ in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_reward("mine.py:one")(prompts=[], completions=["a", "b"]) == [1.0, 1.0]


def test_a_reward_may_live_in_a_package() -> None:
    """The dotted way."""
    assert load_reward("grposweep.train.rewards:exact")(
        prompts=["p"], completions=["4"], answer=["4"]
    ) == [1.0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1.0]", "returned 1 values for 2 completions"),
        ("return ['good', 'bad']", "no list of numbers"),
        ("return 3", "no list of numbers"),
        ("raise KeyError('gold')", "raised KeyError: 'gold'"),
        # NaN would be taken for a completion that cannot be judged, which is None.
        ("return [1.0, float('nan')]", r"mine\.py:bad .* returned .*row 1"),
        ("return [1.0, float('inf')]", r"mine\.py:bad .* returned .*row 1"),
        ("return [1.0, '1']", r"mine\.py:bad .* returned .*no list of numbers"),
    ],
)
def test_a_misbehaving_reward_is_named_with_its_file(
    tmp_path: Path, body: str, message: str
) -> None:
    """One number a completion, or an error that can be acted on."""
    (tmp_path / "mine.py").write_text(f"def bad(completions, **_):\n    {body}\n")
    with pytest.raises(RewardError, match=message) as error:
        load_reward(f"{tmp_path}/mine.py:bad")(prompts=["p", "p"], completions=["a", "b"])
    assert f"{tmp_path}/mine.py" in str(error.value)


@pytest.mark.parametrize(
    ("body", "completion", "told"),
    [
        ("[c.strip() == 'x' for c in completions]", [{"role": "assistant", "content": "x"}], True),
        ("[re.match('x', c) for c in completions]", [{"role": "assistant", "content": "x"}], True),
        (
            "[c[0]['content'][9] for c in completions]",
            [{"role": "assistant", "content": "x"}],
            False,
        ),
        ("[c.text for c in completions]", "x", False),
    ],
)
def test_a_reward_that_takes_messages_for_text_is_told_how_to_read_them(
    tmp_path: Path, body: str, completion: object, told: bool
) -> None:
    """Only if completions are messages, and the error is that of a value of another type."""
    (tmp_path / "mine.py").write_text(
        f"import re\n\ndef bad(completions, **_):\n    return {body}\n"
    )
    with pytest.raises(RewardError) as error:
        load_reward(f"{tmp_path}/mine.py:bad")(prompts=["p"], completions=[completion])
    assert ('read its text as completions[i][0]["content"]' in str(error.value)) is told


def test_a_reward_that_takes_what_the_data_lack_names_their_columns(tmp_path: Path) -> None:
    """And not how many numbers it should return."""
    (tmp_path / "mine.py").write_text(
        "def one(completions, solution, scale=1.0, **_):\n    return [scale]\n"
    )
    with pytest.raises(
        RewardError, match="It gets prompts, completions, and the data's columns answer, carry"
    ) as error:
        load_reward(f"{tmp_path}/mine.py:one")(
            prompts=["p"], completions=["a"], carry=[1], answer=["a"]
        )
    assert "Return one number" not in str(error.value)


def test_a_reward_that_raises_shows_its_own_line_and_what_it_worked_on(tmp_path: Path) -> None:
    """The user's frame, not ours or a library's; values are cut."""
    one = "def one(text):\n    return json.loads(text)['x']\n"
    bad = "def bad(completions, **_):\n    return [one(c) for c in completions]\n"
    (tmp_path / "mine.py").write_text(f"import json\n\n{one}\n{bad}")
    with pytest.raises(RewardError) as error:
        load_reward(f"{tmp_path}/mine.py:bad")(
            prompts=["p", "p"], completions=['{"x": 1}', "no json" * 99]
        )
    said = str(error.value)
    assert (
        f"in {tmp_path}/mine.py, line 4 (return json.loads(text)['x']) with text='no json" in said
    )
    assert len(said) < 700


def test_if_the_only_reward_judges_nothing_the_training_ends_with_that_message(
    tmp_path: Path,
) -> None:
    """Together with another reward it may leave a batch to that one."""
    (tmp_path / "mine.py").write_text(
        "def none(completions, **_):\n    return [None for _ in completions]\n"
    )
    spec = f"{tmp_path}/mine.py:none"
    with pytest.raises(RewardError, match="returned only None, for 2 completions"):
        load_rewards(Task(rewards=[spec]))[0](prompts=["p", "p"], completions=["a", "b"])
    assert load_rewards(Task(rewards=[spec, "exact"]))[0](prompts=["p"], completions=["a"]) == [
        None
    ]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["exakt"], "no built-in reward"),
        (["nowhere.py:f"], "there is no file"),
        (["no.such.module:f"], "ModuleNotFoundError"),
        (["grposweep.train.rewards:nothing"], "has no function nothing"),
        ([], "nothing would be learnt"),
        (["hidden.py:one"], "yaml.py is not used: 'import yaml' finds the installed package"),
        (["mine.py:Judge"], "a class ... Write judge = Judge() in mine.py, and set mine.py:judge"),
    ],
)
def test_a_reward_that_cannot_be_loaded_is_bad_input(
    specs: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt one, a file that a package hides; or none at all, which TRL would say after
    loading the model.
    """
    (tmp_path / "yaml.py").write_text("points = 1.0\n")
    (tmp_path / "hidden.py").write_text(
        "from yaml import points\n\n\ndef one(completions):\n    return [points]\n"
    )
    (tmp_path / "mine.py").write_text("class Judge: pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says(words)):
        load_rewards(Task(rewards=specs))


def test_async_rewards_share_one_event_loop(tmp_path: Path) -> None:
    """A client of a server that one call opens still works in the next."""
    path = tmp_path / "rewards.py"
    path.write_text(
        "import asyncio\nseen = set()\nasync def later(completions, **_):\n    await "
        "asyncio.sleep(0)\n    seen.add(asyncio.get_running_loop())\n    return [len(seen)]\n"
    )
    later = load_reward(f"{path}:later")
    assert later(prompts=["p"], completions=["a"]) == later(prompts=["p"], completions=["b"]) == [1]


def test_a_reward_that_edits_its_arguments_changes_nothing_for_the_next(tmp_path: Path) -> None:
    """Texts, turns and columns are copies."""
    path = tmp_path / "rewards.py"
    path.write_text(
        "def spoil(completions, answer, **_):\n    completions[0][0]['content'] = answer[0] = "
        "''\n    return [0.0]\n"
    )
    completions = [[{"role": "assistant", "content": "46"}]]
    answer = ["46"]
    for spec in (f"{path}:spoil", "exact"):
        paid = load_reward(spec)(prompts=["45+1="], completions=completions, answer=answer)
    assert paid == [1.0]


def test_a_reward_that_keeps_a_state_is_named_because_no_checkpoint_holds_it(
    tmp_path: Path,
) -> None:
    """An attribute of an object, or a variable of its file; a constant is no state."""
    (tmp_path / "counts.py").write_text(
        "CALLS, LIMIT = [], 3\n"
        "def listed(completions, **_):\n    CALLS.append(1)\n    return [1.0] * len(completions)\n"
        "class Counter:\n    calls, limit = 0, 3\n"
        "    def __call__(self, completions, **_):\n        self.calls += 1\n        return "
        "[1.0] * len(completions)\n"
        "counter = Counter()\n"
        "def pure(completions, **_):\n    return [float(LIMIT)] * len(completions)\n"
    )
    names = ["listed", "counter", "pure"]
    rewards = load_rewards(
        Task(rewards=["exact", *(f"{tmp_path / 'counts.py'}:{name}" for name in names)])
    )
    notes = try_rewards(rewards, [{"prompt": "1+1=", "answer": "2"}])
    assert [
        "listed changes CALLS when" in notes[0],
        "counter changes self.calls when" in notes[1],
    ] == [True, True]
    assert len(notes) == 2
