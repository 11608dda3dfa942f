"""The callback for a user's own training script: it reports metrics as they are logged, and stops
at a rollout boundary.

``trainer = GRPOTrainer(..., callbacks=[Callback()])``; outside of a sweep it does nothing. It runs
in the script's environment, so it needs nothing but transformers, and no more of us than these
files.
"""

import os
from math import ceil, isclose
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from grporecipe.files import read_json, write_json
from grposweep.command.inside.record import (
    arguments_of,
    built_value,
    describe,
    is_watched,
    line_of,
    plain,
)
from grposweep.storage import paths
from grposweep.storage.records import CallbackState
from grposweep.train.callback import BoundaryCallback
from grposweep.train.records import ControlFile, HeartbeatFile, MetricsFile, RolloutSchedule

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

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any
    ) -> None:
        if self.folder is None:
            return
        if is_watched(args) and state.is_world_process_zero:
            record = describe(args, self.trainer, arguments_of(self.trainer))
            write_json(self.folder / paths.TRAINED_WITH, {**record, "steps": state.max_steps})
        if refused := trouble(self.folder, args) or own_optimizer(
            self.folder, args, known.get("optimizer")
        ):
            CallbackState(self.attempt, refused=refused).write(self.folder)
            raise SystemExit(f"error: {refused}")
        self.pace = read_pace(args, known.get("train_dataloader"))
        self.metrics, self.evaluated = MetricsFile(self.folder, self.attempt), set[int]()
        self.heartbeat = HeartbeatFile(self.folder, state.max_steps, writer="callback")
        self.control = ControlFile(self.folder)
        if state.is_world_process_zero:
            self.metrics.rewind(state.global_step or None)
            self._say(state)

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
        self.metrics.write(
            kind, state.global_step, self.pace.completions_at(state.global_step), logs
        )
        self._say(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.folder is not None and state.is_world_process_zero:
            self.ended = True
            self._say(state)

    def beat(self, state: TrainerState) -> None:
        if self.folder is not None and state.is_world_process_zero:
            self.heartbeat.beat(state.global_step)

    def _say(self, state: TrainerState) -> None:
        """Write the state that the attempt's own process reads."""
        # the callers know
        assert self.folder is not None
        CallbackState(
            self.attempt, state.global_step, state.max_steps, self.stopped, self.ended
        ).write(self.folder)
        self.heartbeat.beat(state.global_step, force=True)

    def _asked(self, step: int) -> bool:
        # the callers know
        assert self.folder is not None
        # a signal that came to the attempt's own process
        passed_on = read_json(self.folder / paths.STOP) or {}
        return passed_on.get("attempt") == self.attempt or self.control.asks_to_stop(step)


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
            return (
                f"{name}={value} is this trial's, but the script trains with {name}={actual}: it "
                "does not take that from the recipe or the command line. Pass the parsed arguments "
                "on to the trainer as they are."
            )
    return None


def own_optimizer(folder: Path, args: TrainingArguments, optimizer: Any) -> str | None:
    """Say if a trial's learning rate is that of no group of the optimizer, which the script then
    makes itself.
    """
    keys = (read_json(folder / paths.CHANGED) or {}).get("keys", {})
    if not is_watched(args) or "learning_rate" not in keys:
        return None
    # set by torch's schedulers; DeepSpeed's own do not, and then nothing is known
    rates = {
        group["initial_lr"]
        for group in getattr(optimizer, "param_groups", ())
        if "initial_lr" in group
    }
    if not rates or any(isclose(float(rate), args.learning_rate, rel_tol=1e-6) for rate in rates):
        return None
    return (
        f"learning_rate={args.learning_rate} is this trial's, but the script passes an optimizer "
        f"with learning rate {', '.join(f'{float(rate):g}' for rate in sorted(rates))} to its "
        "trainer. Make the optimizer with args.learning_rate."
    )
