"""EasyR1's and verl's rules: each fires on a bad recipe, is silent on its neighbour, and its fixes
hold.
"""

from typing import Any

import pytest

from grporecipe.linting.linter import LintResult, changed, lint_recipe
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import LaunchContext, Recipe
from grporecipe.reading.load import Options, build_recipe
from grporecipe.rules.check import RECIPE_RULES, REGISTRY

IN_PROMPTS = sorted(name for name, known in FRAMEWORKS.items() if known.is_dotted)
ACTOR, ROLLOUT, REF = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.ref",
)
GOOD: dict[str, dict[str, Any]] = {
    "easyr1": {
        "data.rollout_batch_size": 128,
        "data.max_prompt_length": 1024,
        "worker.rollout.n": 8,
        "worker.actor.global_batch_size": 64,
        "worker.actor.micro_batch_size_per_device_for_update": 4,
        "worker.actor.micro_batch_size_per_device_for_experience": 8,
        "algorithm.use_kl_loss": True,
        "algorithm.kl_penalty": "low_var_kl",
        "algorithm.kl_coef": 0.01,
    },
    "verl": {
        "data.train_batch_size": 128,
        "algorithm.adv_estimator": "grpo",
        f"{ACTOR}.ppo_mini_batch_size": 64,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": 8,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 8,
        f"{REF}.log_prob_micro_batch_size_per_gpu": 8,
        f"{ACTOR}.use_kl_loss": True,
    },
}
REWARD_KL = {f"{ACTOR}.use_kl_loss": False, "algorithm.use_kl_in_reward": True}
MEGATRON = {f"{ACTOR}.strategy": "megatron"}
DYNAMIC = {f"{ACTOR}.use_dynamic_bsz": True}

# framework, code, what breaks it over GOOD, a neighbour that does not
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("easyr1", "GB301", {"worker.actor.ppo_epochs": 0}, {"worker.actor.ppo_epochs": 2}),
    ("verl", "GB301", {"data.train_batch_size": 0}, {"data.train_batch_size": 64}),
    (
        "easyr1",
        "GB302",
        {"worker.rollout.n": 1},
        {"worker.rollout.n": 1, "algorithm.adv_estimator": "remax"},
    ),
    ("verl", "GB302", {f"{ROLLOUT}.n": 1}, {f"{ROLLOUT}.n": 2}),
    ("easyr1", "GB303", {"data.rollout_batch_size": 96}, {"data.rollout_batch_size": 192}),
    (
        "easyr1",
        "GB304",
        {"worker.actor.micro_batch_size_per_device_for_experience": 3},
        {"worker.actor.micro_batch_size_per_device_for_experience": 16},
    ),
    (
        "easyr1",
        "GB305",
        {"worker.actor.global_batch_size": 1, "trainer.nnodes": 2},
        {
            "worker.actor.global_batch_size": 2,
            "trainer.nnodes": 2,
            "worker.actor.micro_batch_size_per_device_for_update": 1,
        },
    ),
    (
        "easyr1",
        "GB306",
        {"worker.actor.micro_batch_size_per_device_for_update": 5},
        {"worker.actor.micro_batch_size_per_device_for_update": 16},
    ),
    (
        "easyr1",
        "GB306",
        {"worker.actor.micro_batch_size_per_device_for_update": 128},
        {
            "worker.actor.micro_batch_size_per_device_for_update": 128,
            "worker.actor.ulysses_size": 2,
        },
    ),
    (
        "easyr1",
        "GB307",
        {"worker.actor.fsdp.enable_cpu_offload": True},
        {
            "worker.actor.fsdp.enable_cpu_offload": True,
            "worker.actor.micro_batch_size_per_device_for_update": 64,
        },
    ),
    ("easyr1", "GB308", {"data.mini_rollout_batch_size": 12}, {"data.mini_rollout_batch_size": 32}),
    (
        "easyr1",
        "GB308",
        {"trainer.n_gpus_per_node": 6, "worker.actor.micro_batch_size_per_device_for_update": 1},
        {"trainer.n_gpus_per_node": 4},
    ),
    (
        "easyr1",
        "GB309",
        {
            "worker.rollout.n": 5,
            "worker.actor.global_batch_size": 1,
            "trainer.n_gpus_per_node": 2,
            "worker.actor.micro_batch_size_per_device_for_update": 1,
            "data.rollout_batch_size": 6,
            "worker.actor.micro_batch_size_per_device_for_experience": 1,
            "worker.actor.ppo_epochs": 1,
            "data.mini_rollout_batch_size": None,
            "trainer.nnodes": 1,
        },
        {
            "worker.rollout.n": 6,
            "worker.actor.global_batch_size": 1,
            "trainer.n_gpus_per_node": 2,
            "worker.actor.micro_batch_size_per_device_for_update": 1,
            "data.rollout_batch_size": 6,
            "worker.actor.micro_batch_size_per_device_for_experience": 1,
        },
    ),
    (
        "easyr1",
        "GB310",
        {
            "worker.rollout.n": 5,
            "worker.actor.global_batch_size": 1,
            "trainer.n_gpus_per_node": 2,
            "worker.actor.micro_batch_size_per_device_for_update": 1,
            "data.rollout_batch_size": 4,
            "worker.actor.micro_batch_size_per_device_for_experience": 1,
        },
        {
            "worker.rollout.n": 6,
            "worker.actor.global_batch_size": 1,
            "trainer.n_gpus_per_node": 2,
            "worker.actor.micro_batch_size_per_device_for_update": 1,
            "data.rollout_batch_size": 4,
            "worker.actor.micro_batch_size_per_device_for_experience": 1,
        },
    ),
    (
        "easyr1",
        "GB311",
        {"data.mini_rollout_batch_size": 48},
        {"data.mini_rollout_batch_size": 48, "algorithm.online_filtering": True},
    ),
    (
        "verl",
        "GB401",
        {"data.train_batch_size": 65, f"{ROLLOUT}.n": 5},
        {"data.train_batch_size": 65, f"{ROLLOUT}.n": 5, **DYNAMIC},
    ),
    (
        "verl",
        "GB401",
        {
            **MEGATRON,
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3,
            f"{ACTOR}.ppo_mini_batch_size": 24,
        },
        {**MEGATRON, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2},
    ),
    ("verl", "GB402", {f"{ACTOR}.ppo_mini_batch_size": 256}, {f"{ACTOR}.ppo_mini_batch_size": 128}),
    (
        "verl",
        "GB403",
        {
            "trainer.n_gpus_per_node": 6,
            "data.train_batch_size": 96,
            f"{ACTOR}.ppo_mini_batch_size": 32,
        },
        {
            "trainer.n_gpus_per_node": 6,
            "data.train_batch_size": 96,
            f"{ACTOR}.ppo_mini_batch_size": 48,
        },
    ),
    (
        "verl",
        "GB404",
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5},
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 16},
    ),
    (
        "verl",
        "GB405",
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 5},
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 16},
    ),
    (
        "verl",
        "GB405",
        {f"{REF}.log_prob_micro_batch_size_per_gpu": 5},
        {f"{REF}.log_prob_micro_batch_size_per_gpu": 5, f"{ACTOR}.use_kl_loss": False},
    ),
    ("verl", "GB406", {"data.train_batch_size": 96}, {"data.train_batch_size": 192}),
    (
        "verl",
        "GB407",
        {"data.gen_batch_size": 48},
        {"data.gen_batch_size": 48, "algorithm.filter_groups.enable": True},
    ),
    (
        "verl",
        "GB408",
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": None},
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": None, **DYNAMIC},
    ),
    (
        "verl",
        "GB408",
        {f"{REF}.log_prob_micro_batch_size_per_gpu": None},
        {f"{REF}.log_prob_micro_batch_size_per_gpu": None, f"{ACTOR}.use_kl_loss": False},
    ),
    (
        "verl",
        "GB409",
        {f"{ACTOR}.ppo_micro_batch_size": 32},
        {f"{ACTOR}.ppo_micro_batch_size": None},
    ),
    (
        "verl",
        "GB410",
        {f"{ACTOR}.ppo_micro_batch_size": 24},
        {f"{ACTOR}.ppo_micro_batch_size": None},
    ),
    (
        "verl",
        "GB411",
        {f"{ROLLOUT}.log_prob_use_dynamic_bsz": True},
        {f"{ROLLOUT}.log_prob_use_dynamic_bsz": True, **DYNAMIC},
    ),
    (
        "verl",
        "GB412",
        {"trainer.v1.trainer_mode": "separate_async"},
        {"trainer.v1.trainer_mode": "separate_async", "data.train_batch_size": 256},
    ),
    (
        "verl",
        "GB413",
        {**DYNAMIC, "data.max_response_length": 32768},
        {**DYNAMIC, "data.max_response_length": 32768, f"{ACTOR}.ppo_max_token_len_per_gpu": 33280},
    ),
    (
        "verl",
        "GB413",
        {**DYNAMIC, f"{REF}.log_prob_max_token_len_per_gpu": 512},
        {**DYNAMIC, f"{REF}.log_prob_max_token_len_per_gpu": 512, f"{ACTOR}.use_kl_loss": False},
    ),
    (
        "verl",
        "GT402",
        {f"{ROLLOUT}.pipeline_model_parallel_size": 2},
        {f"{ROLLOUT}.pipeline_model_parallel_size": 1},
    ),
    (
        "verl",
        "GT402",
        {f"{ROLLOUT}.expert_parallel_size": 4},
        {f"{ROLLOUT}.expert_parallel_size": 2},
    ),
    (
        "verl",
        "GT402",
        {f"{ROLLOUT}.name": "trtllm", f"{ROLLOUT}.disaggregation.enabled": True},
        {f"{ROLLOUT}.disaggregation.enabled": True},
    ),
    (
        "verl",
        "GT402",
        {"actor_rollout_ref.model.lora_rank": 1024},
        {"actor_rollout_ref.model.lora_rank": 64},
    ),
    (
        "easyr1",
        "GK301",
        {"algorithm.use_kl_loss": False},
        {"algorithm.use_kl_loss": False, "algorithm.adv_estimator": "rloo"},
    ),
    ("verl", "GK301", REWARD_KL, {**REWARD_KL, "algorithm.norm_adv_by_std_in_grpo": False}),
    ("easyr1", "GK302", {"algorithm.kl_penalty": "kl"}, {"algorithm.kl_penalty": "mse"}),
    ("verl", "GK302", {f"{ACTOR}.kl_loss_type": "k1"}, {f"{ACTOR}.kl_loss_type": "k3+"}),
    (
        "easyr1",
        "GK303",
        {"algorithm.kl_penalty": "full"},
        {"algorithm.kl_penalty": "full", "algorithm.disable_kl": True},
    ),
    (
        "easyr1",
        "GK304",
        {"algorithm.kl_type": "adaptive", "algorithm.kl_horizon": 0.0},
        {"algorithm.kl_horizon": 0.0},
    ),
    (
        "verl",
        "GK304",
        {**REWARD_KL, "algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.horizon": 0},
        {**REWARD_KL, "algorithm.kl_ctrl.type": "adaptive"},
    ),
    (
        "easyr1",
        "GK305",
        {"algorithm.kl_type": "adaptive"},
        {"algorithm.kl_type": "adaptive", "algorithm.use_kl_loss": False},
    ),
    (
        "easyr1",
        "GK306",
        {"algorithm.kl_coef": 0.0},
        {"algorithm.kl_coef": 0.0, "algorithm.disable_kl": True},
    ),
    ("verl", "GK306", {f"{ACTOR}.kl_loss_coef": 0.0}, {f"{ACTOR}.use_kl_loss": False}),
    ("verl", "GK307", {"algorithm.use_kl_in_reward": True}, REWARD_KL),
    (
        "verl",
        "GK308",
        {f"{ACTOR}.kl_loss_coef": -0.1},
        {f"{ACTOR}.kl_loss_coef": -0.1, f"{ACTOR}.use_kl_loss": False},
    ),
    ("easyr1", "GK310", {"algorithm.disable_kl": True}, {"algorithm.disable_kl": False}),
    (
        "verl",
        "GK310",
        {"algorithm.kl_ctrl.kl_coef": 0.1},
        {"algorithm.kl_ctrl.kl_coef": 0.1, "algorithm.use_kl_in_reward": True},
    ),
    ("easyr1", "GS301", {"data.rollout_batch_size": 2048}, {"data.rollout_batch_size": 1024}),
    ("easyr1", "GD301", {"data.rollout_batch_size": 704}, {"data.rollout_batch_size": 128}),
    (
        "verl",
        "GS302",
        {f"{ACTOR}.optim.lr_warmup_steps": 10, "trainer.total_training_steps": 20},
        # less than a twentieth
        {f"{ACTOR}.optim.lr_warmup_steps": 10, "trainer.total_training_steps": 21},
    ),
    (
        "verl",
        "GS303",
        {"trainer.total_training_steps": 100, "trainer.total_epochs": 5},
        {"trainer.total_training_steps": 40, "trainer.total_epochs": 5},
    ),
    (
        "easyr1",
        "GS304",
        {"algorithm.online_filtering": True},
        {"algorithm.online_filtering": True, "trainer.max_steps": 9},
    ),
    (
        "easyr1",
        "GT301",
        {"worker.rollout.tensor_parallel_size": 3},
        {"worker.rollout.tensor_parallel_size": 4},
    ),
    (
        "verl",
        "GT301",
        {"trainer.n_gpus_per_node": 1},
        {"trainer.n_gpus_per_node": 1, f"{ROLLOUT}.tensor_model_parallel_size": 1},
    ),
    (
        "easyr1",
        "GT302",
        {"worker.actor.ulysses_size": 3, "worker.actor.micro_batch_size_per_device_for_update": 1},
        {"worker.actor.ulysses_size": 4},
    ),
    (
        "verl",
        "GT302",
        {**MEGATRON, f"{ACTOR}.megatron.tensor_model_parallel_size": 3},
        {**MEGATRON, f"{ACTOR}.megatron.tensor_model_parallel_size": 2},
    ),
    (
        "easyr1",
        "GT303",
        {"data.max_response_length": 16384},
        {"data.max_response_length": 16384, "worker.rollout.max_num_batched_tokens": 17408},
    ),
    (
        "verl",
        "GT401",
        {
            f"{ACTOR}.ulysses_sequence_parallel_size": 2,
            "actor_rollout_ref.model.use_remove_padding": False,
        },
        {f"{ACTOR}.ulysses_sequence_parallel_size": 2},
    ),
    ("verl", "GL301", {f"{ACTOR}.clip_ratio_c": 1.0}, {f"{ACTOR}.clip_ratio_c": 10.0}),
    (
        "easyr1",
        "GL302",
        {"worker.actor.loss_avg_mode": "seq"},
        {"worker.actor.loss_avg_mode": "token"},
    ),
    (
        "verl",
        "GL303",
        {"algorithm.adv_estimator": None},
        {"algorithm.adv_estimator": None, "critic.optim.lr": 1e-5},
    ),
    ("verl", "GL303", {"algorithm.adv_estimator": None}, {"algorithm.adv_estimator": "gae"}),
    (
        "easyr1",
        "GV301",
        {"worker.actor.kl_loss_coef": 0.001},
        {"worker.actor.clip_ratio_high": 0.2},
    ),
    (
        "easyr1",
        "GV301",
        {"data.rolout_batch_size": 64},
        {"worker.reward.reward_function_kwargs.x": 1},
    ),
    ("easyr1", "GV302", {"worker.actor.kl_coef": 0.1}, {"algorithm.kl_coef": 0.1}),
    ("easyr1", "GV303", {"data.seed": "one"}, {"data.seed": "1"}),
    ("verl", "GV303", {"trainer.nnodes": 1.5}, {"trainer.nnodes": 2}),
    ("easyr1", "GV305", {"worker.actor.loss_type": "gsop"}, {"worker.actor.loss_type": "gspo"}),
    (
        "verl",
        "GV305",
        {f"{ACTOR}.loss_agg_mode": "token"},
        {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"},
    ),
    ("verl", "GV305", {f"{ACTOR}.strategy": "fsdp3"}, {f"{ACTOR}.strategy": "fsdp2"}),
    (
        "verl",
        "GV305",
        {"algorithm.rollout_correction.rollout_is": "tokens"},
        {"algorithm.rollout_correction.rollout_is": "token"},
    ),
    ("verl", "GV401", {f"{ACTOR}.use_kl_los": True}, {f"+{ACTOR}.mine": True}),
    (
        "verl",
        "GV401",
        {f"+{ACTOR}.use_kl_los": True},
        {"+actor_rollout_ref.model.override_config.x": 1},
    ),
    ("verl", "GV402", {"+trainer.val_before_train": False}, {"++trainer.val_before_train": False}),
    ("verl", "GV403", {f"{ACTOR}.grad_clip": 0.5}, {f"{ACTOR}.optim.clip_grad": 0.5}),
    ("verl", "GV403", {f"{ACTOR}.clip_ratio": 0.1}, {f"{ACTOR}.clip_ratio_low": 0.1}),
    (
        "verl",
        "GV406",
        {f"{ACTOR}.ppo_micro_batch_size": 32, f"{ACTOR}.ppo_micro_batch_size_per_gpu": None},
        {f"{ACTOR}.ppo_micro_batch_size": None},
    ),
]
# of a command line, tested with one below; GV407: test_verl_releases.py
LAUNCHED = (
    "GV304",
    "GV404",
    "GV405",
    "GV407",
)


def verdict(framework: str, changes: dict[str, Any]) -> LintResult:
    """The verdict on GOOD with changes, 1,024 training prompts; None removes a key."""
    config = {
        key: value for key, value in {**GOOD[framework], **changes}.items() if value is not None
    }
    return lint_recipe(build_recipe(config, Options(framework, train_prompts=1024)))


def codes(found: LintResult, severity: str = "") -> set[str]:
    """The codes of all findings."""
    return {finding.code for finding in found.diagnostics if finding.severity.startswith(severity)}


@pytest.mark.parametrize(
    ("code", "key", "bad", "good"),
    [
        ("GL213", f"{ROLLOUT}.max_model_len", 512, 1024),
        ("GA210", f"{ACTOR}.ppo_epochs", 8, 2),
        ("GS107", f"{ACTOR}.optim.lr", 1e5, 1e-5),
    ],
)
def test_a_rule_of_every_framework_reads_the_keys_of_verl(
    code: str, key: str, bad: float, good: float
) -> None:
    """Its other cases are those of TRL."""
    assert code in codes(verdict("verl", {key: bad}))
    assert code not in codes(verdict("verl", {key: good}))


@pytest.mark.parametrize("framework", IN_PROMPTS)
def test_a_good_recipe_has_no_problem(framework: str) -> None:
    """The base of the cases below."""
    assert codes(verdict(framework, {})) == set()


@pytest.mark.parametrize(("framework", "code", "bad", "good"), CASES)
def test_a_rule_fires_on_a_bad_recipe_and_not_on_its_neighbour(
    framework: str, code: str, bad: dict[str, Any], good: dict[str, Any]
) -> None:
    """The neighbour breaks no rule that is an error."""
    assert code in codes(verdict(framework, bad))
    assert code not in codes(verdict(framework, good))
    assert codes(verdict(framework, good), "error") == set()


def test_every_rule_in_prompts_has_a_case() -> None:
    """A new rule comes with its line."""
    own = [FRAMEWORKS[name].traits for name in IN_PROMPTS]
    others = [known.traits for known in FRAMEWORKS.values() if known.traits.unit != "prompts"]
    rules = {
        code: rule
        for code, rule in {**REGISTRY, **RECIPE_RULES}.items()
        if any(map(rule.holds_for, own))
    }
    ours = {code for code, rule in rules.items() if not any(map(rule.holds_for, others))}
    # of points of a sweep, which no recipe of their own can be: tests/programs
    swept = {"GB312"}
    assert {code for _, code, _, _ in CASES} | set(LAUNCHED) | swept == ours


@pytest.mark.parametrize(("framework", "code", "bad", "good"), CASES)
def test_a_fix_ends_its_problem_in_the_framework_s_own_words(
    framework: str, code: str, bad: dict[str, Any], good: dict[str, Any]
) -> None:
    """Applied to the recipe and judged again; every error of a size or a place has one."""
    found = verdict(framework, bad)
    for finding in (finding for finding in found.diagnostics if finding.code == code):
        assert finding.fixes or finding.severity != "error" or code in ("GS301", "GB410", "GV303")
        for repair in finding.fixes:
            assert all("." in key for key in repair.change)
            after = lint_recipe(changed(found.recipe, repair.change))
            assert code not in codes(after) or code in ("GV301", "GV303", "GB408")
            assert codes(after, "error") <= codes(found, "error")


@pytest.mark.parametrize(("framework", "code", "bad", "good"), CASES)
def test_a_message_names_the_keys_that_were_set(
    framework: str, code: str, bad: dict[str, Any], good: dict[str, Any]
) -> None:
    """It has no name of TRL and none of this project."""
    messages = [
        finding.message for finding in verdict(framework, bad).diagnostics if finding.code == code
    ]
    for word in (
        "num_generations=",
        "prompts_per_",
        "gradient_accumulation",
        "per_device_train",
        "kl_placement",
        "beta=",
    ):
        assert not any(word in message for message in messages)


@pytest.mark.parametrize(
    ("framework", "code", "base"),
    [
        ("easyr1", "GV304", ""),
        ("verl", "GV404", ""),
        ("verl", "GV405", "mine/grpo.yaml"),
    ],
)
def test_a_command_line_without_its_configuration_is_noticed(
    framework: str, code: str, base: str
) -> None:
    """``config=`` for EasyR1; the engine, or the file that should name it, for verl."""
    program = "verl.trainer.main" if framework == "easyr1" else "verl.trainer.main_ppo"
    config = {key: value for key, value in GOOD[framework].items() if key != f"{ROLLOUT}.name"}
    lines = dict.fromkeys(config, 2)
    options = Options(framework)
    said: dict[str, Any] = {
        "launch": LaunchContext("python", program),
        "file": "run.sh",
        "lines": lines,
    }
    recipe: Recipe = build_recipe(config, options, base=base, **said)
    assert code in codes(lint_recipe(recipe))
    with_name = {**config, f"{ROLLOUT}.name": "vllm"}
    whole = build_recipe(
        with_name if framework == "verl" else config, options, base="verl/ppo_trainer.yaml", **said
    )
    assert code not in codes(lint_recipe(whole))
