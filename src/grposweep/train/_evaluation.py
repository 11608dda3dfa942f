"""One held-out evaluation: rewards prompt by prompt, a few completions that are kept, and how
varied all of them are.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import variance
from typing import Any

import torch

from grporecipe.files import Config, Json, finite_or_none, text_sha256
from grposweep.storage.completions import (
    KeptCompletion,
    PromptRewards,
    append_prompt_rewards,
    keep_completions,
)
from grposweep.train._diversity import Completion, measure, pick_places
from grposweep.train.attempt import Attempt
from grposweep.train.rewards import text_of

DIGITS = r"\d+"
# held-out prompts whose completions are kept at each evaluation, and how many of each
KEPT_PROMPTS, KEPT_EACH = 4, 2
# call, rank, position, prompt_id, weighted reward
Row = tuple[int, int, int, int, float]
# call, rank, position, completion with its rewards
PlacedCompletion = tuple[int, int, int, Completion]


@dataclass
class HeldOutEvaluation:
    """The rewards of one evaluation, prompt by prompt, as the reward functions see them on this
    rank.
    """

    weights: list[float]
    family_column: str | None = None
    # tokens that end a completion: without one it is truncated
    ends: frozenset[int] = frozenset()
    active: bool = False
    # prompt_id, by call
    prompts: list[list[int]] = field(default_factory=list)
    # by reward, call and completion
    values: list[list[list[float]]] = field(default_factory=list)
    # by call, without rewards
    texts: list[list[Completion]] = field(default_factory=list)

    def start(self) -> None:
        """Begin a new evaluation."""
        self.active = True
        self.prompts = []
        self.texts = []
        self.values = [[] for _ in self.weights]

    def hear(self, prompts: list[Any], completions: list[Any], columns: Json) -> None:
        """Record the texts of one call."""
        if not self.active:
            return
        blank = [""] * len(prompts)
        ids = columns.get("completion_ids") or [()] * len(prompts)
        answers = columns.get("answer") or blank
        families = columns.get(self.family_column or "") or blank
        texts = []
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            if not isinstance(prompt, str):
                prompt = "\n".join(str(turn["content"]) for turn in prompt)
            last = ids[index][-1:]
            texts.append(
                Completion(
                    prompt_id=columns["prompt_id"][index],
                    prompt=prompt,
                    text=text_of(completion),
                    answer=str(answers[index]),
                    family=str(families[index]),
                    truncated=bool(self.ends and len(last) and int(last[0]) not in self.ends),
                )
            )
        self.texts.append(texts)

    def record(self, reward: int, prompt_ids: list[int], values: list[float | None]) -> None:
        """One call of one reward; the first reward's calls say which prompts they were."""
        if not self.active:
            return
        if reward == 0:
            self.prompts.append(list(prompt_ids))
        self.values[reward].append([float("nan") if value is None else value for value in values])

    def rows(self, rank: int) -> list[Row]:
        """Return the rows of this rank; sorted over all ranks they are in the order of
        evaluation.
        """
        weights = torch.tensor(self.weights, dtype=torch.float64)
        rows = []
        for call, prompt_ids in enumerate(self.prompts):
            parts = torch.tensor([values[call] for values in self.values], dtype=torch.float64)
            totals = (parts * weights.unsqueeze(1)).nansum(0)
            # as TRL: a completion without a reward does not count
            totals[parts.isnan().all(0)] = float("nan")
            rows += [
                (call, rank, index, prompt, float(totals[index]))
                for index, prompt in enumerate(prompt_ids)
            ]
        return rows

    def completions(self, rank: int) -> list[PlacedCompletion]:
        """Return the completions of this rank in the order of `rows`."""
        rewards = {row[:3]: finite_or_none(row[4]) for row in self.rows(rank)}
        rows = []
        for call, texts in enumerate(self.texts):
            for index, completion in enumerate(texts):
                parts = tuple(finite_or_none(values[call][index]) for values in self.values)
                reward = rewards[call, rank, index]
                rows.append((call, rank, index, replace(completion, reward=reward, parts=parts)))
        return rows


def in_order(completions: list[PlacedCompletion], generations: int) -> list[Completion]:
    """Return all ranks' completions in the order of evaluation, each prompt's own only (see
    `prompt_means`).
    """
    counts: Counter[int] = Counter()
    kept = []
    for _, _, _, completion in sorted(completions, key=lambda row: row[:3]):
        counts[completion.prompt_id] += 1
        if counts[completion.prompt_id] <= generations:
            kept.append(completion)
    return kept


def sampling_error(completions: list[Completion]) -> float | None:
    """Return the standard error of the mean reward that sampling alone causes, on the same prompts.

    Evaluations of one trial share their prompts, so only this part of their noise differs. None
    unless each prompt has two completions with a reward.
    """
    by_prompt: dict[int, list[float]] = {}
    for completion in completions:
        if completion.reward is not None:
            by_prompt.setdefault(completion.prompt_id, []).append(completion.reward)
    if not by_prompt or min(map(len, by_prompt.values())) < 2:
        return None
    return math.sqrt(sum(variance(values) / len(values) for values in by_prompt.values())) / len(
        by_prompt
    )


def prompt_means(rows: list[Row], generations: int) -> dict[int, float]:
    """Return the mean reward of each prompt, by its id; NaN for one without a reward.

    accelerate fills the last batch of several ranks with prompts of the first; a prompt's first
    ``generations`` completions are its own, the rest is such filling.
    """
    by_prompt: dict[int, list[float]] = {}
    for _, _, _, prompt, value in sorted(rows, key=lambda row: row[:3]):
        values = by_prompt.setdefault(prompt, [])
        if len(values) < generations:
            values.append(value)
    return {
        prompt: float(torch.tensor(v, dtype=torch.float64).nanmean())
        for prompt, v in by_prompt.items()
    }


def mean_over_prompts(
    by_prompt: Mapping[int, float], families: Mapping[int, int] | None = None
) -> tuple[float, float | None]:
    """Return the mean of the prompts' mean rewards, and its standard error over prompts, or over
    their families.
    """
    measured = {prompt: mean for prompt, mean in by_prompt.items() if not math.isnan(mean)}
    mean = float(torch.tensor(list(measured.values()), dtype=torch.float64).mean())
    # prompts whose texts were not recorded have no family
    groups = (
        [families[prompt] for prompt in measured]
        if families and measured.keys() <= families.keys()
        else ()
    )
    grouped = PromptRewards("", list(measured.values()), groups)
    means = torch.tensor(grouped.by_family, dtype=torch.float64)
    if len(means) < 2:
        return mean, None
    return mean, float(means.std(correction=1) / len(means) ** 0.5)


def group_prompts(completions: Sequence[Completion]) -> dict[int, int]:
    """Return the family of each prompt, by its id; empty if all differ. Equal prompts are one
    family.
    """
    families = dict[str, str]()
    asked = {completion.prompt_id: completion for completion in completions}
    for completion in asked.values():
        families.setdefault(
            completion.prompt.strip(), completion.family or completion.prompt.strip()
        )
    return _number(
        {prompt: families[completion.prompt.strip()] for prompt, completion in asked.items()}
    )


def _number(named: Mapping[int, str]) -> dict[int, int]:
    """Return a number for each name, in the order of the prompts' ids; empty if all names
    differ.
    """
    numbers: dict[str, int] = {}
    for prompt in sorted(named):
        numbers.setdefault(named[prompt], len(numbers))
    if len(numbers) == len(named):
        return {}
    return {prompt: numbers[named[prompt]] for prompt in sorted(named)}


def rewards_by_prompt(
    by_prompt: Mapping[int, float], completions: Sequence[Completion]
) -> PromptRewards:
    """Return the mean rewards in the order of the prompts' ids; empty if a prompt has none."""
    texts = {completion.prompt_id: completion.prompt for completion in completions}
    means = [by_prompt[prompt] for prompt in sorted(by_prompt)]
    if by_prompt.keys() != texts.keys() or any(map(math.isnan, means)):
        return PromptRewards()
    families = tuple(group_prompts(completions).values())
    alike = tuple(
        _number(
            {prompt: re.sub(DIGITS, "0", text.strip()) for prompt, text in texts.items()}
        ).values()
    )
    content = "\0".join([*(texts[prompt] for prompt in sorted(texts)), *map(str, families)])
    if len(set(alike)) < 2:
        alike = ()
    return PromptRewards(text_sha256(content)[:12], means, families, alike)


def judge(
    attempt: Attempt,
    step: int,
    rows: list[Row],
    completions: list[PlacedCompletion],
    generations: int,
    names: Sequence[str],
    values: Config,
    began: float,
) -> Json:
    """Return the mean reward of an evaluation and its errors. Rank 0 also keeps its prompts'
    rewards and a few completions.

    ``rows`` and ``completions`` are those of all ranks, ``values`` what else was measured; the rest
    as `keep_evaluation`.
    """
    by_prompt = prompt_means(rows, generations)
    mean, error = mean_over_prompts(
        by_prompt, group_prompts([completion for *_, completion in completions])
    )
    metrics: Json = {"eval_reward": mean, "eval_reward_se": error}
    if attempt.is_main:
        ordered = in_order(completions, generations)
        metrics["eval_reward_noise"] = sampling_error(ordered)
        append_prompt_rewards(attempt.folder, step, rewards_by_prompt(by_prompt, ordered))
        metrics |= keep_evaluation(attempt, step, {**values, **metrics}, ordered, names, began)
    return metrics


def keep_evaluation(
    attempt: Attempt,
    step: int,
    values: Config,
    completions: Sequence[Completion],
    names: Sequence[str],
    began: float,
) -> dict[str, float]:
    """Keep a few completions of an evaluation, and return how varied all of them are; on rank 0.

    ``names`` are those of the rewards, ``began`` when the evaluation began (seconds of the
    performance counter).
    """
    before = time.perf_counter()
    search = attempt.experiment.search
    measured = measure(completions)
    metrics: dict[str, float] = measured.metrics
    value = finite_or_none({**values, **metrics}.get(search.metric))
    kept = [
        KeptCompletion(
            step=step,
            attempt=attempt.number,
            value=value,
            prompt_id=completions[index].prompt_id,
            prompt=completions[index].prompt,
            completion=completions[index].text,
            reward=completions[index].reward,
            rewards=dict(zip(names, completions[index].parts, strict=True)),
            truncated=completions[index].truncated,
            template=bool(measured.template) and measured.keys[index] == measured.template,
        )
        for index in pick_places(
            completions, measured.keys, measured.template, KEPT_PROMPTS, KEPT_EACH
        )
    ]
    keep_completions(attempt.folder, kept, maximize=search.direction == "maximize")
    attempt.tracker.log_completions(step, kept)
    now = time.perf_counter()
    return {**metrics, "time_share/diversity": (now - before) / max(now - began, 1e-9)}
