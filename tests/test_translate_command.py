"""``grposweep translate`` from the outside: text, files, exit codes, and what other programs make of its files."""

import os
import shlex
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from grporecipe.fields.recipes import read_recipe
from grporecipe.model.setting import Setting
from grporecipe.reading.load import Options, load_recipe, parse_recipe
from grporecipe.translate import translate as translate_setting
from grposweep.config import from_setting
from grposweep.config.from_setting import translate_own, write_own
from support import PROJECT, Ended, grposweep

RECIPE = """model_name_or_path: Qwen/Qwen2.5-7B
num_generations: 8
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
num_train_epochs: 1
warmup_steps: 0.1
eval_strategy: steps
eval_steps: 50
"""
Translate = Callable[..., Ended]


@pytest.fixture
def translate(here: Path) -> Translate:
    """``translate("recipe.yaml", "--to", "trl")`` in a folder that holds the recipe above."""
    (here / "recipe.yaml").write_text(RECIPE)

    return partial(grposweep, here, "translate")


def test_stdout_is_a_recipe_with_its_command_and_its_losses_in_comments(translate: Translate) -> None:
    """TRL's 1.16 names are ms-swift's; its defaults, which differ, are written out."""
    ended = translate("recipe.yaml", "--to", "ms-swift", "--processes", "8")
    assert ended.code == 0, ended.err
    written = yaml.safe_load(ended.out)
    assert (written["beta"], written["loss_type"], written["learning_rate"]) == (0.0, "dapo", 1e-6)
    assert "#   NPROC_PER_NODE=8 swift rlhf recipe.yaml" in ended.out
    assert "# Lost or changed:" in ended.out


def test_an_older_releases_words_are_those_of_its_time(translate: Translate) -> None:
    """Open-R1's TRL 0.18 has no dapo, a share of the steps is a ratio, and the scaling of rewards is yes or no."""
    ended = translate("recipe.yaml", "--to", "open-r1", "--processes", "8")
    written = yaml.safe_load(ended.out)
    assert (written["warmup_ratio"], written["scale_rewards"], written["loss_type"]) == (0.1, True, "bnpo")
    assert "loss_type=dapo" in ended.out


def test_a_value_that_only_the_running_script_knows_is_listed() -> None:
    """A path is written as it is, and nothing takes its variable out."""
    script = "python3 -m verl.trainer.main_ppo data.train_files=$HOME/t.parquet algorithm.adv_estimator=grpo +x.y=$Z\n"
    recipe = parse_recipe(Path("run.sh"), script, Options())
    for target in ("trl", "grposweep"):
        translator = translate_own if target == "grposweep" else translate_setting
        losses = translator(read_recipe(recipe).setting, target, recipe).losses
        assert losses[0].startswith("data.train_files=$HOME/t.parquet: written as it is"), losses
        assert any("x.y=$Z" in loss for loss in losses[1:])


ASYNC_OF_TRL = """
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
args = AsyncGRPOConfig(output_dir="o", per_device_train_batch_size=16, gradient_accumulation_steps=4, num_generations=8,
                       max_staleness=2, weight_sync_steps=4, max_steps=200, token_budget=0)
AsyncGRPOTrainer(model="m", args=args, reward_funcs=f, train_dataset=d).train()
"""


def test_trls_asynchronous_trainer_becomes_verls(translate: Translate, here: Path) -> None:
    """8 processes x 16 x 4 completions are 64 prompts in each step: 200 steps take 12,800, and 3 x 4 x 64 may be under way."""
    (here / "train.py").write_text(ASYNC_OF_TRL)
    ended = translate("train.py", "--to", "verl", "--processes", "8")
    assert ended.code == 0, ended.err
    written = yaml.safe_load(ended.out)
    training, actor = written["async_training"], written["actor_rollout_ref"]["actor"]
    assert (training["staleness_threshold"], training["trigger_parameter_sync_step"]) == (2, 4)
    assert (actor["ppo_mini_batch_size"], written["rollout"]["total_rollout_steps"]) == (64, 12_800)
    assert (written["data"]["train_batch_size"], written["data"]["gen_batch_size"]) == (0, 1)
    assert "verl.experimental.fully_async_policy.fully_async_main" in ended.out
    assert "(1 + 2) x 4 x 64 = 768 prompts" in ended.out


def test_an_asynchronous_recipe_becomes_a_study_of_its_own_trainer(translate: Translate, here: Path) -> None:
    """With its staleness; a framework without such a trainer gets a recipe that says what is left out."""
    (here / "train.py").write_text(ASYNC_OF_TRL)
    assert translate("train.py", "--to", "grposweep", "--processes", "8", "-o", "own").code == 0
    study = yaml.safe_load((here / "own" / "sweeps" / "translated.yaml").read_text())
    assert study["trainer"] == {"kind": "async_trl", "max_staleness": 2, "weight_sync_steps": 4}
    assert "loss_type: bnpo" in (here / "own" / "loss" / "translated.yaml").read_text()
    assert "vllm_mode: server" in (here / "own" / "generation" / "translated.yaml").read_text()
    out = translate("train.py", "--to", "ms-swift", "--processes", "8").out
    assert (
        "asynchronous training (max_staleness=2, weight_sync_steps=4, token_budget=0): this recipe generates before"
        in out
    )


def test_verls_asynchronous_trainer_is_named_in_trls_terms(translate: Translate, here: Path) -> None:
    """A threshold of a half lets samples be one sync old; two mini-batches in each of four steps are eight optimizer steps."""
    (here / "verl.yaml").write_text(
        "async_training: {staleness_threshold: 0.5, trigger_parameter_sync_step: 4, require_batches: 2}\n"
        "data: {train_batch_size: 0, gen_batch_size: 1}\nalgorithm: {adv_estimator: grpo}\n"
        "actor_rollout_ref: {actor: {ppo_mini_batch_size: 32, ppo_micro_batch_size_per_gpu: 8}, rollout: {n: 8}}\n"
    )
    out = translate("verl.yaml", "--to", "trl", "--processes", "4").out
    assert "max_staleness=1, weight_sync_steps=4 x 2 = 8, token_budget=0) with 32 x 8 = 256 completions" in out


def test_a_folder_gets_the_recipe_and_a_script_that_launches_it(translate: Translate, here: Path) -> None:
    """Losses are reported, not written into the way of the files."""
    ended = translate("recipe.yaml", "--to", "trl", "--processes", "8", "-o", "out")
    assert ended.code == 0
    assert yaml.safe_load((here / "out" / "recipe.yaml").read_text())["gradient_accumulation_steps"] == 8
    assert "--num_processes 8" in (here / "out" / "launch.sh").read_text()


def test_a_recipe_that_is_broken_as_it_is_is_told_so(translate: Translate, here: Path) -> None:
    """7 processes x 4 x 8 completions hold no whole groups of 12; a file that is none is unusable."""
    (here / "broken.yaml").write_text(RECIPE.replace("num_generations: 8", "num_generations: 12"))
    ended = translate("broken.yaml", "--to", "trl", "--processes", "7")
    assert ended.code == 1
    assert "GB101" in ended.err
    assert translate("nope.yaml", "--to", "trl").code == 2


def test_the_command_in_a_study_of_our_own_bears_a_blank_in_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pasted into a shell, run.py's path is one word."""
    command = ("python", "/a folder/src/run.py", "sweeps=translated")
    monkeypatch.setattr(from_setting, "COMMAND", command)
    text = write_own(Setting())[0]["sweeps/translated.yaml"]
    assert shlex.split(text.splitlines()[1].removeprefix("# ")) == list(command)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("dtype: bfloat16", {"dtype": "bfloat16"}),
        ("torch_dtype: float32", {"dtype": "float32", "mixed_precision": "bf16"}),
        ("fp16: true", {"dtype": "float32", "mixed_precision": "fp16"}),
        ("dtype: auto", {"mixed_precision": "bf16"}),
        ("", {}),
    ],
)
def test_our_own_study_has_the_types_of_the_recipe(line: str, wanted: dict[str, str]) -> None:
    """TRL computes in bfloat16 unless a recipe says otherwise; the type of a model's files is not known here."""
    recipe = parse_recipe(Path("recipe.yaml"), f"{RECIPE}{line}\n", Options("trl", None, 1, None))
    translation = translate_own(read_recipe(recipe).setting, "grposweep", recipe)
    study = yaml.safe_load(translation.files["sweeps/translated.yaml"])
    assert study["model"] == {"path": "Qwen/Qwen2.5-7B", **wanted}
    assert any("set model.dtype" in lost for lost in translation.losses) == (line == "dtype: auto")


@pytest.mark.slow
def test_our_own_groups_run(translate: Translate, run: Callable[..., Ended], here: Path) -> None:
    """The study that it writes, swept over its own batch and ours, with the trainer that needs no model."""
    assert translate("recipe.yaml", "--to", "grposweep", "--processes", "1", "-o", ".").code == 0
    ended = run(
        "--config-dir",
        ".",
        "sweeps=translated",
        "trainer=fake",
        "schedule=steps",
        "-m",
        "batch=translated,small",
        "lr=1e-4,1e-3",
    )
    assert ended.code == 0, ended.err
    assert "batch" in ended.out


@pytest.mark.slow
def test_trls_own_parser_takes_what_is_written(translate: Translate, here: Path) -> None:
    """The installed release's, as ``trl.scripts.grpo`` builds it."""
    from trl.scripts.grpo import make_parser

    translate("recipe.yaml", "--to", "trl", "--processes", "8", "-o", ".")
    extra = ["--output_dir", str(here), "--use_cpu", "true", "--bf16", "false"]
    found = make_parser().parse_args_and_config(["--config", str(here / "recipe.yaml"), *extra])
    assert found[1].num_generations == 8
    assert found[1].warmup_steps == 0.1


OPEN_R1 = PROJECT / ".venvs" / "trl-0.18.0" / "bin" / "python"
PARSE = """
import sys
from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser
found = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config(sys.argv[1:])
print(found[1].num_generations, found[1].warmup_ratio, found[1].generation_batch_size, found[1].beta)
"""


@pytest.mark.slow
@pytest.mark.skipif(not OPEN_R1.exists(), reason="needs TRL 0.18 (make trl-versions)")
def test_the_parser_of_open_r1s_trl_takes_what_is_written(translate: Translate, here: Path) -> None:
    """TRL 0.18.0, really installed, in an environment of its own."""
    translate("recipe.yaml", "--to", "open-r1", "--processes", "1", "-o", ".")
    recipe = yaml.safe_load((here / "recipe.yaml").read_text()) | {
        "dataset_name": "x",
        "use_cpu": True,
        "output_dir": "out",
    }
    (here / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    asked = [str(OPEN_R1), "-c", PARSE, "--config", "recipe.yaml"]
    answer = subprocess.run(
        asked, cwd=here, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False
    )
    assert answer.stdout.split() == ["8", "0.1", "32", "0.0"], answer.stderr[-2000:]


def test_rewards_that_trl_s_script_does_not_know_are_named(here: Path) -> None:
    """Open-R1's default rewards too: they would stop TRL's own script at its start."""
    (here / "recipe.yaml").write_text(
        f"{RECIPE}reward_funcs: [accuracy, format, tag_count]\nreward_weights: [1.0, 1.0, 0.5]\n"
    )
    ended = grposweep(here, "translate", "recipe.yaml", "--to", "trl", "--processes", "8")
    assert yaml.safe_load(ended.out)["reward_funcs"] == ["accuracy", "format", "tag_count"]
    assert (
        "reward_funcs=accuracy, format, tag_count: names of another script, and trl.scripts.grpo stops at them"
        in ended.out
    )


@pytest.mark.parametrize(("script", "target", "written"), [
    ("verl.trainer.main data.rollout_batch_size=64 worker.rollout.n=8 trainer.total_episodes=15", "verl", {"total_epochs": 15}),
    ("verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8", "easyr1", {}),
])  # fmt: skip
def test_names_and_lengths_of_easyr1_and_verl_are_kept(
    here: Path, script: str, target: str, written: dict[str, object]
) -> None:
    """EasyR1 is a fork of verl, so these keys mean the same in both."""
    names = {"project_name": "p", "experiment_name": "e", "val_before_train": False}
    options = " ".join(f"trainer.{name}={value}" for name, value in names.items())
    (here / "run.sh").write_text(f"python3 -m {script} {options}\n")
    recipe = load_recipe(here / "run.sh", Options())
    made = translate_setting(read_recipe(recipe).setting, target, recipe)
    trainer = yaml.safe_load(next(iter(made.files.values())))["trainer"]
    assert {key: trainer.get(key) for key in names | written} == names | written


def test_a_share_of_an_unknown_number_of_steps_is_no_frequency(here: Path) -> None:
    """A checkpoint every rollout would fill the disk: it is left out and listed."""
    setting = Setting(given=frozenset({"save_steps"}), processes=8, save_steps=0.05, keys={"save_steps": "save_steps"})
    made = translate_setting(setting, "verl")
    assert yaml.safe_load(made.files["recipe.yaml"])["trainer"]["save_freq"] == -1
    assert any("save_steps=0.05" in loss for loss in made.losses)


def test_the_type_that_a_script_loads_its_model_with_is_written(here: Path) -> None:
    """ms-swift's default is the type of the model's files, so it needs no key there."""
    (here / "train.py").write_text(
        "import torch\nfrom transformers import AutoModelForCausalLM\nfrom trl import GRPOConfig, GRPOTrainer\n"
        'more = {"torch_dtype": torch.bfloat16}\nmodel = AutoModelForCausalLM.from_pretrained("m", **more)\n'
        'GRPOTrainer(model=model, args=GRPOConfig(output_dir="o", num_generations=8), reward_funcs=[len])\n'
    )
    recipe = load_recipe(here / "train.py", Options())
    written = [yaml.safe_load(translate_setting(read_recipe(recipe).setting, target, recipe).files["recipe.yaml"])
               for target in ("trl", "ms-swift")]  # fmt: skip
    assert [made.get("dtype", made.get("torch_dtype")) for made in written] == ["bfloat16", None]
