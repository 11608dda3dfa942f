"""What ``grposweep best --as trl`` writes gives GRPOConfig the same arguments as the trial."""

import pytest

from grporecipe.frameworks.trl.keys import known
from grporecipe.model.setting import TRL
from grposweep.config.from_setting import trl_recipe
from grposweep.config.to_setting import read_setting
from grposweep.train._models import Loaded
from grposweep.train._trl_config import grpo_arguments
from grposweep.train.attempt import load_attempt

from .conftest import MakeTrial

# torch and TRL take 8 s to import
pytestmark = pytest.mark.slow

MODEL = Loaded("model", None, None, {"dtype": "float32"})
# What depends on the machine, or is placed by grposweep itself: evaluations, checkpoints, logs and
# the run's name.
OURS = {
    "output_dir",
    "eval_strategy",
    "eval_steps",
    "save_strategy",
    "save_total_limit",
    "logging_steps",
    "report_to",
    "disable_tqdm",
    "num_completions_to_print",
    "model_init_kwargs",
    "use_cpu",
    "ddp_backend",
    "ddp_find_unused_parameters",
    "bf16",
    "fp16",
    "data_seed",
    "per_device_eval_batch_size",
    "num_generations_eval",
    "log_completions",
    "vllm_max_model_length",
    "run_name",
    "project",
}
WINNERS: dict[str, list[str]] = {
    "plain": [],
    "lora": [
        "model.lora.r=16",
        "model.lora.r=4",
        "model.lora.alpha=9",
        "model.lora.target_modules=[q_proj]",
    ],
    "kl": ["kl=low", "kl.sync_ref_model=true"],
    "loss": [
        "loss.loss_type=dr_grpo",
        "loss.epsilon_high=0.28",
        "trainer.args.delta=2.0",
        "loss.scale_rewards=none",
    ],
    "optimizer": [
        "optimizer.weight_decay=0.1",
        "optimizer.lr_scheduler_type=cosine",
        "optimizer.warmup_steps=0.1",
    ],
    "generation": [
        "generation.top_p=0.9",
        "generation.min_p=0.05",
        "generation.generation_kwargs={min_new_tokens: 2}",
    ],
    "model": [
        "model.gradient_checkpointing=true",
        "model.trust_remote_code=true",
        "task.reward_weights=[0.5]",
    ],
    "arguments": ["trainer.args.disable_dropout=true", "trainer.args.shuffle_dataset=false"],
}


@pytest.mark.parametrize("kind", WINNERS)
def test_the_recipe_of_a_winner_has_all_that_decides_its_training(
    make_trial: MakeTrial, kind: str
) -> None:
    """Every argument of the trial is in the recipe, or is TRL's default."""
    attempt = load_attempt(make_trial(*WINNERS[kind]))
    setting = read_setting(attempt.experiment)
    written, _, _ = trl_recipe(attempt.experiment, setting)
    defaults = {
        **known(TRL).defaults,
        "steps_per_generation": written["gradient_accumulation_steps"],
    }
    arguments = {
        name: value for name, value in grpo_arguments(attempt, MODEL).items() if name not in OURS
    }
    assert {name: written.get(name, defaults.get(name)) for name in arguments} == arguments
    lora = attempt.experiment.model.lora
    adapters = {
        "lora_r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "lora_target_modules": lora.target_modules,
    }
    assert not lora.enabled or {name: written[name] for name in adapters} == adapters
