"""Which model, tokenizer and adapters an experiment trains: the tiny one, a local folder, or a hub id."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from grposweep.errors import UserError
from grposweep.schema import Model
from grposweep.train.tiny import EMBEDDED, Progress, silent, tiny_folder

DTYPES = ("float32", "bfloat16")  # float16 weights cannot be trained: their gradients cannot be unscaled


@dataclass(frozen=True)
class Loaded:
    """What GRPOTrainer takes: a path (it loads the reference model from there itself), not a model."""

    path: str
    tokenizer: PreTrainedTokenizerBase
    config: PretrainedConfig
    init_kwargs: dict[str, Any] = field(default_factory=dict)
    peft_config: LoraConfig | None = None


def load_model(model: Model, progress: Progress = silent) -> Loaded:
    """Locate the model and load what is small of it; the weights are TRL's to load."""
    if model.dtype not in DTYPES:
        raise UserError(
            f"model.dtype={model.dtype} is no type that a model can be trained in. Set one of: {', '.join(DTYPES)}."
        )
    path = str(tiny_folder(progress)) if model.path == EMBEDDED else model.path
    if model.path != EMBEDDED and Path(path).is_dir():
        _check_folder(Path(path))
    try:
        config = AutoConfig.from_pretrained(path, revision=model.revision or "main")
        # AutoTokenizer would read ours as Qwen2's, from the model type, and drop what it does not know.
        loader = PreTrainedTokenizerFast if model.path == EMBEDDED else AutoTokenizer
        tokenizer = loader.from_pretrained(
            path, revision=model.revision or "main", padding_side="left", truncation_side="left"
        )
    except (OSError, ValueError) as error:  # transformers wraps the hub's errors in OSError; ValueError: no such type
        raise UserError(_explain(model, error)) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    # On a CPU half precision is slower and less exact than single.
    dtype = model.dtype if torch.cuda.is_available() else "float32"
    revision = {"revision": model.revision} if model.revision else {}
    return Loaded(path, tokenizer, config, {"dtype": dtype, **revision}, build_lora(model))


def build_lora(model: Model) -> LoraConfig | None:
    """Peft's configuration; None trains all weights."""
    lora = model.lora
    if not lora.enabled:
        return None
    # peft knows all-linear as a word, not as a list of one.
    targets = lora.target_modules[0] if lora.target_modules == ["all-linear"] else lora.target_modules
    return LoraConfig(
        task_type="CAUSAL_LM", r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets
    )


def read_shape(config: PretrainedConfig) -> dict[str, Any]:
    """The architecture under the names of ``model.shape``; weights are counted without making them."""
    from transformers import AutoModelForCausalLM

    text = config.get_text_config()
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    heads = text.num_attention_heads
    return {
        "parameters": sum(parameter.numel() for parameter in skeleton.parameters()),
        "layers": text.num_hidden_layers,
        "hidden": text.hidden_size,
        "intermediate": getattr(text, "intermediate_size", 0),
        "heads": heads,
        "kv_heads": getattr(text, "num_key_value_heads", None) or heads,
        "vocabulary": text.vocab_size,
        "tied_embeddings": bool(text.tie_word_embeddings),
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "model_type": text.model_type,
        "positions": getattr(text, "max_position_embeddings", None) or 0,
    }


def _check_folder(folder: Path) -> None:
    """The commonest mistake with local models: a folder of something else, or of adapters only."""
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model.path={folder} is a folder without config.json, so no model of transformers'. Set model.path to one "
            "that save_pretrained wrote, or to a hub id."
        )
    if not any(list(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin")):
        raise UserError(
            f"model.path={folder} has a config.json but no weights (*.safetensors or *.bin). Set model.path to a "
            "complete copy, or to a hub id."
        )


def _explain(model: Model, error: Exception) -> str:
    """Why a model could not be had, and the three ways to have it."""
    text = str(error)
    if "gated" in text.lower() or "401" in text or "403" in text:
        return (
            f"model.path={model.path} is gated on the hub, and this machine may not read it. Accept its licence there "
            "and run `hf auth login` (or set HF_TOKEN), or set model.path to a local folder."
        )
    return (
        f"model.path={model.path} (revision {model.revision or 'main'}) is no folder here, not in the hub's cache, and "
        f"could not be had from the hub ({text.splitlines()[0] if text else type(error).__name__}). Set model.path to a "
        "local folder, or HF_HOME to a cache that holds it, or correct the id, or go online."
    )
