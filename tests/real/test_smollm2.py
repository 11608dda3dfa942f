"""Whole runs of a real language model, SmolLM2-135M-Instruct: a few steps each, minutes on two
cores (``make real-model``).
"""

import json
import math
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grporecipe.files import Json
from support import PROJECT, Ended, Run, Start, grposweep, lines, read, run_in, trials, wait_for

MODEL = PROJECT / ".models/smollm2_135m"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.skipif(
        not MODEL.is_dir(), reason="needs the model that `make real-model` makes (93 MB, a minute)"
    ),
]

QUESTION = "What is {} + 5? Reply with the number only."
SHORT = (
    "model=smollm2_135m",
    f"model.path={MODEL}",
    "task=jsonl",
    "task.path=rows.jsonl",
    "task.rewards=[rewards.py:spread]",
    "task.eval_prompts=2",
    "batch.num_generations=2",
    "batch.num_generations_eval=1",
    "batch.per_device_train_batch_size=4",
    "batch.gradient_accumulation_steps=1",
    "generation.max_completion_length=8",
    "schedule.budget_completions=null",
    "schedule.max_steps=1",
    "schedule.evaluations=1",
    "schedule.eval_at_start=false",
    "optimizer.warmup_steps=0",
    "name=s",
)
# Never twice the same in a group, so that every step has a gradient.
REWARD = """
def spread(completions, **_):
    return [float(place % 2) for place, _ in enumerate(completions)]
"""


def write_task(folder: Path, prompt: Callable[[int], Any]) -> Path:
    """A folder with eight rows and the reward; the folder."""
    rows = [{"prompt": prompt(number), "answer": str(number + 5)} for number in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARD)
    return folder


def asked(number: int) -> list[dict[str, str]]:
    """A conversation."""
    return [{"role": "user", "content": QUESTION.format(number)}]


def metrics(sweep: Path, kind: str = "train") -> list[Json]:
    """The training steps, or evaluations, of a sweep's first trial."""
    return [line for line in lines(trials(sweep)[0] / "metrics.jsonl") if line["kind"] == kind]


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A run on conversations with a system prompt; its folder and what it said."""
    here = write_task(tmp_path_factory.mktemp("real"), asked)
    ended = run_in(here, *SHORT, "task.system_prompt=You add numbers.", "lr=1e-4", timeout=900)
    assert ended.code == 0, ended.out + ended.err
    return ended.sweep, ended


def test_conversations_with_a_system_prompt_are_trained_on(
    conversations: tuple[Path, Ended],
) -> None:
    """The tokenizer's template is used, and nothing says that it is missing."""
    sweep, ended = conversations
    assert "GD202" not in ended.out + ended.err
    (step,) = metrics(sweep)
    assert math.isfinite(step["loss"])
    assert step["grad_norm"] > 0
    (trial,) = trials(sweep)
    assert all(
        line["prompt"].startswith("You add numbers.\n")
        for line in lines(trial / "completions.jsonl")
    )


def test_a_rollout_of_the_model_is_in_the_report(conversations: tuple[Path, Ended]) -> None:
    """Words instead of digits, as the page and show print them."""
    sweep, _ = conversations
    ended = grposweep(sweep.parent.parent, "report", "s")
    assert ended.code == 0, ended.err
    sampled = lines(trials(sweep)[0] / "completions.jsonl")[-1]["completion"]
    assert json.dumps(sampled)[1:-1].split("\\")[0] in (sweep / "report.html").read_text()


def test_the_winner_is_a_folder_that_transformers_loads(conversations: tuple[Path, Ended]) -> None:
    """With its tokenizer and template; its weights moved, and it writes tokens of its
    vocabulary.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    sweep, _ = conversations
    folder = trials(sweep)[0] / "model"
    model, before = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (folder, MODEL)
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert any(
        not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True)
    )
    ids = tokenizer.apply_chat_template(
        asked(2), add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = model.generate(**ids, max_new_tokens=6, do_sample=False)[
        0, ids["input_ids"].shape[1] :
    ]
    assert tokenizer.decode(written, skip_special_tokens=True).strip()


def test_fit_counts_prompts_as_the_preparation_does(conversations: tuple[Path, Ended]) -> None:
    """Without transformers, by the same files: the template's own system turn, special tokens and
    all.
    """
    from grposweep.config.compose import load_experiment
    from grposweep.train.prompts import count_local

    sweep, _ = conversations
    (entry,) = read(sweep / "prepared.json")["entries"].values()
    experiment = load_experiment(trials(sweep)[0] / "config.yaml")
    experiment.task.path = str(sweep.parent.parent / "rows.jsonl")
    assert count_local(experiment) == entry["longest_prompt"]


def test_text_goes_into_the_template_by_itself(here: Path) -> None:
    """Two LoRA trials side by side: task.chat is not set, the tokenizer has a template, and both
    train adapters only.
    """
    write_task(here, QUESTION.format)
    ended = run_in(
        here,
        *SHORT,
        "model.lora.r=16",
        "model.lora.r=4",
        "-m",
        "lr=1e-4,1e-3",
        "search.parallel=2",
        timeout=900,
    )
    assert ended.code == 0, ended.out + ended.err
    (entry,) = read(ended.sweep / "prepared.json")["entries"].values()
    assert entry["chat"] is True
    assert len(QUESTION.split()) < entry["longest_prompt"] < 64
    assert [len(lines(trial / "metrics.jsonl")) for trial in trials(ended.sweep)] == [2, 2]
    (winner,) = ended.sweep.glob("trials/*/model")
    assert (winner / "adapter_model.safetensors").stat().st_size < 10 << 20
    assert read(winner / "adapter_config.json")["r"] == 4


def test_a_stopped_run_continues_from_its_checkpoint(start: Start, run: Run, here: Path) -> None:
    """Ctrl-C ends it after a step; the same command does the others, and none twice."""
    write_task(here, asked)
    long = [*SHORT, "schedule.max_steps=3"]
    stopped = start(*long)
    wait_for(
        lambda: list(here.glob("outputs/s/trials/*/metrics.jsonl")) and metrics(here / "outputs/s"),
        600,
    )
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(timeout=300) == 130
    assert 1 <= len(metrics(here / "outputs/s")) < 3
    ended = run(*long, timeout=900)
    assert ended.code == 0, ended.out + ended.err
    assert [line["step"] for line in metrics(here / "outputs/s")] == [1, 2, 3]


def test_one_long_prompt_is_trained_on_and_named(here: Path) -> None:
    """Eight hundred tokens among prompts of forty."""
    write_task(
        here,
        lambda n: [
            {"role": "user", "content": "one two three four " * (200 if n == 3 else 1) + str(n)}
        ],
    )
    sizes = ["batch.per_device_train_batch_size=2", "schedule.max_steps=4", "task.eval_prompts=1"]
    ended = run_in(here, *SHORT, *sizes, timeout=900)
    assert ended.code == 0, ended.out + ended.err
    assert re.search(
        r"the longest prompt has 8\d\d tokens\. All but 1 of 8 prompts", " ".join(ended.out.split())
    )


SCRIPT = f"""
from dataclasses import dataclass
from datasets import load_dataset
from transformers import HfArgumentParser
from trl import GRPOConfig, GRPOTrainer

from rewards import spread

def prompts(row):
    return {{"prompt": [{{"role": "user", "content": row["text"]}}]}}

if __name__ == "__main__":
    (args,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses()
    data = load_dataset("json", data_files="texts.jsonl", split="train").map(prompts)
    GRPOTrainer({str(MODEL)!r}, spread, args, train_dataset=data).train()
"""
LAUNCH = f"""
{shlex.quote(sys.executable)} train.py --output_dir out --learning_rate 1e-5 --per_device_train_batch_size 4 \\
    --num_generations 2 --max_completion_length 8 --max_steps 1 --logging_steps 1 --save_strategy steps --save_steps 1 \\
    --report_to none --use_cpu true --bf16 false --gradient_checkpointing false
"""


def test_a_script_of_the_users_own_trains_it(here: Path) -> None:
    """Launched by a shell script, without an edit."""
    write_task(here, asked)
    (here / "texts.jsonl").write_text(
        "".join(f'{{"text": "{QUESTION.format(n)}"}}\n' for n in range(8))
    )
    (here / "train.py").write_text(SCRIPT)
    (here / "launch.sh").write_text(LAUNCH)
    words = ("search.metric=reward", "name=s", "lr=1e-4", "--", "bash launch.sh")
    ended = run_in(here, *words, timeout=900)
    assert ended.code == 0, ended.out + ended.err
    (step,) = metrics(ended.sweep)
    assert step["learning_rate"] == pytest.approx(1e-4)
