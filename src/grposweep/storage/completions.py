"""completions.jsonl: a few held-out completions of each evaluation, one per line, bounded in size.

The file is replaced as a whole at each evaluation. So a resumed trial writes no completion twice,
and evaluations in the middle can be dropped when the file would exceed `TRIAL_BYTES`.

prompt_rewards.jsonl: the mean reward of each held-out prompt at each evaluation, so that trials are
compared by prompt.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Self

from grporecipe.files import (
    Config,
    Json,
    append_line,
    finite_or_none,
    read_lines,
    text_or,
    write_text,
)
from grposweep.storage import paths
from grposweep.storage.records import as_list, as_mapping, read_fields

# of one evaluation
EVALUATION_BYTES = 32 * 1024
# of a trial; the first, the last and the best evaluation are always kept
TRIAL_BYTES = 1024 * 1024
# characters of one text
LONGEST, SHORTEST = 8_000, 64


@dataclass(frozen=True)
class KeptCompletion:
    """One line of completions.jsonl: a completion sampled at the evaluation after ``step``
    optimizer steps.

    ``value`` is the objective's metric at that evaluation, ``reward`` the weighted reward of this
    completion and ``rewards`` its parts (None: not judged). ``truncated``: it ran into the length
    limit. ``template``: it is the evaluation's most frequent text. Long texts are shortened in the
    middle.
    """

    step: int
    attempt: int = 0
    value: float | None = None
    prompt_id: int = 0
    prompt: str = ""
    completion: str = ""
    reward: float | None = None
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    truncated: bool = False
    template: bool = False

    @classmethod
    def parse(cls, line: Config) -> Self:
        """Return the completion of a line that has an integer ``step``."""
        known = {**read_fields(cls, line), "step": line["step"]}
        known |= {name: finite_or_none(line.get(name)) for name in ("value", "reward")}
        rewards = {str(k): finite_or_none(v) for k, v in as_mapping(line.get("rewards")).items()}
        return cls(**known, rewards=rewards)

    def line(self) -> str:
        """Return the JSON line, with its line end."""
        content = asdict(self) | {
            "value": finite_or_none(self.value),
            "reward": finite_or_none(self.reward),
        }
        content["rewards"] = {name: finite_or_none(value) for name, value in self.rewards.items()}
        return json.dumps(content, allow_nan=False) + "\n"


# by optimizer step
Evaluations = dict[int, list[KeptCompletion]]


def read_completions(trial: Path) -> Evaluations:
    """Return a trial's kept completions by step, in order; empty if the file is missing or is not
    grposweep's.
    """
    path = trial / paths.COMPLETIONS
    try:
        if path.stat().st_size > 4 * TRIAL_BYTES:
            return {}
    except OSError:
        return {}
    evaluations: Evaluations = {}
    for line in read_lines(path, step=int):
        evaluations.setdefault(line["step"], []).append(KeptCompletion.parse(line))
    return dict(sorted(evaluations.items()))


def keep_completions(
    trial: Path, completions: Sequence[KeptCompletion], maximize: bool = True
) -> None:
    """Add one evaluation to the file. It replaces an earlier one of the same step."""
    if completions:
        kept = read_completions(trial) | {completions[0].step: fit_texts(completions)}
        thinned = thin_evaluations(dict(sorted(kept.items())), maximize)
        write_text(trial / paths.COMPLETIONS, "".join(map(_text, thinned.values())))


def rewind_completions(trial: Path, step: int | None) -> None:
    """Drop evaluations after a checkpoint's step (None: all), because they will run again."""
    for name in (paths.COMPLETIONS, paths.PROMPT_REWARDS):
        if (trial / name).exists():
            rewind_lines(trial / name, step)


def rewind_lines(path: Path, step: int | None) -> None:
    """Drop a file's lines after a checkpoint's step (None: all)."""
    kept = []
    for line in read_lines(path, step=int):
        if step is not None and line["step"] <= step:
            kept.append(json.dumps(line) + "\n")
    write_text(path, "".join(kept))


def fit_texts(completions: Sequence[KeptCompletion]) -> list[KeptCompletion]:
    """Return the completions with texts shortened until all lines together have at most
    `EVALUATION_BYTES`.
    """
    longest = LONGEST
    while True:
        fitted = [
            replace(
                kept,
                prompt=shorten_text(kept.prompt, longest),
                completion=shorten_text(kept.completion, longest),
            )
            for kept in completions
        ]
        if longest <= SHORTEST or len(_text(fitted)) <= EVALUATION_BYTES:
            return fitted
        longest //= 2


def shorten_text(text: str, longest: int) -> str:
    """Return the start and the end of a text of more than ``longest`` characters, with a note of
    what is left out.
    """
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end]} [... {len(text) - longest:,} characters ...] {text[-end:]}"


def best_step(evaluations: Evaluations, maximize: bool = True) -> int | None:
    """Return the step of the evaluation with the best value, the earliest of equal ones; None if no
    evaluation has a value.
    """
    values: dict[int, float] = {}
    for step, kept in evaluations.items():
        if kept[0].value is not None:
            values[step] = kept[0].value
    best = max if maximize else min
    return best(values, key=lambda step: values[step], default=None)


def thin_evaluations(evaluations: Evaluations, maximize: bool) -> Evaluations:
    """Drop evaluations until all lines have at most `TRIAL_BYTES`, each time the one with the
    nearest neighbours.
    """
    left = dict(evaluations)
    sizes = {step: len(_text(group)) for step, group in left.items()}
    while sum(sizes[step] for step in left) > TRIAL_BYTES:
        steps = list(left)
        best = best_step(left, maximize)
        gaps = {
            step: after - before
            for before, step, after in zip(steps, steps[1:], steps[2:], strict=False)
            if step != best
        }
        if not gaps:
            break
        del left[min(gaps, key=lambda step: gaps[step])]
    return left


def _text(completions: Sequence[KeptCompletion]) -> str:
    return "".join(kept.line() for kept in completions)


@dataclass(frozen=True)
class PromptRewards:
    """The mean rewards of prompts in their order; ``prompts`` is a hash of their texts. Empty if
    one reward is unknown.

    ``families`` and ``alike`` number the family of each prompt, and the prompts whose texts differ
    only in digits. Each is empty if all prompts are different.
    """

    prompts: str = ""
    means: Sequence[float] = ()
    families: Sequence[int] = ()
    alike: Sequence[int] = ()

    @property
    def by_family(self) -> Sequence[float]:
        """Return a value for each family, or for each prompt without families; their mean is that
        of all prompts.

        The standard error of their mean is the cluster-robust one (Liang and Zeger 1986). Families
        of one size have their means. The values of a difference are the differences of the values,
        so two results are compared family by family.
        """
        mean = math.fsum(self.means) / max(len(self.means), 1)
        sums: dict[int, float] = {}
        for family, value in zip(self.families, self.means, strict=bool(self.families)):
            sums[family] = sums.get(family, 0.0) + value - mean
        return (
            tuple(mean + total * len(sums) / len(self.means) for total in sums.values())
            or self.means
        )

    @classmethod
    def parse(cls, record: object) -> Self:
        """Return the rewards of a JSON object; empty for anything else."""
        content = as_mapping(record)
        means = list(map(finite_or_none, as_list(content.get("means"))))
        known = [value for value in means if value is not None]
        if not known or len(known) < len(means):
            return cls()
        groups = (_groups(content.get(name), len(known)) for name in ("families", "alike"))
        return cls(text_or(content.get("prompts")), tuple(known), *groups)


def _groups(listed: object, prompts: int) -> tuple[int, ...]:
    """Return the numbers of a JSON list for so many prompts; empty for anything else."""
    groups = tuple(each for each in as_list(listed) if isinstance(each, int))
    return groups if len(groups) == prompts else ()


def append_prompt_rewards(trial: Path, step: int, rewards: PromptRewards) -> None:
    """Append the evaluation after so many optimizer steps."""
    means = [round(value, 6) for value in rewards.means]
    line: Json = {"step": step, "prompts": rewards.prompts, "means": means}
    if rewards.families:
        line["families"] = rewards.families
    if rewards.alike:
        line["alike"] = rewards.alike
    append_line(trial / paths.PROMPT_REWARDS, line)


def read_prompt_rewards(trial: Path, steps: Sequence[int]) -> PromptRewards:
    """Return each prompt's mean over the evaluations after these optimizer steps; empty if one of
    them is unknown.
    """
    lines = {
        line["step"]: PromptRewards.parse(line)
        for line in read_lines(trial / paths.PROMPT_REWARDS, step=int)
    }
    rewards = [lines.get(step, PromptRewards()) for step in steps]
    if len({(one.prompts, len(one.means)) for one in rewards}) != 1:
        return PromptRewards()
    columns = zip(*[one.means for one in rewards], strict=True)
    return replace(rewards[0], means=tuple(map(fmean, columns)))
