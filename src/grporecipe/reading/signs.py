"""Classify a file before it is judged: a GRPO recipe, another framework's configuration or launch,
or neither.

Sources: the example files and command lines of each framework's own repository.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from grporecipe.errors import NotARecipe
from grporecipe.files import Config


class Signature(NamedTuple):
    """How to recognise a framework that grposweep does not read.

    Each string of ``keys`` lists keys that occur together; ``section.key`` is one level below.
    ``launch`` matches its command lines with their options.
    """

    name: str
    keys: tuple[str, ...] = ()
    launch: re.Pattern[str] | None = None


def _launch(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w./-])(?:{pattern})")


SIGNATURES = (
    Signature(
        "NeMo-RL",
        (
            "grpo policy.model_name",
            "grpo loss_fn",
            "policy.model_name loss_fn",
            "grpo.num_prompts_per_step",
            "grpo.num_generations_per_prompt",
            "defaults grpo",
            "defaults policy",
        ),
        _launch(
            r"(?:-m )?nemo_rl\.|\+{0,2}(?:grpo\.(?:num_|max_)\w+|policy\.(?:model_name"
            r"|\w{1,40}_cfg\.\S{1,80})|cluster\.\w+)="
        ),
    ),
    Signature(
        "prime-rl",
        ("orchestrator", "rollouts_per_example", "trainer_gpu_ids", "inference_gpu_ids"),
        _launch(
            r"uv run (?:--\S{1,40} ){0,9}(?:rl|orchestrator|trainer) .{0,200}@"
            r"|(?:-m )?prime_rl\.|src/prime_rl/"
        ),
    ),
    Signature(
        "SkyRL",
        ("generator trainer", "trainer.placement", "generator environment"),
        _launch(
            r"(?:-m )?skyrl(?:_train|_agent)?\.|\+{0,2}generator\.\w+="
            r"|\+{0,2}trainer\.(?:placement|policy)\.\S{1,80}="
        ),
    ),
    Signature(
        "OpenRLHF",
        ("micro_rollout_batch_size", "rollout.n_samples_per_prompt", "algo.advantage.estimator"),
        re.compile(r"\bopenrlhf[./]cli[./]train_\w+"),
    ),
    Signature(
        "slime",
        (),
        _launch(
            r"--(?:num-rollout|rollout-num-gpus(?:-per-engine)?|sglang-mem-fraction-static"
            r"|rollout-function-path"
            r"|advantage-estimator|n-samples-per-prompt|rollout-batch-size)\b"
        ),
    ),
    Signature(
        "ROLL",
        ("actor_train actor_infer", "num_return_sequences_in_group", "actor_train.worker_cls"),
        re.compile(
            r"\bstart_(?:rlvr|agentic|dpo|sft|distill)\w{0,40}pipeline\.py\b|\broll\.pipeline\."
        ),
    ),
    Signature(
        "AReaL",
        ("gconfig", "allocation_mode actor", "allocation_mode cluster", "stats_logger trial_name"),
        re.compile(
            r"-m (?:areal|realhf)\b|\bareal[./](?:launcher|infra"
            r"|scheduler)\b|/main_a?sync_ppo\.py|\ballocation_mode="
        ),
    ),
    Signature(
        "verifiers",
        ("trainer.args env", "trainer.args inference", "trainer.args.rollouts_per_example"),
        _launch(r"vf-(?:rl|train|vllm|tui|eval)\b|-m verifiers\b"),
    ),
    Signature("torchtune", ("*._component_",), _launch(r"tune run\b|(?:-m )?torchtune\.")),
    Signature(
        "oumi",
        ("training.trainer_type", "model.model_name training", "model.model_name data.train"),
        _launch(r"oumi (?:train|distributed|launch|evaluate|infer)\b|-m oumi\b"),
    ),
    Signature(
        "axolotl",
        (
            "base_model sequence_len",
            "base_model micro_batch_size",
            "base_model datasets",
            "base_model adapter",
            "base_model rl",
            "base_model trl",
            "rl trl.num_generations",
        ),
        _launch(r"axolotl (?:train|preprocess|vllm-serve|inference|merge-lora)\b|-m axolotl\."),
    ),
    Signature(
        "LLaMA-Factory",
        ("finetuning_type", "stage template", "stage cutoff_len", "stage do_train"),
        re.compile(r"\b(?:llamafactory-cli|lmf) \w|\bllamafactory[./]\w|\bsrc/train_bash\.py"),
    ),
    Signature(
        "open-instruct",
        (
            "dataset_mixer_list",
            "num_unique_prompts_rollout",
            "num_samples_per_prompt_rollout",
            "oe_eval_max_length",
        ),
        re.compile(
            r"\bopen_instruct/\w{1,80}\.py\b|-m open_instruct\b|--num_(?:unique_prompts"
            r"|samples_per_prompt)_rollout\b"
        ),
    ),
)
# Other kinds of files in a repository, by keys that occur together.
KINDS = (
    ("an accelerate configuration", ("distributed_type", "compute_environment")),
    ("a DeepSpeed configuration", ("zero_optimization",)),
    ("a Docker Compose file", ("services",)),
    ("a GitHub Actions workflow", ("jobs on", "jobs True", "runs description")),
    ("a MkDocs configuration", ("site_name",)),
    ("a pre-commit configuration", ("repos",)),
    ("a Read the Docs configuration", ("sphinx version", "build python")),
    ("a conda environment", ("channels", "dependencies name")),
    ("a Kubernetes manifest", ("apiVersion kind",)),
    ("a SkyPilot task", ("resources run", "resources setup")),
    ("a model's configuration", ("architectures", "model_type vocab_size")),
    ("a dataset card", ("dataset_info", "task_categories", "size_categories")),
    ("an evaluation task", ("doc_to_text", "doc_to_target")),
    ("a package's manifest", ("devDependencies", "scripts dependencies", "cff-version")),
)
# TRL's keys that only a trainer with groups of completions has.
GROUPS = frozenset(
    [
        "num_generations",
        "reward_funcs",
        "reward_weights",
        "steps_per_generation",
        "generation_batch_size",
        "num_iterations",
        "epsilon_high",
        "scale_rewards",
        "mask_truncated_completions",
        "num_generations_eval",
        "importance_sampling_level",
        "log_completions",
        "num_completions_to_print",
        "top_entropy_quantile",
        "use_bias_correction_kl",
        "off_policy_mask_threshold",
        "log_unique_prompts",
        "wandb_log_unique_prompts",
        "reward_model_name_or_path",
        "multi_objective_aggregation",
        "vllm_importance_sampling_correction",
    ]
)
# Keys of TRL's other trainers: supervised, and on pairs of preferences.
OTHERS = {
    "an SFT recipe": frozenset(
        [
            "packing",
            "eval_packing",
            "completion_only_loss",
            "assistant_only_loss",
            "dataset_text_field",
            "dataset_kwargs",
            "neftune_noise_alpha",
            "max_seq_length",
        ]
    ),
    "a DPO recipe, or one of another training on preferences": frozenset(
        [
            "rpo_alpha",
            "precompute_ref_log_probs",
            "reference_free",
            "label_smoothing",
            "desirable_weight",
            "undesirable_weight",
            "orpo_alpha",
            "simpo_gamma",
            "cpo_alpha",
            "loss_weights",
            "truncation_mode",
            "max_length",
        ]
    ),
}
# One of them alone is no sign: every trainer on preferences has a beta, every generation a
# temperature.
TOGETHER = (
    "max_completion_length",
    "max_prompt_length",
    "beta temperature",
    "use_vllm learning_rate",
    "vllm_mode",
)
# in a program's name; grposweep's own commands do not train
NAMED = r"grpo(?!sweep)"
LOSSES = ("grpo", "dr_grpo", "bnpo", "dapo", "cispo", "sapo", "gspo")
TRAINS = frozenset(
    ["learning_rate", "per_device_train_batch_size", "num_train_epochs", "max_steps", "output_dir"]
)
# One of them is needed next to a program's name.
BASIC = TRAINS | {
    "model_name_or_path",
    "dataset_name",
    "deepspeed",
    "config",
    "torch_dtype",
    "dtype",
    "bf16",
    "beta",
    "report_to",
    "logging_steps",
    "lr_scheduler_type",
    "use_peft",
    "use_vllm",
}
# keys that may be typos
MOST_OWN = 5
EXAMPLES = "num_generations, reward_funcs, rlhf_type, worker or actor_rollout_ref"


def refuse_others(config: Config) -> None:
    """Raise NotARecipe for the configuration of an unsupported framework."""
    words = _words(config)
    for signature in SIGNATURES:
        if _stand_together(signature.keys, words):
            article = "an" if signature.name[0].lower() in "aeo" else "a"
            raise NotARecipe(
                f"this is {article} {signature.name} configuration, which grposweep does not read."
            )


def refuse_toml(text: str) -> None:
    """Raise NotARecipe for TOML, because no supported framework has recipes in it."""
    # only a TOML file needs it
    import tomllib

    # broken or too deeply nested: report only its kind
    with suppress(ValueError, RecursionError):
        refuse_others(tomllib.loads(text))
    raise NotARecipe("it is TOML, and no framework that grposweep reads has recipes in TOML.")


def refuse_without_sign(config: Config, programs: Iterable[str] = ()) -> None:
    """Raise NotARecipe if neither flat keys nor the program that reads them show a GRPO
    training.
    """
    named = list(programs)
    words = _words(config)
    is_tuned = bool(named) and "beta" in words and not any(keys & words for keys in OTHERS.values())
    if is_tuned or any(is_named(program, config) for program in named) or has_sign(config):
        return
    kinds = [kind for kind, keys in KINDS if _stand_together(keys, words)]
    kinds += [kind for kind, keys in OTHERS.items() if keys & words and TRAINS & words]
    advice = "Name the recipe, and --processes." if kinds[:1] == [KINDS[0][0]] else ""
    if kinds:
        raise NotARecipe(f"it is {kinds[0]}, not a GRPO recipe. {advice}".rstrip())
    inside = sorted(
        word for word in words if word.partition(".")[2] in GROUPS and not word.startswith("*")
    )
    if inside:
        raise NotARecipe(
            f"its keys are in sections ({inside[0]}) that only the script that reads them knows."
        )
    raise NotARecipe(
        f"nothing identifies it as a GRPO recipe (such as {EXAMPLES}). "
        "Name its framework with --framework if it is one."
    )


def is_named(program: str, config: Config) -> bool:
    """Return whether a program's name says GRPO, and its keys, if there are some, are those of a
    training.

    The name is that of the file and its folder: one above them may be that of a whole repository.
    """
    name = "/".join(re.split(r"[/.]", program.lower().removesuffix(".py"))[-2:])
    return bool(re.search(NAMED, name)) and (not config or not BASIC.isdisjoint(config))


def has_sign(config: Config) -> bool:
    """Return whether flat keys include one of a GRPO training, possibly misspelled."""
    words = {str(key) for key in config}
    loss = config.get("loss_type")
    if words & GROUPS or str(loss[0] if isinstance(loss, list) and loss else loss) in LOSSES:
        return True
    if any(words & keys for keys in OTHERS.values()):
        return False
    return _stand_together(TOGETHER, words) or (bool(words & TRAINS) and _is_misspelled(words))


def _is_misspelled(words: Iterable[str]) -> bool:
    # only a file without a sign needs it
    from difflib import get_close_matches

    return any(get_close_matches(word, GROUPS, 1, 0.88) for word in words)


def refuse_own_keys(config: Config, known: Callable[[str], bool]) -> None:
    """Raise NotARecipe if half of the keys belong to no framework, or some that are sections. It is
    for a script of its own.
    """
    own = [str(key) for key in config if not known(str(key))]
    has_sections = any(isinstance(config[key], dict) for key in own if key in config)
    if len(own) > max((len(config) - 1) // 2, MOST_OWN) or (has_sections and len(own) > 2):
        raise NotARecipe(
            f"many of its keys ({', '.join(own[:3])}, ...) belong to no framework; only the "
            "script that reads them knows them."
        )


def refuse_own_sections(config: Config, known: Container[str]) -> None:
    """Raise NotARecipe if many sections belong to no framework. Such a file is a profile for a
    launcher of its own.
    """
    sections = dict.fromkeys(str(key).lstrip("+~").partition(".")[0] for key in config)
    own = [name for name in sections if name not in known]
    if len(own) > MOST_OWN:
        raise NotARecipe(
            f"{len(own)} of its sections and keys ({', '.join(own[:3])}, ...) are not those of the "
            "framework that it resembles; only the program that reads it knows them."
        )


def refuse_launch(text: str) -> None:
    """Raise NotARecipe for a script or a command line that starts an unsupported framework."""
    lines = (
        line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")
    )
    command = "\n".join(lines)
    name = next(
        (row.name for row in SIGNATURES if row.launch is not None and row.launch.search(command)),
        "",
    )
    if name:
        raise NotARecipe(f"it launches {name}, which grposweep does not read.")


def _words(config: Config) -> set[str]:
    """Return the keys of the first two levels as ``section.key`` and ``*.key``. Dotted keys and
    sections are included.
    """
    words: set[str] = set()
    for key, value in config.items():
        name = str(key).lstrip("+~")
        first, _, second = name.partition(".")
        inner = [str(below) for below in value] if isinstance(value, Mapping) else []
        words |= {
            name,
            first,
            *(f"{name}.{below}" for below in inner),
            *(f"*.{below}" for below in inner),
        }
        words |= (
            {f"{first}.{second.partition('.')[0]}", f"*.{second.rpartition('.')[2]}"}
            if second
            else set()
        )
    return words


def _stand_together(groups: Iterable[str], words: set[str]) -> bool:
    return any(words.issuperset(group.split()) for group in groups)
