"""Which dials decide whether a trial is among the best: Optuna's PED-ANOVA, which needs neither scikit-learn nor a model."""

from typing import Any

from grposweep.report.read import SweepView
from grposweep.report.trial import Direction
from grposweep.search.space import Dial, read_space

ENOUGH = 10  # finished trials; below that the answer is noise
QUANTILE = 0.1  # of the trials, that count as the best; Optuna wants five of them at the least
FEWEST_BEST = 5


def importances(view: SweepView) -> dict[str, float]:
    """Each dial's share, most first; empty where there are too few finished trials or dials, or the space is unreadable."""
    try:
        dials = {dial.name: dial for dial in read_space(view.settings.get("space") or ()).dials}
    except (KeyError, TypeError, AttributeError):
        return {}
    finished = [trial for trial in view.ranked if trial.role == "search" and set(trial.point) <= set(dials)]
    if len(dials) < 2 or len(finished) < ENOUGH:
        return {}
    told = [(dict(trial.point), trial.objective or 0.0) for trial in finished]
    return _evaluate(told, dials, view.direction)


def _evaluate(
    told: list[tuple[dict[str, Any], float]], dials: dict[str, Dial], direction: Direction
) -> dict[str, float]:
    import optuna  # 0.8 s that only a report pays

    from grposweep.search.sampler import distribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction=direction)
    try:
        for point, value in told:
            kinds = {name: distribution(dials[name]) for name in point}
            study.add_trial(optuna.trial.create_trial(params=point, distributions=kinds, value=value))
        quantile = min(max(QUANTILE, FEWEST_BEST / len(told)), 0.5)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
    except (ValueError, RuntimeError):  # a point outside the space, or all trials alike
        return {}
