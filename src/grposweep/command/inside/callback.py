"""The callback for a user's own training script: it reports metrics as they are logged, and stops
at a rollout boundary.

``trainer = GRPOTrainer(..., callbacks=[Callback()])``; outside of a sweep it does nothing. It runs
in the script's environment, so it needs nothing but transformers, and no more of us than these
files.
"""

import os
import re
from collections.abc import Sequence
from math import ceil, nan
from operator import mul
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from grporecipe.files import read_json, write_json
from grposweep.command.inside.arrived import (
    find_changed_attribute,
    find_changed_rate,
    find_own_rates,
    rates_of,
)
from grposweep.command.inside.record import (
    arguments_of,
    built_value,
    describe,
    is_watched,
    line_of,
    plain,
    versions,
)
from grposweep.storage import paths
from grposweep.storage.records import CallbackState
from grposweep.train.callback import BoundaryCallback
from grposweep.train.records import ControlFile, HeartbeatFile, MetricsFile, RolloutSchedule

RATE = "learning_rate"
# releases of TRL, see PR 5353
UNWEIGHTED = r"0\.2[789]\."
# unset, each follows from the other
ROLLOUT_SIZES = ("steps_per_generation", "generation_batch_size")


class Callback(BoundaryCallback):
    """Rank 0 writes and reads the trial's files; all ranks stop at one step."""

    def __init__(self) -> None:
        folder = os.environ.get("GRPOSWEEP_TRIAL")
        self.folder = Path(folder) if folder else None
        self.attempt = int(os.environ.get("GRPOSWEEP_ATTEMPT", 0))
        # the one that it is given to, in the trial of a command
        self.trainer: Any = None
        # the training; the program may evaluate afterwards
        self.ended = False
        # its first step, and the keys of this trial that its configuration has
        self.began_at, self.keys = 0, set[str]()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any
    ) -> None:
        if self.folder is None:
            return
        optimizer = known.get("optimizer")
        self.began_at = state.global_step
        if is_watched(args):
            self.keys = set((read_json(self.folder / paths.CHANGED) or {}).get("keys", {}))
            if state.is_world_process_zero:
                record = describe(args, self.trainer, arguments_of(self.trainer))
                record |= {"steps": state.max_steps, "rates": rates_of(optimizer)}
                write_json(self.folder / paths.TRAINED_WITH, record)
        self._refuse(trouble(self.folder, args))
        self._refuse(find_changed_attribute(self.trainer, args, self.keys))
        if RATE in self.keys:
            is_resumed = state.global_step > 0
            self._refuse(find_own_rates(args, optimizer, is_resumed))
        self.pace = read_pace(args, known.get("train_dataloader"))
        self.metrics, self.evaluated = MetricsFile(self.folder, self.attempt), set[int]()
        self.heartbeat = HeartbeatFile(self.folder, state.max_steps, writer="callback")
        self.control = ControlFile(self.folder)
        if state.is_world_process_zero:
            self.metrics.rewind(state.global_step or None)
            self._say(state)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any
    ) -> None:
        step = state.global_step - self.began_at
        if step == 0:
            self._refuse(find_changed_attribute(self.trainer, args, self.keys))
        # a callback may set it at the end of the first step
        if RATE in self.keys and step < 2:
            optimizer = known.get("optimizer")
            scheduler = known.get("lr_scheduler")
            self._refuse(find_changed_rate(self.trainer, optimizer, scheduler))

    def _refuse(self, message: str | None) -> None:
        """End the program with a message for the sweep, if there is one."""
        if message and self.folder is not None:
            CallbackState(self.attempt, refused=message).write(self.folder)
            raise SystemExit(f"error: {message}")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        step = state.global_step
        if self.folder is None or step >= state.max_steps or not self.pace.is_boundary(step):
            return
        if self.stop_if_asked(self._asked(step) and state.is_world_process_zero, args, control):
            control.should_save = True
            if state.is_world_process_zero:
                self._say(state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if (
            self.folder is None
            or not logs
            or not state.is_world_process_zero
            or "train_runtime" in logs
        ):
            # train_runtime's line, the summary at the end, holds nothing but times
            return
        kind = "eval" if any(name.startswith("eval_") for name in logs) else "train"
        if self.ended and (kind == "train" or self.stopped or state.global_step in self.evaluated):
            return
        if kind == "eval":
            self.evaluated.add(state.global_step)
        written = with_weights(logs, getattr(args, "reward_weights", None))
        self.metrics.write(
            kind, state.global_step, self.pace.completions_at(state.global_step), written
        )
        self._say(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.folder is not None and state.is_world_process_zero:
            self.ended = True
            self.state = state
            self._say(state)

    def leave(self) -> None:
        """After a stop, have the attempt's own process end the command."""
        if self.ended:
            self._say(self.state, left=True)

    def beat(self, state: TrainerState) -> None:
        if self.folder is not None and state.is_world_process_zero:
            self.heartbeat.beat(state.global_step)

    def _say(self, state: TrainerState, left: bool = False) -> None:
        """Write the state that the attempt's own process reads."""
        # the callers know
        assert self.folder is not None
        CallbackState(
            self.attempt, state.global_step, state.max_steps, self.stopped, self.ended, left=left
        ).write(self.folder)
        self.heartbeat.beat(state.global_step, force=True)

    def _asked(self, step: int) -> bool:
        # the callers know
        assert self.folder is not None
        # a signal that came to the attempt's own process
        passed_on = read_json(self.folder / paths.STOP) or {}
        return passed_on.get("attempt") == self.attempt or self.control.asks_to_stop(step)


def with_weights(logs: dict[str, Any], weights: Sequence[float] | None) -> dict[str, Any]:
    """Return a log entry with the reward that is trained: TRL 0.27 to 0.29 log the sum without the
    weights. It is the weighted sum of the functions' means, or none where two have one name.
    """
    if weights is None or not re.match(UNWEIGHTED, dict(versions()).get("trl", "")):
        return logs
    name = "eval_reward" if "eval_reward" in logs else "reward"
    means = [mean for key, mean in logs.items() if re.fullmatch(f"{name}s/.+/mean", key)]
    reward = sum(map(mul, weights, means)) if len(means) == len(weights) else nan
    return {**logs, name: reward}


def read_pace(args: TrainingArguments, dataloader: Any) -> RolloutSchedule:
    """Return the rollout schedule of the trainer's arguments; before TRL 0.18 each accumulation
    generates its own.
    """
    accumulation = args.gradient_accumulation_steps
    reuse = getattr(args, "num_iterations", 1)
    steps = getattr(args, "steps_per_generation", None) or accumulation
    rollout = args.per_device_train_batch_size * args.world_size * steps
    micro_steps = steps * reuse
    try:
        length = len(dataloader)
    except TypeError:
        # an endless stream: one epoch
        length = 0
    return RolloutSchedule(
        accumulation,
        micro_steps,
        rollout,
        ceil(length / accumulation) or None,
        length // micro_steps,
    )


def trouble(folder: Path, args: TrainingArguments) -> str | None:
    """Name the numbers in which the script's training differs from the trial's, so that nothing
    would be swept.
    """
    trial = read_json(folder / paths.CHANGED) or {}
    wanted = {**trial.get("keys", {}), "world_size": trial.get("processes", args.world_size)}
    for name, value in wanted.items():
        # transformers 5 has it in warmup_steps, and ms-swift moves it there
        if name == "warmup_ratio":
            continue
        actual = getattr(args, name, value)
        if name != "world_size" and is_watched(args):
            if actual != built_value(args, name):
                return (
                    f"{name}={value} is this trial's, but {line_of(args, name)} sets "
                    f"{name}={plain(actual)} after the "
                    f"configuration is built. Take that line out, or leave {name} out of the sweep."
                )
            continue
        # an enumeration's word
        actual = getattr(actual, "value", actual)
        if actual != value and not (value is None and name in ROLLOUT_SIZES):
            reason = (
                "it does not take that from the recipe or the command line. Pass the parsed "
                "arguments on to the trainer as they are."
            )
            if name == "world_size":
                reason = f"its launcher started so many. Set cluster.processes={actual}."
            told = f"{name}={value} is this trial's, but the script trains with {name}={actual}"
            return f"{told}: {reason}"
    return None
