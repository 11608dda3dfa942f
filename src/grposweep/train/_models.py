"""Which model, tokenizer and adapters an experiment trains, and how TRL loads the weights."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from peft import LoraConfig
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from grporecipe.errors import UserError
from grporecipe.files import Json, parse_json, read_bytes, write_text
from grposweep.config.precision import check_precision, read_precision
from grposweep.schema import Model
from grposweep.train import hub
from grposweep.train._tiny import CREATED, tiny_folder
from grposweep.train.hub import Progress, silent

# keys of the model that from_pretrained takes
LOADING = ("attn_implementation", "trust_remote_code", "use_kernels")


@dataclass(frozen=True)
class Loaded:
    """A model for GRPOTrainer. It is a path, because the trainer also loads the reference model
    from it.
    """

    path: str
    tokenizer: PreTrainedTokenizerBase
    config: PretrainedConfig
    init_kwargs: Json = field(default_factory=dict)
    peft_config: LoraConfig | None = None

    @property
    def has_template(self) -> bool:
        """Return whether the tokenizer has a chat template."""
        return self.tokenizer.chat_template is not None


def find_model_folder(
    model: Model, prepared: str | None = None, progress: Progress = silent
) -> Path:
    """Return the local folder of a model: the tiny one's, the user's own, or the snapshot of a hub
    model.

    ``prepared`` is the hash of the weights that preparation noted, a hub model's commit. If this
    machine has what preparation loaded, this process stays off the network from now on. Otherwise a
    hub model is downloaded.
    """
    is_local = model.path in CREATED or Path(model.path).is_dir()
    snapshot = None if is_local else hub.find_snapshot(model, prepared)
    # of the hub; preparation loads none
    wants_kernels = model.use_kernels or "/" in (model.attn_implementation or "")
    if prepared is not None and (is_local or snapshot) and not wants_kernels:
        # the client would try for half a minute to see whether the task's data is new
        hub.go_offline()
    if model.path in CREATED:
        return tiny_folder(model.path, progress)
    if is_local:
        hub.check_folder(Path(model.path))
        return Path(model.path)
    return snapshot or hub.download_model(
        replace(model, revision=prepared or model.revision), progress
    )


def load_model(model: Model, folder: Path) -> Loaded:
    """Load what is small of a model in its local folder; TRL loads the weights from there."""
    check_precision(model)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
        # AutoTokenizer would read ours as Qwen2's, from the model type, and drop what it does not
        # know.
        loader = PreTrainedTokenizerFast if model.path in CREATED else AutoTokenizer
        tokenizer = loader.from_pretrained(
            folder,
            padding_side="left",
            truncation_side="left",
            trust_remote_code=model.trust_remote_code,
        )
    except (OSError, ValueError) as error:
        # a file that cannot be read; ValueError: no such type of model
        raise UserError(
            f"model.path={model.path}: its configuration or tokenizer cannot be loaded "
            f"({str(error).strip().splitlines()[0]}). "
            "Set model.path to a model of transformers' with a tokenizer."
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    # On a CPU half precision is slower and less exact than single.
    dtype = read_precision(model).weights if torch.cuda.is_available() else "float32"
    return Loaded(str(folder), tokenizer, config, {"dtype": dtype}, build_lora(model))


def name_base_model(saved: Path, model: Model) -> None:
    """Name the hub model in a saved adapter's configuration, which peft writes with the path of
    this machine's copy.
    """
    path = saved / "adapter_config.json"
    if path.is_file() and model.path not in CREATED and not Path(model.path).is_dir():
        content = parse_json(read_bytes(path))
        commit = Path(content["base_model_name_or_path"]).name
        content |= {"base_model_name_or_path": model.path, "revision": commit}
        write_text(path, json.dumps(content, indent=2) + "\n")


def loading_options(model: Model) -> Json:
    """Return the arguments of from_pretrained. Null and false ones are left out."""
    options = {name: getattr(model, name) for name in LOADING}
    return {name: value for name, value in options.items() if value}


def build_quantization(model: Model) -> BitsAndBytesConfig | None:
    """Return bitsandbytes' configuration, None without quantization. Four bits are QLoRA's: NF4,
    quantized twice.

    Source: Dettmers et al., QLoRA (2023), section 3.
    """
    if model.quantization is None:
        return None
    if model.quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=read_precision(model).computed,
    )


def widen_adapters(model: Model, network: torch.nn.Module) -> None:
    """Keep the adapters of a quantized model in float32 under fp16 autocast, before an optimizer
    reads them.

    TRL 1.16 (trainer/grpo_trainer.py, as QLoRA does) makes them bfloat16, whose gradients torch's
    GradScaler cannot unscale: '"_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for
    BFloat16'.
    """
    if model.quantization is None or read_precision(model).mixed != "fp16":
        return
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def build_lora(model: Model) -> LoraConfig | None:
    """Peft's configuration; None trains all weights."""
    lora = model.lora
    if not lora.enabled:
        return None
    # peft knows all-linear as a word, not as a list of one.
    targets = (
        lora.target_modules[0] if lora.target_modules == ["all-linear"] else lora.target_modules
    )
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
    )


def read_shape(config: PretrainedConfig) -> Json:
    """The architecture under the names of ``model.shape``; weights are counted without making
    them.
    """
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
