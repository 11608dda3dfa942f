"""TRL's GRPOTrainer: what its constructor passes on."""

from typing import Any

from transformers.trainer import Trainer


class GRPOTrainer(Trainer):
    """Keeps its rewards."""

    def __init__(
        self, model: Any, reward_funcs: Any, args: Any = None, callbacks: Any = None, **named: Any
    ) -> None:
        for name in ("peft_config", "processing_class"):
            named.pop(name, None)
        super().__init__(model=model, args=args, callbacks=callbacks, **named)
        self.temperature = args.temperature
        self.reward_funcs = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
