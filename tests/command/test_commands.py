"""Launch commands as people write them: each reaches its trainer with the values of every point, or
is refused by name.
"""

import operator
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grposweep.command.ask import ask
from own_commands import OwnCommand, read_commands, stage, sweep
from support import lines, read, sampled, trials

pytestmark = pytest.mark.slow

ALL = read_commands()
SWEPT = [one for one in ALL if one.in_trial or not one.refused]
# what a command leaves that was run on
LEFT = ("submitted", "trained.txt")
NAMES = operator.attrgetter("name")


@pytest.mark.parametrize("one", sampled(ALL, 6, pytest.mark.thorough), ids=NAMES)
def test_an_unchanged_command_is_asked(here: Path, one: OwnCommand) -> None:
    """Its values are known or unknown as its script says, or a message says why it cannot be swept.
    Nothing trains meanwhile.
    """
    variables = stage(one, here)
    if one.refused and not one.in_trial:
        with pytest.raises(UserError) as raised:
            ask(one.command, here, variables)
        assert one.refused in str(raised.value)
    else:
        found = ask(one.command, here, variables)
        assert one.given.items() <= found.record["given"].items()
        assert (found.how, found.record["unknown"]) == (one.how, one.unknown), found.why
    assert not [name for name in LEFT if (here / name).exists()]


@pytest.mark.parametrize("one", sampled(SWEPT, 6, pytest.mark.thorough), ids=NAMES)
def test_every_trial_trains_with_its_own_values(here: Path, one: OwnCommand) -> None:
    """What its trainer got are the point's values, and it trained with them; or it was refused
    before its first step.
    """
    if not one.is_installed:
        pytest.skip(f"needs {one.needs}")
    ended = sweep(one, here, stage(one, here))
    if one.refused:
        assert ended.code != 0
        assert one.refused in " ".join((ended.out + ended.err).split())
        assert not list(here.glob("outputs/s/trials/*/metrics.jsonl"))
        return
    assert ended.code == 0, ended
    done = trials(here / "outputs" / "s")
    trained = [read(folder / "trained_with.json")["values"]["learning_rate"] for folder in done]
    assert trained == one.rates
    rewards = [{line["reward"] for line in lines(folder / "metrics.jsonl")} for folder in done]
    assert one.real or rewards == [{rate} for rate in one.rates]
