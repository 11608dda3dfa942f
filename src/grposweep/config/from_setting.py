"""Return an experiment as a recipe of TRL."""

import shlex

from grporecipe.fields.writing import in_completions
from grporecipe.files import Json, only, without
from grporecipe.frameworks.trl.recipes import native_keys as trl_keys
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import TRL, Setting
from grposweep.config.precision import read_precision
from grposweep.schema import Experiment, Schedule


def native_keys(experiment: Experiment) -> Json:
    """Return TRL's keys for values of an experiment that its setting does not hold."""
    model, precision, generation = (
        experiment.model,
        read_precision(experiment.model),
        experiment.generation,
    )
    trainer = experiment.trainer
    minutes = experiment.schedule.checkpoint_minutes
    names = (
        "vllm_server_base_url",
        "vllm_server_timeout",
        "vllm_gpus",
        "vllm_shared_gpus",
        "vllm_max_loras",
        "vllm_server_command",
        "vllm_server_args",
    )
    server = {name: getattr(generation, name) or None for name in names}
    native = {
        "dtype": precision.weights,
        "bf16": precision.mixed == "bf16",
        "fp16": precision.mixed == "fp16",
        "tf32": model.tf32,
        "model_revision": model.revision,
        "attn_implementation": model.attn_implementation,
        "trust_remote_code": model.trust_remote_code or None,
        "use_kernels": model.use_kernels or None,
        "chat_template_kwargs": model.chat_template_kwargs or None,
        "load_in_4bit": model.quantization == "4bit" or None,
        "load_in_8bit": model.quantization == "8bit" or None,
        "reward_weights": experiment.task.reward_weights,
        "torch_compile": trainer.compile or None,
        "deepspeed": trainer.deepspeed_config,
        "fsdp_config": trainer.fsdp_config or None,
        "offload": None if trainer.offload == "none" else trainer.offload,
        "eval_on_start": experiment.schedule.eval_at_start or None,
        "log_completions": trainer.log_completions or None,
        "checkpoint_minutes": None if minutes == Schedule().checkpoint_minutes else minutes,
        **(server if generation.vllm_mode == "server" else {}),
        **trainer.args,
    }
    return {name: value for name, value in native.items() if value is not None}


def trl_recipe(experiment: Experiment, setting: Setting) -> tuple[Json, str, Json]:
    """Return a recipe of TRL for an experiment, the command that launches it, and the keys that TRL
    does not take.
    """
    framework = FRAMEWORKS["trl"]
    own = native_keys(experiment)
    takes = framework.takes(TRL)
    # one that follows from the prompts would limit others
    length = experiment.generation.vllm_max_model_length
    sized = in_completions(setting).replace({"vllm_max_model_length": length})
    if not sized.beta:
        # nothing reads it, and lint warns of it
        sized = sized.replace({"use_bias_correction_kl": None})
    if not sized.evaluations and sized.eval_at_start:
        # eval_on_start says it
        sized = sized.replace({"evaluates": False})
    recipe = only(own, takes) | trl_keys(framework, sized, TRL)
    left = without(own, takes)
    launcher = ["accelerate", "launch"]
    if sized.sharding.startswith("zero") and "deepspeed" not in own:
        launcher += ["--use_deepspeed", "--zero_stage", sized.sharding[-1]]
    elif sized.sharding == "fsdp":
        left["sharding"] = sized.sharding
    if sized.processes is not None:
        launcher += ["--num_processes", str(sized.processes)]
    return recipe, f"{shlex.join(launcher)} -m trl.scripts.grpo --config recipe.yaml", left
