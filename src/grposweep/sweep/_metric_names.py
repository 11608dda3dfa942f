"""Refuse an objective that no evaluation can report, before anything is created.

The names are known for the fake trainer and for TRL: its trainer's are read from the installed
source, without an import. A program's own metrics, another Python's TRL and rewards with TRL's
``log_metric`` are checked at the first evaluation.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.files import read_own_yaml, read_text
from grposweep.schema import Experiment
from grposweep.schema.registries import OWN_TRAINERS, is_external, runs_trl
from grposweep.storage.inputs import code_files

ALWAYS = frozenset(read_own_yaml(__file__, "metric_names.yaml"))
_RECORDED = r'_metrics\[[^\]]+\]\[f?"([^"]+)"\]'
_OF_A_REWARD = r"\{\w*reward\w*\}"


def check_metrics(experiments: Iterable[Experiment], compares: bool) -> None:
    """Raise UserError if an objective is no metric of one of these experiments; ``compares``: there
    are several trials.
    """
    judged = list(experiments)
    for experiment in judged:
        names = known_names(experiment)
        metric = experiment.search.metric
        # A library that a reward calls may log metrics: such a name is refused only if it looks
        # misspelt.
        if not (names is None or metric in names) and (
            _near(metric, names) or not any(":" in spec for spec in experiment.task.rewards)
        ):
            raise UserError(_unknown(metric, experiment.trainer.kind, names))
        if compares or not experiment.schedule.eval_at_start:
            _check_evaluated(experiment)
    if compares:
        _check_same_reward(judged)


def _check_same_reward(experiments: Sequence[Experiment]) -> None:
    """Raise UserError if the objective is the sum of rewards that are searched: each point would
    have a measure of its own.
    """
    for key in ("rewards", "reward_weights"):
        values = dict.fromkeys(str(getattr(each.task, key)) for each in experiments)
        if len(values) > 1:
            shared = set.intersection(*(set(experiment.task.rewards) for experiment in experiments))
            name = min(shared, default="NAME").rpartition(":")[2]
            refuse_own_measure(
                f"task.{key} is searched ({', '.join(values)})", experiments[0].search.metric, name
            )


def refuse_own_measure(what: str, metric: str, name: str = "NAME") -> None:
    """Raise UserError if the objective is the sum of rewards that differ from point to point; of
    the function ``name`` they have the mean.
    """
    if metric.removeprefix("eval_") in ("reward", "reward_std"):
        raise UserError(
            f"{what}, and search.metric={metric} is the sum of these rewards: each point would be "
            f"ranked by a measure of its own. Set search.metric=eval_rewards/{name}/mean, or "
            "another that is the same for all points."
        )


def known_names(experiment: Experiment) -> frozenset[str] | None:
    """Return all metrics that the experiment's trainer reports, or None if they are not known
    before it runs.
    """
    trainer = experiment.trainer
    rewards = experiment.task.rewards
    if not is_external(trainer) and (metrics := OWN_TRAINERS[trainer.kind].metrics):
        return metrics
    is_known = runs_trl(trainer) and experiment.cluster.python is None
    recorded = _trl_names() if is_known else frozenset()
    if not recorded or not rewards or any(map(_logs_its_own, rewards)):
        return None
    names = set[str]()
    for spec in rewards:
        function = spec.rpartition(":")[2]
        names |= {re.sub(_OF_A_REWARD, function, name) for name in recorded}
    return frozenset(ALWAYS | names | {f"eval_{name}" for name in names})


@cache
def _trl_names() -> frozenset[str]:
    """Return the names in the source of the installed TRL, with a field for a reward's name; empty
    without one.
    """
    spec = find_spec("trl")
    source = Path(spec.origin or "").parent / "trainer" / "grpo_trainer.py" if spec else Path()
    return frozenset(re.findall(_RECORDED, read_text(source))) if source.is_file() else frozenset()


def _logs_its_own(spec: str) -> bool:
    """Return whether a reward function may log metrics of its own: its code names TRL's argument
    for it, or is not found.
    """
    if ":" not in spec:
        return False
    files = code_files([spec])
    return not files or any(
        "log_metric" in path.read_text(encoding="utf-8", errors="replace") for path in files
    )


def _near(metric: str, names: frozenset[str]) -> list[str]:
    """Return the names that a misspelt metric may have meant, the nearest first."""
    return get_close_matches(metric, sorted(names), n=3, cutoff=0.7)


def _unknown(metric: str, trainer: str, names: frozenset[str]) -> str:
    near = _near(metric, names)
    what = (
        f"Did you mean {' or '.join(near)}? Set search.metric={near[0]}."
        if near
        else (f"It reports {', '.join(sorted(names))}. Set search.metric to one of them.")
    )
    return f"search.metric={metric}: trainer={trainer} reports no such metric. {what}"


def _check_evaluated(experiment: Experiment) -> None:
    """Raise UserError if the objective is of evaluations, and there is none after the start."""
    search = experiment.search
    schedule = experiment.schedule
    if (
        is_external(experiment.trainer)
        or schedule.evaluations
        or not search.metric.startswith("eval_")
    ):
        return
    raise UserError(
        f"schedule.evaluations=0 with search.metric={search.metric}: no trained model is "
        "evaluated, so trials would have no result but their start. Set schedule.evaluations=2 or "
        "more, or search.metric=reward for the rewards of training."
    )
