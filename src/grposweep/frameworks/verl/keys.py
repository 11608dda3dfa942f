"""Which keys verl takes by release and engine, and the key behind each field of a setting.

``keys.json`` is written by benchmarks/tools/verl_keys.py from verl's own configurations. What rules ask of a release they ask of
its keys, so that verl's source in a repository (``Recipe.vendored``) is judged by what it has.
"""

from functools import cache
from typing import Any

from grposweep.frameworks.base import Field, KeyTable, keys_at_release, load_table, parse_release
from grposweep.frameworks.dotted import NEVER_CLIPPED, clip, estimator_word, frequency, top_k, unless
from grposweep.recipe import KeySpec, Recipe
from grposweep.setting import FrameworkTraits, Version

TRAITS = FrameworkTraits("verl", "verl", unit="prompts", syntax="dotted")
VERSION: Version = (0, 9, 1)
ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
MODEL, OPTIM = "actor_rollout_ref.model", f"{ACTOR}.optim"
CONTROL, MEGATRON = "algorithm.kl_ctrl", f"{ACTOR}.megatron"
FIELDS = (  # in the order of a written recipe
    Field("prompts_per_rollout", "data.train_batch_size", "int", 1),
    Field("prompts_per_generation", "data.gen_batch_size"),
    Field("num_generations", f"{ROLLOUT}.n", "int", 1),
    Field("prompts_per_step", f"{ACTOR}.ppo_mini_batch_size", "int", 1),
    Field("per_device_train_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    Field("experience_batch_size", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "int?"),
    Field("reference_batch_size", f"{REF}.log_prob_micro_batch_size_per_gpu", "int?"),
    Field("dynamic_batching", f"{ACTOR}.use_dynamic_bsz", "bool", False),
    Field("", f"{ACTOR}.ppo_max_token_len_per_gpu"),
    Field("num_iterations", f"{ACTOR}.ppo_epochs", "int", 1),
    Field("tensor_parallel_size", f"{MEGATRON}.tensor_model_parallel_size"),
    Field("pipeline_parallel_size", f"{MEGATRON}.pipeline_model_parallel_size"),
    Field("context_parallel_size", f"{MEGATRON}.context_parallel_size"),
    Field("sequence_parallel_size", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"),
    Field("", "trainer.nnodes"),
    Field("processes", "trainer.n_gpus_per_node"),
    Field("advantage_estimator", "algorithm.adv_estimator", "str", ""),
    Field("scale_rewards", "algorithm.norm_adv_by_std_in_grpo", "bool", True,
          read=lambda is_scaled: "group" if is_scaled else "none", write=lambda scaling: scaling != "none"),
    Field("", "algorithm.use_kl_in_reward"),
    Field("filters_groups", "algorithm.filter_groups.enable", "bool", False),
    Field("kl_placement", f"{ACTOR}.use_kl_loss"),
    Field("loads_reference", f"{ACTOR}.use_kl_loss", fixable=False),
    Field("beta", f"{ACTOR}.kl_loss_coef"),
    Field("kl_estimator", f"{ACTOR}.kl_loss_type", write=estimator_word),
    Field("kl_reward_coefficient", f"{CONTROL}.kl_coef"),
    Field("kl_controller", f"{CONTROL}.type"),
    Field("kl_horizon", f"{CONTROL}.horizon", "float", 0.0),
    Field("kl_target", f"{CONTROL}.target_kl", "float", 0.0),
    Field("kl_reward_estimator", "algorithm.kl_penalty", write=estimator_word),
    Field("loss_type", f"{ACTOR}.policy_loss.loss_mode", fixable=False),
    Field("loss_average", f"{ACTOR}.loss_agg_mode", "str", ""),
    Field("epsilon", f"{ACTOR}.clip_ratio_low", "float", 0.0, before={(0, 4, 0): f"{ACTOR}.clip_ratio"}),
    Field("epsilon_high", f"{ACTOR}.clip_ratio_high", "float", 0.0, before={(0, 4, 0): f"{ACTOR}.clip_ratio"}),
    clip("delta", f"{ACTOR}.clip_ratio_c", NEVER_CLIPPED),  # before 0.4 there is no dual clip
    unless("entropy_coef", f"{ACTOR}.entropy_coeff", 0.0),
    unless("sapo_temperature_pos", f"{ACTOR}.tau_pos", 1.0),
    unless("sapo_temperature_neg", f"{ACTOR}.tau_neg", 1.05),
    Field("max_grad_norm", f"{OPTIM}.clip_grad", "float", 0.0, before={(0, 8, 0): f"{ACTOR}.grad_clip"}),
    Field("max_steps", "trainer.total_training_steps", "int?", rollouts=True),
    Field("epochs", "trainer.total_epochs", "int?"),
    frequency("save_steps", "trainer.save_freq"),
    frequency("eval_steps", "trainer.test_freq"),
    Field("learning_rate", f"{OPTIM}.lr", "float", 0.0),
    Field("lr_scheduler_type", f"{OPTIM}.lr_scheduler_type", before={(0, 6, 0): f"{OPTIM}.warmup_style"}),
    Field("", f"{OPTIM}.lr_decay_style"),  # Megatron's word
    Field("warmup_steps", f"{OPTIM}.lr_warmup_steps", rollouts=True),
    Field("", f"{OPTIM}.lr_warmup_steps_ratio"),
    Field("minimum_learning_rate_ratio", f"{OPTIM}.min_lr_ratio", "float?"),
    Field("weight_decay", f"{OPTIM}.weight_decay", "float", 0.0),
    Field("", f"{OPTIM}.betas", judged=False),
    Field("dataset_name", "data.train_files", "str", "", judged=False),
    Field("seed", "data.seed", "int?"),
    Field("max_prompt_length", "data.max_prompt_length", "int", 1),
    Field("max_completion_length", "data.max_response_length", "int", 1),
    Field("", "data.filter_overlong_prompts", judged=False),
    Field("model_name_or_path", f"{MODEL}.path", "str", ""),
    Field("parameters", f"{MODEL}.path", fixable=False),
    Field("lora", f"{MODEL}.lora_rank", "int", 0, read=lambda rank: rank > 0, fixable=False),
    Field("", f"{ROLLOUT}.name", judged=False),  # its words are checked, no number follows
    Field("temperature", f"{ROLLOUT}.temperature", "float", 0.0),
    Field("top_p", f"{ROLLOUT}.top_p", "float", 0.0),
    top_k(f"{ROLLOUT}.top_k"),
    Field("vllm_tensor_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"),
    Field("vllm_gpu_memory_utilization", f"{ROLLOUT}.gpu_memory_utilization", "float", 0.0),
    Field("offloads_parameters", f"{ACTOR}.fsdp_config.param_offload", "bool", False),
    Field("removes_padding", f"{MODEL}.use_remove_padding", "bool", False),
    Field("max_batched_tokens", f"{ROLLOUT}.max_num_batched_tokens", "int", 1),
)  # fmt: skip
OWN_PROGRAMS = ("verl.trainer.main_ppo", "verl/trainer/main_ppo.py")
REWARD_SWITCH = "algorithm.use_kl_in_reward"  # without it (until 0.3) KL is in the reward where it is not in the loss
AGENTS = f"{ROLLOUT}.n_agent"  # of Search-R1 and others that follow it: a prompt has so many completions for each of rollout.n


@cache
def releases() -> tuple[Version, ...]:
    """Return the releases whose keys are known, ascending; of several post releases of one the last."""
    return tuple(parse_release(name) for name in load_table(__package__)["releases"])


def spans() -> dict[str, list[str]]:
    """Return the releases that have each engine."""
    return dict(load_table(__package__)["engines"])


@cache
def known(version: Version = VERSION, engine: str = "dp") -> KeyTable:
    """Return the keys of a release with an engine: ``dp`` (FSDP), ``megatron``, ``veomni``, ``torchtitan``, ``mindspeed``."""
    found = keys_at_release(_histories("dp"), version)
    if engine != "dp" and version >= parse_release(spans()[engine][0]):
        own = _histories(engine)
        found = KeyTable((name, key) for name, key in found.items() if name not in own)
        found.update(keys_at_release(own, version))
    return found


@cache
def _histories(engine: str) -> dict[str, list[list[Any]]]:
    """Return the history of each key with its section before it, and with its type."""
    return {
        f"{section}.{name}".lstrip("."): [
            [change[0], *(part for default in change[1:] for part in spec_of(default))] for change in changes
        ]
        for section, keys in load_table(__package__)[engine].items()
        for name, changes in keys.items()
    }


def spec_of(default: Any) -> KeySpec:
    """Return a key by its default, which alone tells its type: ``any`` where that says nothing."""
    if isinstance(default, bool):
        return KeySpec("bool?", default)
    kinds = {float: "float?", int: "int?"}
    return KeySpec(kinds.get(type(default), "any"), default)


ENGINES = ("megatron", "veomni", "torchtitan", "mindspeed")


def engine_of(recipe: Recipe) -> str:
    """Return which of verl's configurations a recipe builds on: ``dp`` (FSDP), or that of another engine."""
    if "engine" not in recipe.derived:
        config = recipe.config
        named = " ".join(
            str(name) for name in (config.get("model_engine"), config.get(f"{ACTOR}.strategy"), recipe.base)
        )
        keys = [key.lstrip("+") for key in config]
        found = (each for each in ENGINES if each in named or any(key.startswith(f"{ACTOR}.{each}.") for key in keys))
        recipe.derived["engine"] = next(found, "dp")
    return str(recipe.derived["engine"])


def known_keys(recipe: Recipe) -> KeyTable:
    """Return the keys that a recipe may set: of the source in its repository, otherwise of its release and engine."""
    if recipe.vendored is not None:
        return recipe.vendored if isinstance(recipe.vendored, KeyTable) else KeyTable(recipe.vendored)
    return known(recipe.version, engine_of(recipe))


def is_composed(recipe: Recipe) -> bool:
    """Return whether the configuration is known that the program composes: verl's own, or one in the repository."""
    return recipe.vendored is not None or is_own_trainer(recipe)


def nearest_release(keys: KeyTable, engine: str) -> Version:
    """Return the release whose keys are most like those of a source that states no version."""
    return min(reversed(releases()), key=lambda version: len(known(version, engine).keys() ^ keys.keys()))


def is_own_trainer(recipe: Recipe) -> bool:
    """Return whether verl's own ``main_ppo`` trains, whose checks are known; a configuration alone may be for it."""
    if recipe.code is not None and recipe.code.own_trainer:
        return False
    return recipe.launch is None or recipe.launch.program.endswith(OWN_PROGRAMS)


def is_v1(recipe: Recipe) -> bool:
    """Return whether the trainer is that of 0.9 (V1), which pads batches and fetches prompts in portions."""
    return is_own_trainer(recipe) and "trainer.use_v1" in known_keys(recipe)


def sizes_per_gpu_only(keys: KeyTable) -> bool:
    """Return whether the workers read micro-batches per GPU only, and clip by ``optim.clip_grad``: since 0.8."""
    return "reward.num_workers" in keys and "trainer.use_legacy_worker_impl" not in keys
