"""transformers' Trainer: the loop of events, a log and checkpoints; the reward of a step is its
learning rate.
"""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

from transformers import TrainerControl, TrainerState


def optimizer_of(args: Any) -> Any:
    """Return an optimizer with one group."""
    return SimpleNamespace(param_groups=[{"lr": args.learning_rate}])


class Trainer:
    """Trains nothing, one step after the other."""

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        callbacks: Any = None,
    ) -> None:
        self.model, self.args, self.callbacks = model, args, list(callbacks or [])
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.history: list[dict[str, float]] = []
        self.accelerator = SimpleNamespace(wait_for_everyone=lambda: None)
        self.callback_handler = SimpleNamespace(callbacks=self.callbacks)

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        """Train, log, evaluate and save at every step."""
        rank = int(os.environ.get("RANK", "0"))
        self.state = TrainerState(0, self.args.max_steps, is_world_process_zero=rank == 0)
        self.control = TrainerControl()
        if resume_from_checkpoint:
            kept = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text())
            self.state.global_step = kept["global_step"]
            self.history = kept["log_history"]
        self.create_optimizer()
        groups = self.optimizer.param_groups
        rates = [group.setdefault("initial_lr", group["lr"]) for group in groups]
        scheduler = SimpleNamespace(get_last_lr=lambda: rates)
        made = {"optimizer": self.optimizer, "lr_scheduler": scheduler}
        self._call("on_train_begin", train_dataloader=self.train_dataset or [], **made)
        while (
            self.state.global_step < self.args.max_steps and not self.control.should_training_stop
        ):
            time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
            self._call("on_optimizer_step", **made)
            self.state.global_step += 1
            self._log({"loss": 1.0, "reward": float(self.args.learning_rate)})
            if self.args.eval_strategy != "no":
                self._log(
                    {
                        "eval_reward": getattr(self, "evaluated", 1 - self.args.learning_rate),
                        "eval_loss": 0.0,
                    }
                )
            self._call("on_step_end")
            if self.args.save_strategy != "no" or self.control.should_save:
                self._save(rank)
        self._call("on_train_end")

    def create_optimizer(self) -> None:
        """Make one group, with a constant rate."""
        self.optimizer = optimizer_of(self.args)

    def evaluate(self) -> dict[str, float]:
        """Evaluate once more."""
        found = {
            "eval_reward": float(getattr(self, "evaluated", 1 - self.args.learning_rate)),
            "eval_loss": 0.0,
        }
        self._log(found)
        return found

    def save_model(self, folder: str) -> None:
        """Leave a model."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "model.safetensors").touch()

    def _log(self, logs: dict[str, float]) -> None:
        self.history.append({"step": self.state.global_step, **logs})
        self._call("on_log", logs=logs)

    def _save(self, rank: int) -> None:
        if rank:
            return
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "global_step": self.state.global_step,
            "max_steps": self.args.max_steps,
            "log_history": self.history,
        }
        # as torch.save writes them
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            with ZipFile(folder / name, "w") as archive:
                archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        (folder / "model.safetensors").touch()
        (folder / "trainer_state.json").write_text(json.dumps(state))

    def _call(self, event: str, **named: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self.args, self.state, self.control, **named)
