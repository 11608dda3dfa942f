"""ms-swift's recipes (`swift rlhf --rlhf_type grpo`): the key of each field of a setting, reading
and writing.

A written recipe states every number that affects the training, including defaults. Sources:
ms-swift 4.6.0 arguments/rlhf_args.py and sft_args.py (__post_init__), trainers/arguments.py,
rlhf_trainers/args_mixin.py and arguments.py, dataset/dataset_meta.py, cli/main.py.
docs/reference/frameworks.md compares its features.
"""

from dataclasses import replace
from typing import Any

from grporecipe.errors import UserError
from grporecipe.fields.lora import as_modules, one_name
from grporecipe.fields.reading import collect_converted
from grporecipe.fields.writing import warmup_change
from grporecipe.files import Config
from grporecipe.frameworks.ms_swift.keys import (
    ENVIRONMENT,
    MEGATRON_KEYS,
    TABLES,
    is_megatron,
    known,
    megatron_fields,
    read_value,
    spelled,
)
from grporecipe.frameworks.trl import recipes as trl
from grporecipe.model.framework import (
    ABSENT,
    RELEASE,
    Field,
    Framework,
    NativeChange,
    Values,
    table_of,
)
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import KeyTable
from grporecipe.model.setting import Version
from grporecipe.model.values import Fields, listed, model_size, read_mapping

# sft_args.py _init_override
FULL_RATE, TUNER_RATE = 1e-5, 1e-4
# rlhf_args.py _init_grpo
BETA = 0.04
SCALES = {"grpo": "group", "rloo": "none", "reinforce_plus_plus": "batch"}
# read under their present names; GV501 reports them
RENAMED = {"train_type": "tuner_type", "rlhf_beta": "beta"}


def _listed(value: Any) -> list[Any]:
    """Return the values of a key that takes a single one in older releases."""
    if value is None:
        return []
    return listed(value)


def _tuner(is_on: bool) -> str:
    return "lora" if is_on else "full"


# the rows that need code; the others and the order are in names.yaml
OF_CODE = (
    Field("vllm_mode", "vllm_mode", RELEASE, write=lambda mode: mode or None, plain=False),
    Field(
        "lora",
        "tuner_type",
        RELEASE,
        read=lambda tuner: tuner != "full",
        write=_tuner,
        plain=False,
    ),
    Field(
        "lora_targets",
        "target_modules",
        RELEASE,
        read=lambda names: as_modules(names) or ("all-linear",),
        fixable=False,
        judged=False,
        plain=False,
    ),
    Field("eval_dataset_name", "val_dataset", RELEASE, read=one_name, judged=False, plain=False),
    Field("kl_placement", "kl_in_reward", write=lambda place: place == "reward"),
    Field(
        "parameters",
        "model",
        fixable=False,
        derive=lambda values: model_size(str(values.stated.get("model") or "")) or ABSENT,
    ),
    Field("split_batches", "accelerator_config.split_batches", derive=trl.read_split),
    Field("max_steps", "max_steps", RELEASE, read=trl.read_steps, plain=False),
    # -1 is all of them
    Field("top_k", "top_k", RELEASE, read=lambda count: max(count or 0, 0), plain=False),
    # the first of several; older releases take one
    *(
        Field(
            f"vllm_server_{name}",
            f"vllm_server_{name}",
            RELEASE,
            read=lambda values: next(iter(_listed(values)), None),
            plain=False,
        )
        for name in ("base_url", "host", "port")
    ),
    Field("vllm_enable_sleep_mode", "sleep_level", RELEASE, read=bool, write=int, judged=False),
    Field("min_p", "min_p", RELEASE, read=lambda share: share or None, judged=False),
)
OWN = table_of(TABLES["fields"], OF_CODE)
# Of the keys that affect the training, those that are TRL's: every recipe states them. Others only
# if they are not the default.
OTHERWISE = {"use_bias_correction_kl", *(row.name for row in OWN)}
FIELDS = (
    *(Field(name, name, RELEASE, always=True) for name in trl.ALWAYS if name not in OTHERWISE),
    *OWN,
)


def collect(framework: Framework, recipe: Recipe) -> Values:
    """Return the keys that ms-swift takes, with the types that it sees.

    Raises UserError for trainings other than GRPO.
    """
    kind = recipe.config.get("rlhf_type", "dpo")
    if kind != "grpo":
        default = "" if "rlhf_type" in recipe.config else ", the default"
        raise UserError(f"rlhf_type is {kind}{default}: no GRPO training.")
    version = recipe.version
    takes = known(version) if recipe.vendored is None else KeyTable(recipe.vendored)
    values = collect_converted(
        framework, recipe, takes, RENAMED, read_value, lambda key: spelled(key, version)
    )
    return (
        replace(values, given=frozenset(map(str, recipe.config))) if is_megatron(recipe) else values
    )


def unstated(_: Config, __: Version) -> Fields:
    """Return the values that ms-swift sets after parsing for keys that a recipe leaves out."""
    return {
        "gradient_accumulation_steps": 1,
        "beta": BETA,
        "loss_type": "grpo",
        "scale_rewards": "group",
        "learning_rate": TUNER_RATE,
        "lora": True,
        "vllm_mode": "",
        "use_bias_correction_kl": False,
        "kl_estimator": "k3",
        # rlhf_trainers/arguments.py sets it and ignores the recipe
        "dataloader_drop_last": True,
        "vllm_importance_sampling_correction": False,
    }


def keys_of(values: Values) -> dict[str, str]:
    """Return the keys that differ in this recipe: a warmup as a share, and Megatron's keys."""
    if share := trl.keys_of(values):
        return share
    if is_megatron(values.recipe):
        return MEGATRON_KEYS
    return {}


def derive_rollout(values: Values, _: Config) -> Fields:
    """Return the completion length, for which two older keys win, and whether a teacher gives the
    signal.
    """
    stated = values.stated
    fields: Fields = {}
    length = stated.get("response_length") or stated.get("max_new_tokens")
    if length:
        fields["max_completion_length"] = length
    if stated.get("teacher_model") or stated.get("teacher_model_server"):
        fields["distils"] = True
    return fields


def derive_schedule(values: Values, _: Config) -> Fields:
    """Return length and learning rate. Steps override epochs, and ``max_epochs`` ends the run early
    in both cases.
    """
    keys = values.stated
    has_steps = trl.read_steps(keys.get("max_steps")) is not None
    usual = None if has_steps else 3.0
    epochs = keys.get("num_train_epochs", usual)
    fields: Fields = {"epochs": epochs}
    if keys.get("max_epochs"):
        most = float(keys["max_epochs"])
        fields |= {"epochs": most, "ends_with_epochs": True}
        if not has_steps:
            fields["epochs"] = min(epochs, most)
    if "learning_rate" not in keys:
        fields["learning_rate"] = TUNER_RATE
        if keys.get("tuner_type") == "full":
            fields["learning_rate"] = FULL_RATE
    return fields | {"warmup_steps": keys.get("warmup_steps") or keys.get("warmup_ratio") or 0.0}


def _count_rewards(values: Config) -> int | None:
    """Return the number of rewards. An environment may add one of its own (grpo_trainer.py,
    ``use_gym_env``).
    """
    if values.get("use_gym_env") or values.get("gym_env"):
        return None
    return len(_listed(values.get("reward_funcs"))) + len(_listed(values.get("reward_model")))


def derive_loss(collected: Values, _: Config) -> Fields:
    """Return the loss. If not set, scaling and the place of KL follow from the estimator; some
    losses fix them.
    """
    values = collected.stated
    estimator = values.get("advantage_estimator", "grpo")
    losses = _listed(values.get("loss_type")) or ["grpo"]
    scaling = values.get("scale_rewards") or SCALES.get(estimator, "group")
    # before 3.10
    if isinstance(values.get("scale_rewards"), bool):
        scaling = "group" if values["scale_rewards"] else "none"
    in_reward = values.get("kl_in_reward", estimator != "grpo") and scaling != "gdpo"
    beta = values.get("beta", BETA)
    mode = values.get("rollout_importance_sampling_mode")
    fields: Fields = {
        "loss_type": " ".join(map(str, losses)),
        "scale_rewards": scaling,
        "kl_placement": "none",
        "loads_reference": beta != 0,
        "rewards": _count_rewards(values),
        "vllm_importance_sampling_correction": mode is not None,
    }
    if losses == ["real"]:
        fields["scale_rewards"] = "none"
    if beta != 0:
        fields["kl_placement"] = "reward" if in_reward else "loss"
    if in_reward:
        fields |= {"beta": 0.0, "kl_estimator": None}
        fields |= {"kl_reward_coefficient": beta, "kl_reward_estimator": "k1"}
    else:
        fields |= {"beta": beta, "kl_estimator": "k3"}
        fields |= {"kl_reward_coefficient": 0.0, "kl_reward_estimator": None}
    if mode is not None:
        fields["vllm_importance_sampling_mode"] = mode
        fields["vllm_importance_sampling_clip_max"] = values.get(
            "rollout_importance_sampling_threshold", 2.0
        )
    if values.get("reward_weights"):
        fields["reward_weights"] = len(values["reward_weights"])
    return fields


def derive_data(collected: Values, fields: Config) -> Fields:
    """Return data and evaluation. Without held-out data there is no evaluation, and a split share
    is not trained on.

    The number of rows is the one given to the reader, or the samples that every data set names
    (``name#1000``).
    """
    values = collected.stated
    strategy = values.get("eval_strategy") or fields["save_strategy"]
    own = values.get("val_dataset")
    ratio = 0.0
    if not own and not values.get("streaming"):
        ratio = values.get("split_dataset_ratio", 0.0)

    rows = collected.recipe.train_prompts
    if rows is None:
        rows = samples(values.get("dataset"))
    held_out = samples(own)
    if rows is not None and ratio and strategy != "no" and 0 < ratio < 1:
        held_out = max(int(rows * ratio), 1)
        rows -= held_out

    every = fields["save_steps"]
    datasets = values.get("dataset") or []
    data: Fields = {
        "eval_strategy": "no",
        "evaluates": False,
        "eval_steps": None,
        "save_steps": None,
        "train_prompts": rows,
        "eval_prompts": None,
        "dataset_name": None,
    }
    if fields["save_strategy"] == "steps":
        data["save_steps"] = every
    if len(datasets) == 1:
        data["dataset_name"] = str(datasets[0])
    if strategy != "no" and (ratio or own or values.get("eval_dataset")):
        data |= {"eval_strategy": strategy, "evaluates": True, "eval_prompts": held_out}
        if strategy == "steps":
            data["eval_steps"] = values.get("eval_steps", every)
    return data


def samples(datasets: Any) -> int | None:
    """Return the rows that ``name#1000`` samples over all data sets; None if one names no
    number.
    """
    if not datasets:
        return None
    total = 0
    for name in datasets:
        _, sign, number = str(name).rpartition("#")
        if not sign or not number.isdigit():
            return None
        total += int(number)
    return total


def processes_of(environment: Any) -> int | None:
    """Return NPROC_PER_NODE x NNODES of a YAML's ENV; None if it names neither."""
    variables = read_mapping(environment)
    if not variables.keys() & {"NPROC_PER_NODE", "NNODES"}:
        return None
    each = str(variables.get("NPROC_PER_NODE", 1))
    nodes = str(variables.get("NNODES", 1))
    if not (each.isdigit() and nodes.isdigit()):
        return None
    return int(each) * int(nodes)


def derive_launch(values: Values, fields: Config) -> Fields:
    """Return the processes, the GPUs that one process sees, and with Megatron its sizes."""
    recipe = values.recipe
    processes = fields["processes"]
    if processes is None:
        processes = processes_of(recipe.config.get(ENVIRONMENT))
    launch = {"processes": processes, "visible_gpus": recipe.launch.visible_gpus}
    if is_megatron(recipe):
        launch |= megatron_fields(recipe.config, processes)
    return launch


def _change_split(value: Any, *_: Any) -> Fields | None:
    if value:
        return None
    return {"accelerator_config": None}


DERIVED = (derive_rollout, derive_schedule, derive_loss, derive_data, derive_launch)

SPECIAL: dict[str, NativeChange] = {
    "evaluates": trl.change_evaluates,
    "evaluations": lambda _, __, s, ___: trl.evaluation(s),
    "split_batches": _change_split,
    "warmup_steps": warmup_change("warmup_steps", "warmup_ratio", in_steps=True),
}
