"""What ``grposweep best --as trl`` writes: each key of a training is in the recipe, its command or
the list of what is left.
"""

import re
from functools import cache
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import TRL
from grposweep.config.compose import to_experiment
from grposweep.config.from_setting import trl_recipe
from grposweep.config.points import Compose
from grposweep.config.to_setting import read_setting
from grposweep.schema import value_at
from support import PROJECT

BASE = [
    "model.path=Qwen/Qwen2.5-0.5B",
    "kl=low",
    "schedule.max_steps=100",
    "schedule.budget_completions=null",
]
SERVER = ("generation.use_vllm=true", "generation.vllm_mode=server")
ADAPTER = ("model.lora.r=16",)
# What a key needs to have an effect, by how it begins.
NEEDS = {
    "generation.vllm_server": SERVER,
    "generation.vllm_gpus": SERVER,
    "generation.vllm_shared": SERVER,
    "generation.vllm_max_loras": SERVER,
    "generation.vllm_": SERVER[:1],
    "model.lora.r": ADAPTER,
    "model.lora.alpha": ADAPTER,
    "model.lora.dropout": ADAPTER,
    "model.lora.target": ADAPTER,
    "model.quantization": ADAPTER,
    "kl.ref_": ("kl.sync_ref_model=true",),
}
# A key's overrides, if its value alone is no other valid setting.
CHANGES: dict[str, list[str]] = {
    "batch.per_device_eval_batch_size": ["batch.per_device_eval_batch_size=16"],
    "generation.generation_kwargs": ["generation.generation_kwargs={top_a: 1}"],
    "generation.use_vllm": ["generation.use_vllm=true"],
    "kl.enabled": ["kl.enabled=false", "kl.beta=0"],
    "loss.importance_sampling_level": ["loss.importance_sampling_level=sequence"],
    "loss.loss_type": ["loss.loss_type=dr_grpo"],
    "loss.scale_rewards": ["loss.scale_rewards=none"],
    "model.chat_template_kwargs": ["model.chat_template_kwargs={enable_thinking: false}"],
    "model.dtype": ["model.dtype=bfloat16"],
    "model.mixed_precision": ["model.mixed_precision=bf16"],
    "model.quantization": ["model.quantization=4bit"],
    "model.lora.target_modules": ["model.lora.target_modules=[q_proj]"],
    "optimizer.lr_scheduler_type": ["optimizer.lr_scheduler_type=cosine"],
    "schedule.budget_completions": ["schedule.max_steps=null", "schedule.budget_completions=640"],
    "schedule.epochs": ["schedule.max_steps=null", "schedule.epochs=2.0"],
    "schedule.max_steps": ["schedule.max_steps=90"],
    "trainer.args": ["trainer.args.disable_dropout=true"],
    "trainer.fsdp_config": ["trainer.fsdp_config={reshard_after_forward: false}"],
    "trainer.offload": ["trainer.offload=optimizer"],
    "trainer.sharding": ["trainer.sharding=zero3"],
    "task.reward_weights": ["task.reward_weights=[0.5]"],
}
# Keys of the search, of files and processes, of the tiny model, and of prompts and rewards, which
# the comment names.
OURS = re.compile(
    r"(cluster|search|tracker|rules)(\.|$)|(force|name|outputs|verbose)$|model\.(path|shape)"
    r"|task\.(?!reward_weights)|"
    r"trainer\.(fake|kind|keep|fork|recipe|python|workdir|arguments|environment|script|command"
    r"|metrics|step_key|resume|checkpoints|launch)|batch\.(max_|prompts_)"
)


def keys() -> list[str]:
    """The keys that decide a training."""
    every = (PROJECT / "tests" / "config" / "knobs.txt").read_text().split()
    groups = {key.rpartition(".")[0] for key in every}
    return [key for key in every if key not in groups and not OURS.match(key)]


def other(key: str, value: Any) -> str:
    """Another value of the same type; of a key that is null, a number or a word by its name."""
    if isinstance(value, bool) or key.rpartition(".")[2].startswith(
        ("use_", "vllm_enable_", "tf32")
    ):
        return str(not value).lower()
    if isinstance(value, int):
        return str(value + 8)
    if isinstance(value, float):
        return str(value / 2 or 0.25)
    if isinstance(value, list):
        return "[a]"
    is_word = key.endswith(
        ("_url", "_command", "revision", "implementation", "config", "_mode", "optim")
    )
    return (
        "word"
        if is_word
        else "8"
        if key.endswith(
            (
                "_length",
                "_eval",
                "_generation",
                "_batch_size",
                "_iterations",
                "_tasks",
                "_maxsize",
                "_loras",
            )
        )
        else "0.5"
    )


@pytest.mark.slow
def test_each_key_of_a_trial_is_written_or_listed(compose: Compose) -> None:
    """Another value of a key changes the recipe, its command or the list."""
    base = compose(BASE)

    @cache
    def exported(*overrides: str) -> str:
        changed = OmegaConf.merge(base, OmegaConf.from_dotlist(list(overrides)))
        assert isinstance(changed, DictConfig)
        experiment = to_experiment(changed)
        return str(trl_recipe(experiment, read_setting(experiment)))

    plain = to_experiment(base)
    silent = []
    for key in keys():
        needs = next((words for start, words in NEEDS.items() if key.startswith(start)), ())
        if exported(*needs) == exported(
            *needs, *CHANGES.get(key, [f"{key}={other(key, value_at(plain, key))}"])
        ):
            silent.append(key)
    assert silent == []


@pytest.mark.parametrize("generation", ["vllm_server", "vllm_shared"])
def test_a_recipe_for_trl_has_no_key_that_trl_does_not_take(
    compose: Compose, generation: str
) -> None:
    """The GPUs of a server are ours; TRL's command would refuse the file."""
    experiment = to_experiment(compose([f"generation={generation}", "model.lora.r=16"]))
    recipe, _, left = trl_recipe(experiment, read_setting(experiment))
    assert 1 in (left.get("vllm_gpus"), left.get("vllm_shared_gpus"))
    assert recipe.keys() <= FRAMEWORKS["trl"].takes(TRL).keys()
    # KL is off, and lint would warn
    assert "use_bias_correction_kl" not in recipe
