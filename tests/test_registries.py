"""One line registers a tracker, a sampler or an early-stopping policy: checks, choices and
construction follow.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import UserError
from grposweep.config.compose import options, unknown_option
from grposweep.config.validate import check_choice, choices
from grposweep.process import CONF
from grposweep.schema import AUTO, Tracker
from grposweep.schema.registries import POLICIES, SAMPLERS, TASKS, TRACKERS, Lazy
from grposweep.search.early_stopping import StoppingPolicy

BUILDS: list[Any] = [
    *POLICIES.values(),
    *TASKS.values(),
    *TRACKERS.values(),
    *(s.build for s in SAMPLERS.values() if s.build),
]


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.target)
def test_every_registered_target_exists(build: Lazy) -> None:
    """A module and a function or class in it."""
    assert callable(build.load())


def test_names_are_read_without_torch_or_optuna() -> None:
    """So --help and the configuration's checks stay fast."""
    code = (
        "import sys, grposweep.config.validate; print(*{'torch', 'optuna', 'transformers'} & "
        "sys.modules.keys())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == ""


@pytest.mark.parametrize(
    ("key", "registry"),
    [("search.stopping", POLICIES), ("task.kind", TASKS), ("tracker.kind", TRACKERS)],
)
def test_what_is_registered_is_a_choice_and_nothing_else(
    key: str, registry: dict[str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line is enough."""
    with pytest.raises(UserError, match=f"{key}=toy"):
        check_choice(key, "toy")
    monkeypatch.setitem(registry, "toy", StoppingPolicy)
    check_choice(key, "toy")
    assert "toy" in choices(key)


def test_a_tracker_registered_by_one_line_is_built_on_the_first_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other ranks have the null object."""
    from grposweep.train import tracker

    class Toy(tracker.Tracker):
        """Tracks nothing either."""

    monkeypatch.setitem(TRACKERS, "toy", Toy)
    options = Tracker(kind="toy")
    assert type(tracker.build_tracker(options, tmp_path, is_main=True)) is Toy
    assert type(tracker.build_tracker(options, tmp_path, is_main=False)) is tracker.Tracker


def test_no_rule_of_trl_reads_a_field_that_the_table_says_none_reads() -> None:
    """So a recipe that sets it is not counted as judged by it."""
    from grporecipe.model.setting import ROWS
    from grporecipe.rules.check import REGISTRY

    read = frozenset().union(*(rule.reads for rule in REGISTRY.values()))
    assert {name for name, row in ROWS.items() if not row.judged}.isdisjoint(read)


def test_search_has_an_option_for_each_sampler() -> None:
    """So search=NAME and search.sampler=NAME take the same names, and their messages list the same
    ones.
    """
    assert options(CONF, "search") == sorted([AUTO, *SAMPLERS])


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("search", "median", "set search.stopping=median"),
        ("search.sampler", "rank", "set search.stopping=rank"),
        ("search.stopping", "tpe", "set search=tpe"),
    ],
)
def test_a_sampler_is_distinguished_from_a_stopping_policy(
    key: str, value: str, instead: str
) -> None:
    """A name under the key of the other one is refused with the key that takes it."""
    if key == "search":
        assert instead in unknown_option(key, value, options(CONF, key))
        return
    with pytest.raises(UserError, match=instead):
        check_choice(key, value)
