"""The embedded model: 84 thousand parameters, created locally and identical everywhere, half
trained on two-digit addition.

It exists so that a newcomer's first sweep is real GRPO on a CPU in seconds. It is taught to add,
and to spoil most answers with a superfluous ``=``: it earns about 0.3 at temperature 1, and GRPO's
first task is the one it has with language models, to unlearn a habit without losing what is known.
A low learning rate does not get there, a high one forgets how to add. (Slips in the digits as
noise, tried first, left nothing that 100 steps could unlearn.)

Another one reads any text, byte by byte, and conversations by a chat template. It is not trained:
it is for a first try of one's own data and rewards.
"""

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from grporecipe.errors import UserError
from grporecipe.files import Json, read_own_yaml
from grposweep.storage.folders import SET_CACHE, cache_folder
from grposweep.train.hub import Progress, silent
from grposweep.train.tasks.arithmetic import CHARACTERS, WARM_START_PAIRS, pairs

EMBEDDED = "embedded"
EMBEDDED_TEXT = "embedded-text"
# model.path of models that are created here
CREATED = (EMBEDDED, EMBEDDED_TEXT)
VOCABULARY = (*CHARACTERS, "<unk>", "<pad>", "<eos>")
# 12+34=
PROMPT_TOKENS = 6
# of prompt and completion, for a model that reads any text
TEXT_TOKENS = 4096
PAD = VOCABULARY.index("<pad>")
EOS = VOCABULARY.index("<eos>")

# everything that decides the weights
RECIPE: Json = read_own_yaml(__file__, "tiny.yaml")
# Of the model for any text; a prompt takes ten or twenty bytes more.
TEXT_TEMPLATE = (
    "{%- for turn in messages -%}{{ turn.role }}: {{ turn.content or '' }}\n{% endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}"
)


def tiny_folder(path: str = EMBEDDED, progress: Progress = silent) -> Path:
    """Return the folder of a tiny model (one of `CREATED`) and its tokenizer, which the first call
    creates.
    """
    target = cache_folder() / f"tiny-{recipe_hash(path)}"
    if not (target / "config.json").is_file():
        _make(target, path, progress)
    return target


def recipe_hash(path: str = EMBEDDED) -> str:
    """Twelve digits that change with anything that could change the weights."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    vocabulary = {
        EMBEDDED: VOCABULARY,
        EMBEDDED_TEXT: (EMBEDDED_TEXT, TEXT_TEMPLATE),
    }
    content = json.dumps({**RECIPE, **versions, "vocabulary": vocabulary[path]}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per character."""
    return _of_words(VOCABULARY, pre_tokenizers.Split("", "isolated"), eos_token="<eos>")


def build_text_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per byte, and a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[])
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return _padded_left(inner, eos_token="<eos>", chat_template=TEXT_TEMPLATE)


def _of_words(
    words: Sequence[str], split: pre_tokenizers.Split, **options: Any
) -> PreTrainedTokenizerFast:
    vocabulary = {token: number for number, token in enumerate(words)}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = split, decoders.Fuse()
    return _padded_left(inner, unk_token="<unk>", **options)


def _padded_left(inner: tokenizers.Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer that pads on the left, for generation."""
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **options,
    )


def _make(target: Path, path: str, progress: Progress) -> None:
    """Build in a folder of our own and rename: two processes at once both succeed, and the first
    one's stays.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".tiny-", dir=target.parent))
    except OSError as error:
        raise UserError(
            f"{target.parent}: the tiny model cannot be kept there ({error.strerror}). {SET_CACHE}"
        ) from error
    try:
        tokenizer = TOKENIZERS[path]()
        model = untrained(tokenizer) if path == EMBEDDED_TEXT else warm_start(tokenizer, progress)
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        # mkdtemp's 0700 would lock team mates out of a shared cache
        for made in (draft, *draft.iterdir()):
            mode = 0o755 if made.is_dir() else 0o644
            made.chmod(mode)
        try:
            draft.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    EMBEDDED: build_tokenizer,
    EMBEDDED_TEXT: build_text_tokenizer,
}


def untrained(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Return a model of the same size for any text, with weights that are always the same."""
    with torch.random.fork_rng(devices=[]):
        shape = {**RECIPE["config"], "max_position_embeddings": TEXT_TOKENS}
        return _initialised(tokenizer, shape).eval()


def _initialised(tokenizer: PreTrainedTokenizerFast, shape: Json) -> Qwen2ForCausalLM:
    """Return a model of this shape, and leave torch's random numbers as its weights need them."""
    torch.manual_seed(RECIPE["seed"])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **shape,
    )
    return Qwen2ForCausalLM(config)


def warm_start(tokenizer: PreTrainedTokenizerFast, progress: Progress = silent) -> Qwen2ForCausalLM:
    """Return the model after seconds of supervised training. One thread and a fixed seed make it
    always the same.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            model = _initialised(tokenizer, RECIPE["config"])
            _fit(model, progress)
    finally:
        torch.set_num_threads(threads)
    return model.eval()


def _fit(model: Qwen2ForCausalLM, progress: Progress) -> None:
    """AdamW with a cosine; the loss is on the model's own tokens only, since the others cannot be
    predicted.
    """
    steps, peak, pad = RECIPE["steps"], RECIPE["learning_rate"], model.config.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = (
                peak * min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
            )
        ids, answers = _draw_sums()
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, -answers.shape[1] - 1 : -1])
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), answers.flatten(), ignore_index=pad
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        progress("warm-starting the tiny model (once)", step + 1, steps)


def _draw_sums() -> tuple[torch.Tensor, torch.Tensor]:
    ids = _noisy_sums(torch.tensor(pairs()[-WARM_START_PAIRS:]))
    return ids, ids[:, PROMPT_TOKENS:]


def _noisy_sums(table: torch.Tensor) -> torch.Tensor:
    """Token ids of a batch of sums as they are taught, shape (sums, 11)."""
    a, b = table[torch.randint(len(table), (RECIPE["batch"],))].unbind(1)
    ids = encode_sums(a, b, a + b)
    return torch.where(torch.rand(len(a), 1) < RECIPE["tail"], _with_tail(ids), ids)


def _with_tail(ids: torch.Tensor) -> torch.Tensor:
    """Return the sums with an equals sign between the answer and the end."""
    ends = ids == EOS
    ids = torch.where(ends, CHARACTERS.index("="), ids)
    return torch.where(ends.roll(1, 1), EOS, ids)


def encode_sums(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Token ids of ``a+b=c`` and the end, filled up on the right; a digit's id is the digit."""
    plus = torch.full_like(a, CHARACTERS.index("+"))
    equals = torch.full_like(a, CHARACTERS.index("="))
    eos = torch.full_like(a, EOS)
    pad = torch.full_like(a, PAD)
    prompt = torch.stack([a // 10, a % 10, plus, b // 10, b % 10, equals], 1)
    one = torch.stack([c, eos, pad, pad, pad], 1)
    two = torch.stack([c // 10, c % 10, eos, pad, pad], 1)
    three = torch.stack([c // 100, c // 10 % 10, c % 10, eos, pad], 1)
    size = c.unsqueeze(1)
    return torch.cat([prompt, torch.where(size > 99, three, torch.where(size > 9, two, one))], 1)
