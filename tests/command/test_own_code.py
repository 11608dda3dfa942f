"""Launches compared with the trainers' own code, where an environment under .venvs has it: verl,
TRL 0.18.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grporecipe.files import write_text
from stub_frameworks import write_framework
from support import PROJECT, Run, read, trials

pytestmark = pytest.mark.slow
VENVS = PROJECT / ".venvs"
TRL_018, VERL = (VENVS / name / "bin" / "python" for name in ("trl-0.18.0", "verl"))
HYDRA = """
import runpy, sys
sys.path.insert(0, {stubs!r})
from stubs import stub
stub("ray", "vllm", "transfer_queue", "pylatexenc", "liger_kernel", "sglang", "torchdata", "PIL")
sys.argv = ["main_ppo", "--cfg", "job", *sys.argv[1:]]
runpy.run_module("verl.trainer.main_ppo", run_name="__main__")
"""
MODEL = """
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
words = [*"0123456789+-=", "<unk>", "<pad>", "<eos>"]
inner = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
inner.pre_tokenizer, inner.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokens = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<eos>"}
PreTrainedTokenizerFast(tokenizer_object=inner, padding_side="left", **tokens).save_pretrained("tiny")
size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
ids = {"pad_token_id": 14, "eos_token_id": 15, "bos_token_id": None}
Qwen2ForCausalLM(Qwen2Config(vocab_size=16, num_key_value_heads=1, **size, **ids)).save_pretrained("tiny")
"""
SCRIPT = """
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser

def digits(completions, **_):
    return [sum(letter.isdigit() for letter in text) / 4 for text in completions]

if __name__ == "__main__":
    _, args, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    prompts = Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(10, 20) for b in range(10, 20)])
    trainer = GRPOTrainer(model.model_name_or_path, digits, args, prompts, prompts.select(range(10)))
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
RECIPE = """
model_name_or_path: tiny
dataset_name: sums
use_cpu: true
bf16: false
report_to: []
num_generations: 4
per_device_train_batch_size: 16
max_prompt_length: 8
max_completion_length: 4
warmup_ratio: 0.1
max_steps: 4
logging_steps: 1
eval_strategy: steps
eval_steps: 2
per_device_eval_batch_size: 20
save_steps: 2
"""


@pytest.mark.skipif(not TRL_018.exists(), reason="needs TRL 0.18.0 (make trl-versions)")
def test_open_r1s_trl_trains_a_sweep(run: Run, here: Path) -> None:
    """A stand-in for its grpo.py, with the parser and the trainer of TRL 0.18.0, on a tiny model
    made by its own transformers.
    """
    (here / "src" / "open_r1").mkdir(parents=True)
    write_text(here / "src" / "open_r1" / "grpo.py", SCRIPT)
    write_text(here / "recipe.yaml", RECIPE)
    known = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(
        [str(TRL_018), "-c", MODEL], cwd=here, env=known, check=True, capture_output=True
    )
    command = ("--", str(TRL_018), "src/open_r1/grpo.py", "--config", "recipe.yaml")
    points = ("lr=1e-3,1e-2", "batch.num_generations=4,6")
    ended = run("-m", *points, *command, timeout=400)
    assert ended.code == 0, ended
    results = [read(folder / "result.json") for folder in trials(ended.sweep)]
    assert [(result["status"], result["step"]) for result in results] == [("finished", 4)] * 2
    assert "GB101" in ended.out


@pytest.mark.skipif(not VERL.exists(), reason="needs verl (make verl)")
def test_verls_own_command_line_takes_a_trials_configuration(run: Run, here: Path) -> None:
    """Hydra composes the trial's words, which may set keys that exist and others; GPU packages are
    stand-ins.
    """
    write_framework(here, "verl")
    ended = run("cluster=dry_run", "name=s", "lr=5e-6", "kl.beta=0.02", "--", "bash run.sh")
    (trial,) = trials(ended.sweep)
    code = HYDRA.format(stubs=str(PROJECT / "benchmarks" / "frameworks"))
    script = (trial / "program.sh").read_text()
    words = json.loads(re.search(r"GRPOSWEEP_LAUNCH='(.*)'", script)[1])["words"]
    answer = subprocess.run(
        [str(VERL), "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert "kl_loss_coef: 0.02" in answer.stdout, answer.stderr[-2000:]
    assert "lr: 5.0e-06" in answer.stdout


def test_a_stop_waits_for_a_rollout_boundary_and_the_same_command_continues(
    run: Run, start: Callable, here: Path
) -> None:
    """Ctrl-C in the middle of a real TRL training of a user's script: a checkpoint at a boundary,
    no step twice or never.
    """
    import signal

    from end_to_end.test_own_script import BLOCK, DOCUMENT
    from grposweep.train._tiny import tiny_folder
    from support import lines, wait_for

    for kind, text in BLOCK.findall(DOCUMENT.read_text()):
        if kind in ("python", "yaml"):
            write_text(here / text.splitlines()[0].removeprefix("# "), text)
    (here / "tiny").symlink_to(tiny_folder())
    own = (
        "name=s",
        "schedule.max_steps=60",
        "--",
        f"{sys.executable} train.py --config recipe.yaml",
    )
    process = start(*own)
    wait_for(
        lambda: any(path.stat().st_size for path in here.glob("outputs/s/trials/*/metrics.jsonl")),
        120,
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    (trial,) = trials(here / "outputs" / "s")
    assert read(trial / "result.json")["status"] == "stopped"
    ended = run(*own, timeout=300)
    assert ended.code == 0, ended.out + str(read(trial / "result.json"))
    steps = [line["step"] for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"]
    assert steps == list(range(1, 61))
    assert {line["attempt"] for line in lines(trial / "metrics.jsonl")} == {0, 1}
