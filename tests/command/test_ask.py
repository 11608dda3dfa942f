"""A user's command is asked what its trainer gets: launches as people write them, and what cannot
be asked.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from grporecipe.errors import UserError
from grposweep.command.ask import Asked, ask
from support import grposweep

Ask = Callable[..., Asked]
HEAD = """
    from datasets import load_dataset
    from trl import GRPOConfig, GRPOTrainer
    def reward(completions, **_):
        return [0.0 for _ in completions]
    def data():
        return load_dataset("json", data_files="train.jsonl", split="train")
"""
TRL = """
    from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config
    script, args, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
"""
END = "GRPOTrainer(model='tiny', reward_funcs=reward, args=args, train_dataset=data()).train()\n"
ARGPARSE = """
    import argparse
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1e-5)
    p.add_argument("--bs", type=int, default=16)
    a = p.parse_args()
    args = GRPOConfig(output_dir="o", learning_rate=a.lr * 2, num_generations=4, gradient_accumulation_steps=a.bs // 8)
    args.warmup_steps = 3
"""
SECTIONS = """
    import argparse, os, yaml
    p = argparse.ArgumentParser()
    p.add_argument("--config")
    cfg = yaml.safe_load(open(p.parse_args().config))
    args = GRPOConfig(output_dir=os.environ["OUT"], **cfg["training"])
"""
DATA = 'args = GRPOConfig("o", num_generations=4, learning_rate=1e-4, max_steps=len(data()) // 8)'
ACCELERATE = "python -m accelerate.commands.launch"
LAUNCH = f"""
    export OUT=folder
    python -c "open('prepared.txt', 'a').write('x')"
    {ACCELERATE} --num_processes 4 train.py --config sections.yaml
    touch after
"""
UNSLOTH = """
    from unsloth import FastLanguageModel, is_bfloat16_supported
    from trl import GRPOConfig, GRPOTrainer
    model, tokenizer = FastLanguageModel.from_pretrained(model_name="tiny")
    class Own(GRPOTrainer):
        def _get_train_sampler(self, dataset=None):
            return None
    args = GRPOConfig("o", num_generations=6, bf16=is_bfloat16_supported())
    Own(model=model, processing_class=tokenizer, reward_funcs=[len], args=args, train_dataset=[])
"""
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
SLOW = pytest.mark.slow


def script(body: str, head: str = HEAD, end: str = END) -> str:
    """A training script that builds its configuration in this way."""
    own = dedent(body)
    return dedent(head) + (
        own.replace("{end}", end.strip()) if "{end}" in own else own + "\n" + end
    )


@pytest.fixture
def asked(here: Path) -> Ask:
    """``asked(script, command)``: the answer to a command in a folder with a script and its
    files.
    """
    (here / "train.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n")
    (here / "sections.yaml").write_text("training: {learning_rate: 3.0e-4, num_generations: 4}\n")
    (here / "hydra.yaml").write_text("optim: {lr: 1.0e-4}\ngroup: 4\n")
    (here / "flat.yaml").write_text("learning_rate: 2.0e-4\noutput_dir: o\n")
    (here / "launch.sh").write_text(dedent(LAUNCH))

    def answer(text: str, command: str, processes: int | None = None, **variables: str) -> Asked:
        (here / "train.py").write_text(text)
        return ask(command, here, {"PATH": PATH, "HF_HUB_OFFLINE": "1", **variables}, processes)

    return answer


@pytest.mark.parametrize(
    ("text", "command", "given", "world"),
    [
        (
            script(ARGPARSE),
            "python train.py --lr 1e-4",
            {"learning_rate": 2e-4, "gradient_accumulation_steps": 2, "warmup_steps": 3},
            1,
        ),
        (script(SECTIONS), "bash launch.sh", {"learning_rate": 3e-4, "output_dir": "folder"}, 4),
        pytest.param(
            script(SECTIONS),
            f"export OUT=o; {ACCELERATE} --multi_gpu train.py --config sections.yaml",
            {"learning_rate": 3e-4},
            3,
            marks=SLOW,
        ),
    ],
)
def test_a_launch_is_asked_as_it_is(
    asked: Ask, here: Path, text: str, command: str, given: dict[str, object], world: int
) -> None:
    """On stand-ins: every value that its trainer would get, its processes and its data; the rest of
    the command does not run.
    """
    found = asked(text, command, processes=3, HF_HOME=str(here))
    assert found.how == "stand-ins", found.why
    assert given.items() <= found.record["given"].items()
    assert found.record["world_size"] == world
    assert str(here / "train.jsonl") in found.files
    assert found.record["base"] == "GRPOTrainer"
    assert not (here / "prepared.txt").exists()
    assert not (here / "after").exists()


@pytest.mark.slow
def test_a_value_of_the_data_is_unknown(asked: Ask) -> None:
    """Not a number of a stand-in; what does not depend on data is known."""
    record = asked(script(DATA), "python train.py").record
    assert record["unknown"] == ["max_steps"]
    assert not {"max_steps"} & {*record["given"], *record["values"]}
    assert (record["train_rows"], record["given"]["learning_rate"]) == (None, 1e-4)


@pytest.mark.slow
def test_values_that_the_trainer_refuses_are_named(asked: Ask) -> None:
    """With the message of the configuration and the line."""
    with pytest.raises(
        UserError,
        match=r"(?s)refused at train\.py:8: ValueError: .* \(8\) must be divisible .* \(7\)",
    ):
        asked(script('args = GRPOConfig("o", num_generations=7)'), "python train.py")


@pytest.mark.slow
def test_several_trainings_are_refused(asked: Ask) -> None:
    """A loop in the shell or in the script is more than one training."""
    loop = script(
        "for seed in (1, 2):\n    args = GRPOConfig('o', num_generations=4, seed=seed)",
        end="    " + END,
    )
    with pytest.raises(UserError, match=r"several GRPO trainers: a second one at train\.py:\d"):
        asked(loop, "python train.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "command", "said"),
    [
        (
            "import trl\nprint('hello')\n",
            "python train.py",
            "ended without building a GRPO trainer.*hello",
        ),
        ("", "python missing.py", "can't open file"),
        (
            "import trl\nraise ValueError('my own')\n",
            "python train.py",
            "fails before its GRPO trainer: ValueError: my own",
        ),
    ],
)
def test_what_cannot_be_asked_says_why(asked: Ask, text: str, command: str, said: str) -> None:
    """Each message names the command, and has the last lines of its output."""
    with pytest.raises(UserError, match=f"(?s){said}"):
        asked(text, command)


@pytest.mark.slow
def test_a_script_that_writes_is_run_for_real(asked: Ask, here: Path) -> None:
    """Nothing is written from stand-ins; for real the number of rows is known. What it wrote is
    gone afterwards.
    """
    text = script(
        "open('rows.txt', 'w').write(str(len(data())))\nargs = GRPOConfig('o', "
        "max_steps=len(data()))"
    )
    found = asked(text, "python -m torch.distributed.run --nproc_per_node 2 train.py")
    assert (found.how, (here / "rows.txt").exists()) == ("real", False)
    assert "open rows.txt must not happen on stand-ins" in found.why
    assert (
        found.record["given"]["max_steps"],
        found.record["train_rows"],
        found.record["world_size"],
    ) == (1, 1, 2)


@pytest.mark.slow
def test_the_users_own_start_of_python_runs(asked: Ask, here: Path) -> None:
    """A ``sitecustomize`` on the user's PYTHONPATH."""
    (here / "site").mkdir()
    (here / "site" / "sitecustomize.py").write_text("import os\nos.environ['OUT'] = 'theirs'\n")
    command = f"PYTHONPATH=$PYTHONPATH:'{here / 'site'}' python train.py --config sections.yaml"
    assert asked(script(SECTIONS), command).record["given"]["output_dir"] == "theirs"


@pytest.mark.slow
def test_a_notebook_is_asked_without_a_kernel(asked: Ask, here: Path) -> None:
    """With the parameters that papermill would insert."""
    cells = [
        ("lr = 1e-5", ["parameters"]),
        ("%pip install trl", []),
        (script("args = GRPOConfig('o', learning_rate=lr)"), []),
    ]
    made = [
        {"cell_type": "code", "metadata": {"tags": tags}, "source": text} for text, tags in cells
    ]
    (here / "train.ipynb").write_text(json.dumps({"cells": made, "nbformat": 4}))
    (here / "papermill").write_text("import papermill\n")
    found = asked("", "python papermill train.ipynb out.ipynb -p lr 1e-3")
    assert (found.how, found.record["given"]["learning_rate"]) == ("stand-ins", 1e-3)
    assert found.record["line"].startswith("train.ipynb:")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "base", "own_batches", "is_unsloth"),
    [
        (dedent(UNSLOTH), "GRPOTrainer", ["_get_train_sampler"], True),
        (
            script(
                "from trl import SFTConfig, SFTTrainer\nSFTTrainer(model='m', "
                "args=SFTConfig('s')).train()\n"
                "args = GRPOConfig('o', num_generations=4)"
            ),
            "GRPOTrainer",
            [],
            False,
        ),
        (
            script(
                "import transformers\nclass GRPOTrainer(transformers.Trainer):\n    pass\nargs "
                "= GRPOConfig('o')"
            ),
            None,
            [],
            False,
        ),
    ],
)
def test_other_trainers_are_asked(
    asked: Ask, text: str, base: str | None, own_batches: list[str], is_unsloth: bool
) -> None:
    """Unsloth, which adjusts the batch, a stage before GRPO, and a trainer of one's own that takes
    a GRPOConfig.
    """
    found = asked(text, "python train.py")
    assert found.how == "stand-ins", found.why
    record = found.record
    assert (record["base"], record["own_batches"], record["unsloth"]) == (
        base,
        own_batches,
        is_unsloth,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "adapter"),
    [("", {}), (" --use_peft --lora_r 8", {"r": 8, "lora_alpha": 32, "lora_dropout": 0.05})],
)
def test_an_adapter_is_known_without_peft(
    asked: Ask, option: str, adapter: dict[str, object]
) -> None:
    """That of TRL's own options, so a sweep of its rank is not taken for one that changes
    nothing.
    """
    peft = "train_dataset=data(), peft_config=get_peft_config(model)"
    found = asked(
        script(TRL, end=END.replace("train_dataset=data()", peft)),
        f"python train.py --output_dir o{option}",
    )
    assert (found.record["peft"], found.how) == (bool(adapter), "stand-ins"), found.why
    assert adapter.items() <= found.record["adapter"].items()


@pytest.mark.slow
def test_check_judges_what_the_trainer_gets(here: Path) -> None:
    """With the sizes of the script, not TRL's defaults; a rule that needs an unknown value is
    silent.
    """
    sizes = "num_generations=12, per_device_train_batch_size=12"
    (here / "train.py").write_text(
        script(f"args = GRPOConfig('o', {sizes}, learning_rate=len(data()), beta=-1.0)")
    )
    ended = grposweep(here, "check", "--", "LR={lr} SEED={seed:1} python train.py", PATH=PATH)
    filled, first, *rest = ended.out.splitlines()
    assert filled == "{lr} is filled with 1e-06, TRL's default. Another one: {lr:VALUE}"
    assert first.startswith("train.py:9 builds GRPOTrainer with 1 process, TRL "), ended.err
    assert "asked on stand-ins in" in first
    assert rest[0] == "not judged, because only a real run knows it: learning_rate"
    assert (ended.code, "GB101" in ended.out, "train.py:8: GK" in ended.out) == (1, False, True)


def test_check_reads_a_launch_of_another_framework(here: Path) -> None:
    """As lint does, without running it."""
    (here / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=8 \\\n"
        "  actor_rollout_ref.actor.ppo_mini_batch_size=16\n"
    )
    ended = grposweep(here, "check", "--", "bash", "run.sh")
    assert "run.sh:2: GB" in ended.out, ended.err


def test_check_takes_the_fields_and_the_batches_of_a_subclass_for_what_they_are(here: Path) -> None:
    """A field of the program's own is no unknown key, and a method that calls its parent's makes
    TRL's batches.
    """
    own = """
        import dataclasses
        @dataclasses.dataclass
        class Own(GRPOConfig):
            reward_scale: float = 1.0
        class Trainer(GRPOTrainer):
            def __init__(self, *values, **named):
                super().__init__(*values, **named)
            def _prepare_inputs(self, inputs):
                return super()._prepare_inputs(inputs)
        args = Own("o", num_generations=4, reward_scale=2.0)
    """
    (here / "train.py").write_text(script(own, end=END.replace("GRPOTrainer", "Trainer")))
    ended = grposweep(here, "check", "--", "python", "train.py", PATH=PATH)
    assert (ended.code, "GV1" in ended.out) == (0, False), ended
    assert "builds Trainer with 1 process" in ended.out
