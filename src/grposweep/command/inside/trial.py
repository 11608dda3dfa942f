"""In a trial of the user's own command: its values enter where the configuration is built, our
Callback where the trainer is.

The command itself stays as it is, and this module is imported only when TRL is. Each rank does the
same. Sources: transformers 5.23 trainer.py (``Trainer.__init__``, ``train``); trl 1.16
trainer/grpo_config.py.
"""

import atexit
import inspect
import os
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from grporecipe.files import read_json
from grposweep.command._environment import RESUME
from grposweep.command.inside.imports import CONFIGS
from grposweep.command.inside.record import is_watched, users_line, watch_config
from grposweep.storage import paths
from grposweep.storage.records import CallbackState

# of a trainer's train()
RESUMES = "resume_from_checkpoint"
# that a stopped process waits to be ended
HOLD_SECONDS = 60.0


def change(module: ModuleType, folder: str) -> None:
    """Change a module that was just imported, in the trial of a folder: a configuration's, or the
    trainers'.
    """
    trial = Path(folder)
    if module.__name__ not in CONFIGS:
        _follow_trainers(module, trial)
        return
    values = {
        **(read_json(trial / paths.CHANGED) or {}).get("keys", {}),
        "output_dir": str(trial / paths.MODEL),
    }
    watch_config(getattr(module, CONFIGS[module.__name__]), partial(_enter, trial, values))


def _enter(trial: Path, values: dict[str, Any], config: Any) -> None:
    """Set the point's values on a configuration, before its own checks. End the trial if it has no
    such field.
    """
    if lacking := [name for name in values if not hasattr(config, name)]:
        _refuse(
            trial,
            f"{', '.join(lacking)}: the configuration of this program, {type(config).__name__} "
            "of the TRL that it imports, has "
            "no such field. Leave it out, or install a TRL that has it.",
        )
    for name, value in values.items():
        setattr(config, name, value)
    if getattr(config, "push_to_hub", False):
        config.push_to_hub = False
        _say_no_push()


def _existing(checkpoint: Any) -> Any:
    """Return the script's own checkpoint for a first attempt, if there is one: a path that exists.

    ``True`` would be the newest one of the output folder, which a new trial has empty.
    """
    if not checkpoint or (checkpoint is not True and Path(checkpoint).is_dir()):
        return checkpoint
    print(
        f"{RESUMES}={checkpoint}: this trial has none yet, so it starts from the beginning",
        file=sys.stderr,
        flush=True,
    )
    return None


def _say_no_push(*_: Any, **__: Any) -> None:
    print(
        "this trial pushes nothing to the hub; push the winner with your own command",
        file=sys.stderr,
        flush=True,
    )


def _refuse(trial: Path, message: str) -> NoReturn:
    """End this process with a message for the sweep. No ``except Exception`` of the program can
    keep it running.
    """
    if os.environ.get("RANK", "0") == "0":
        CallbackState(int(os.environ.get("GRPOSWEEP_ATTEMPT", 0)), refused=message).write(trial)
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def _follow_trainers(module: ModuleType, trial: Path) -> None:
    """Give the trainer with a configuration of GRPO our Callback, and the checkpoint that the sweep
    resumes from.

    A second one after it has trained ends the trial: its metrics would replace those of the first
    one. After a stop the process ends, and waits until the whole command is ended: what follows a
    training would use an unfinished model.
    """
    cls = module.Trainer
    build = cls.__init__
    train = cls.train
    signature = inspect.signature(build)
    trained_at = list[str]()
    # our Callback of each trainer
    followed = list[Any]()

    def built(self: Any, *arguments: Any, **named: Any) -> None:
        bound = signature.bind_partial(self, *arguments, **named)
        if not is_watched(bound.arguments.get("args")):
            build(self, *arguments, **named)
            return
        if trained_at:
            _refuse(
                trial,
                f"{users_line()} builds a second GRPO trainer after {trained_at[0]} has trained "
                "one. A trial is one training. Give a command that trains once, and sweep what the "
                "others change, such as seed=1,2,3.",
            )
        # imports transformers, which is imported now
        from grposweep.command.inside.callback import Callback

        callbacks = list(bound.arguments.get("callbacks") or [])
        ours = next((item for item in callbacks if isinstance(item, Callback)), None) or Callback()
        bound.arguments["callbacks"] = [item for item in callbacks if item is not ours] + [ours]
        build(*bound.args, **bound.kwargs)
        ours.trainer = self
        followed.append(ours)

    def trained(self: Any, *arguments: Any, **named: Any) -> Any:
        if is_watched(self.args):
            trained_at.append(users_line())
            bound = inspect.signature(train).bind(self, *arguments, **named)
            own = bound.arguments.get(RESUMES)
            bound.arguments[RESUMES] = os.environ.get(RESUME) or _existing(own)
            trained = train(*bound.args, **bound.kwargs)
            if followed[-1].stopped:
                # each rank has written its part of the checkpoint
                self.accelerator.wait_for_everyone()
                raise SystemExit(0)
            return trained
        return train(self, *arguments, **named)

    def hold() -> None:
        # registered before all others, so it runs after them
        if followed and followed[-1].stopped:
            followed[-1].leave()
            time.sleep(HOLD_SECONDS)

    cls.__init__, cls.train, cls.push_to_hub = built, trained, _say_no_push
    atexit.register(hold)
