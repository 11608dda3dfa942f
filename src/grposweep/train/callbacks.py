"""Our side of transformers' training loop: lines of metrics, the heartbeat, and when to evaluate, save and stop."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from grposweep.train.attempt import Attempt
from grposweep.train.updates import UpdateSize


class Conductor(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Decides at every optimizer step; all ranks decide alike, rank 0 writes."""

    def __init__(self, attempt: Attempt, updates: UpdateSize) -> None:
        self.attempt, self.updates = attempt, updates
        self.stopped = False
        self.saved = 0  # optimizer step of the last checkpoint

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.saved = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        step, attempt = state.global_step, self.attempt
        last = step >= attempt.total
        if step in attempt.plan.evaluation_steps:
            control.should_evaluate = True
        if not last and attempt.pace.is_boundary(step):
            self.stopped = agree(attempt.asks_to_stop(step), attempt.ranks, args.device)
            control.should_training_stop = control.should_training_stop or self.stopped
            control.should_save = self.stopped or self._is_due(step)
        elif last:
            control.should_save = attempt.experiment.trainer.keep in ("last", "all")
        self._beat(state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.saved = state.global_step

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._beat(state)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._beat(state)  # an evaluation may be long: it lives

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        # Evaluations are written by the trainer, which knows every prompt's reward; and train_runtime's line, the
        # summary at the end, holds nothing but times.
        if logs and "loss" in logs:
            self.attempt.log("train", state.global_step, {**logs, "update_size": self.updates.value})

    def _is_due(self, step: int) -> bool:
        """Whether a multiple of save_steps has passed since the last checkpoint (it may not have been a boundary)."""
        every = self.attempt.plan.save_steps
        return every is not None and every > 0 and step // every > self.saved // every

    def _beat(self, state: TrainerState) -> None:
        self.attempt.beat(state.global_step)


def agree(stop: bool, ranks: int, device: torch.device) -> bool:
    """Whether any rank was asked to stop: all must leave the loop at one step, or the others wait for ever."""
    if ranks == 1:
        return stop
    flag = torch.tensor([int(stop)], device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())


@dataclass
class HeldOut:
    """The rewards of one evaluation, prompt by prompt, as the reward functions see them on this rank."""

    weights: list[float]
    active: bool = False
    prompts: list[list[int]] = field(default_factory=list)  # prompt_id, by call
    values: list[list[list[float]]] = field(default_factory=list)  # by reward, call and completion

    def start(self) -> None:
        """A new evaluation begins."""
        self.active, self.prompts, self.values = True, [], [[] for _ in self.weights]

    def record(self, reward: int, prompt_ids: list[int], values: list[float | None]) -> None:
        """One call of one reward; the first reward's calls say which prompts they were."""
        if not self.active:
            return
        if reward == 0:
            self.prompts.append(list(prompt_ids))
        self.values[reward].append([float("nan") if value is None else value for value in values])

    def rows(self, rank: int) -> list[tuple[int, int, int, int, float]]:
        """(call, rank, position, prompt_id, weighted reward): sorted over all ranks, the order of evaluation."""
        weights = torch.tensor(self.weights, dtype=torch.float64)
        rows = []
        for call, prompt_ids in enumerate(self.prompts):
            parts = torch.tensor([values[call] for values in self.values], dtype=torch.float64)
            totals = (parts * weights.unsqueeze(1)).nansum(0)
            totals[parts.isnan().all(0)] = float("nan")  # as TRL: what nobody could judge counts for nothing
            rows += [(call, rank, place, prompt, float(totals[place])) for place, prompt in enumerate(prompt_ids)]
        return rows


def mean_over_prompts(rows: list[tuple[int, int, int, int, float]], generations: int) -> tuple[float, float | None]:
    """The mean of the prompts' mean rewards, and its standard error over the prompts.

    accelerate fills the last batch of several ranks with prompts of the first; a prompt's first ``generations``
    completions are its own, the rest is such filling.
    """
    by_prompt: dict[int, list[float]] = {}
    for _, _, _, prompt, value in sorted(rows, key=lambda row: row[:3]):
        values = by_prompt.setdefault(prompt, [])
        if len(values) < generations:
            values.append(value)
    groups = [torch.tensor(values, dtype=torch.float64).nanmean() for values in by_prompt.values()]
    means = torch.stack(groups) if groups else torch.empty(0, dtype=torch.float64)
    means = means[~means.isnan()]
    error = float(means.std(correction=1) / len(means) ** 0.5) if len(means) > 1 else None
    return float(means.mean()), error
