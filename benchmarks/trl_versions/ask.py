"""What the installed TRL says to configurations: JSON lines in, JSON lines out. Runs under any
interpreter that has TRL.

In: {"processes": 7, "config": {...}}, out: {"error": "ValueError: ...", "derived": {...}}. Nothing
of grposweep is imported. Only the number of processes is not real: it is what accelerate's state
reports. Before 0.18 the checks are made by the trainer, so there a real trainer is built, on a
model of a few hundred weights.
"""

import json
import sys
import tempfile
import warnings
from typing import Any

DERIVED = ("generation_batch_size", "steps_per_generation")


def main() -> None:
    """Answer every line; the first line out names the versions."""
    warnings.simplefilter("ignore")
    import accelerate
    import torch
    import transformers
    import trl

    transformers.logging.set_verbosity_error()
    names = {
        module.__name__: module.__version__ for module in (trl, transformers, accelerate, torch)
    }
    print(json.dumps(names), flush=True)
    config_checks = tuple(int(part) for part in trl.__version__.split(".")[:2]) >= (0, 18)
    answer = _ask_config if config_checks else _Trainers().ask
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            request = json.loads(line)
            shared = {
                "output_dir": folder,
                "use_cpu": True,
                "bf16": False,
                "report_to": "none",
                "max_steps": 10,
            }
            print(json.dumps(_answered(answer, request["processes"], shared | request["config"])))


def _answered(answer: Any, processes: int, config: dict[str, Any]) -> dict[str, Any]:
    """Any exception is an answer: the library's refusals have many types."""
    try:
        made = answer(processes, config)
    except Exception as error:  # noqa: BLE001  # any error that TRL raises is its verdict
        return {"error": f"{type(error).__name__}: {error}", "derived": {}}
    return {"error": "", "derived": {name: getattr(made, name, None) for name in DERIVED}}


def _ask_config(processes: int, config: dict[str, Any]) -> Any:
    """GRPOConfig, in a world of that many processes."""
    from accelerate import PartialState
    from trl import GRPOConfig

    PartialState.num_processes = property(lambda _: processes, lambda *_: None)
    try:
        return GRPOConfig(**config)
    finally:
        del PartialState.num_processes


class _Trainers:
    """GRPOTrainers of TRL 0.14-0.17, which check the batch after everything else."""

    def __init__(self) -> None:
        from datasets import Dataset
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

        words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="a"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        self._tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
        )
        shape = {
            "hidden_size": 4,
            "intermediate_size": 4,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
        }
        self._model = Qwen2ForCausalLM(Qwen2Config(vocab_size=3, num_key_value_heads=1, **shape))
        self._prompts = Dataset.from_list([{"prompt": "a"}] * 8)

    def ask(self, processes: int, config: dict[str, Any]) -> Any:
        """A trainer's arguments, after its constructor accepted them."""
        from accelerate import Accelerator
        from trl import GRPOConfig, GRPOTrainer

        real = Accelerator.num_processes
        Accelerator.num_processes = property(lambda _: processes)
        try:
            return GRPOTrainer(
                model=self._model,
                reward_funcs=lambda completions, **_: [0.0] * len(completions),
                args=GRPOConfig(**config, beta=0.0),
                train_dataset=self._prompts,
                eval_dataset=self._prompts,
                processing_class=self._tokenizer,
            ).args
        finally:
            Accelerator.num_processes = real


if __name__ == "__main__":
    main()
