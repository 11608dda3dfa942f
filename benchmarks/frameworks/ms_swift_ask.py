"""What ms-swift's own argument classes say to command lines; run by its environment's interpreter,
JSON lines in and out.

In: ``{"processes": 8, "argv": ["--rlhf_type", "grpo", ...]}``. First out: versions. Then, a line
each, ``{"error": ""}`` with what ms-swift derived, or the error. Everything is real but the number
of processes, which no process group stands behind.
"""

import contextlib
import io
import json
import logging
import sys
import tempfile
from importlib.metadata import version
from typing import Any

import transformers
from swift.arguments import RLHFArguments
from swift.utils.utils import parse_args

PACKAGES = ("ms-swift", "trl", "transformers", "torch")
DERIVED = (
    "generation_batch_size",
    "steps_per_generation",
    "gradient_accumulation_steps",
    "learning_rate",
    "beta",
    "loss_type",
    "scale_rewards",
    "eval_strategy",
    "eval_steps",
    "temperature",
    "lr_scheduler_type",
    "warmup_steps",
    "max_completion_length",
    "dataloader_drop_last",
    "num_train_epochs",
    "max_steps",
    "kl_in_reward",
)

processes = 1
# TrainingArguments ask torch.distributed; a batch check needs the number only.
transformers.TrainingArguments.world_size = property(lambda _: processes)


def judge(argv: list[str]) -> dict[str, Any]:
    """The error that these words meet, or what ms-swift makes of them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            arguments, rest = parse_args(RLHFArguments, argv)
        if rest and not arguments.ignore_args_error:
            # pipelines/base.py
            return {"error": f"ValueError: remaining_argv: {rest}"}
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:  # noqa: BLE001 - any error of the classes is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    trained = arguments.training_args
    return {"error": "", "derived": {name: plain(getattr(trained, name)) for name in DERIVED}}


def plain(value: Any) -> Any:
    """As JSON takes it; enumerations by their words."""
    return getattr(value, "value", value)


def main() -> None:
    """Answer every line."""
    global processes
    logging.disable(logging.CRITICAL)
    print(json.dumps({name: version(name) for name in PACKAGES}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            asked = json.loads(line)
            processes = asked["processes"]
            print(
                json.dumps(
                    judge([*asked["argv"], "--output_dir", folder, "--add_version", "false"])
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
