"""Which parameters decide whether a point is among the best: Optuna's PED-ANOVA, which needs neither scikit-learn nor a model.

Source: Watanabe, Bansal and Hutter 2023, PED-ANOVA: Efficiently quantifying hyperparameter importance in arbitrary subspaces.
Parameters that only some points ask (conditional ones) are left out: they cannot be compared with the others.
"""

import random
from collections.abc import Mapping, Sequence

from grposweep.search.space import Parameter, Point

ENOUGH = 10  # finished trials; below that the answer is noise
QUANTILE = 0.1  # of the trials, that count as the best; Optuna wants five of them at the least
FEWEST_BEST = 5
MOST = 1000  # trials looked at, drawn at random: as good as all of them, and five thousand take seconds


def find_importances(
    parameters: Mapping[str, Parameter], points: Sequence[Point], values: Sequence[float], maximize: bool
) -> dict[str, float]:
    """Each parameter's share, most first, from points and what they are worth; empty where there are too few of either."""
    if len(parameters) < 2 or len(points) < ENOUGH:
        return {}
    import optuna  # 0.8 s that only whoever asks pays

    from grposweep.search.sampler import distribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize" if maximize else "minimize")
    kinds = {name: distribution(parameter) for name, parameter in parameters.items()}
    looked_at = random.Random(0).sample(list(zip(points, values, strict=True)), min(len(points), MOST))
    try:
        for point, value in looked_at:
            asked = {name: kinds[name] for name in point}
            study.add_trial(optuna.trial.create_trial(params=dict(point), distributions=asked, value=value))
        quantile = min(max(QUANTILE, FEWEST_BEST / len(looked_at)), 0.5)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
    except (ValueError, RuntimeError):  # a point outside the space, or all trials alike
        return {}
