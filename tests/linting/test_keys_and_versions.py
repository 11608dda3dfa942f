"""Family GV: keys that a release takes, values it can read, scripts that say what they mean."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grporecipe.files import Json, read_own_yaml
from grporecipe.frameworks.trl.keys import choices, parse_version
from grporecipe.linting.linter import Diagnostic, lint_recipe, select_rules
from grporecipe.model.recipe import (
    NO_CODE,
    NOT_STATED,
    Duplicate,
    KeySpec,
    LaunchContext,
    LaunchedCode,
    Recipe,
    VersionSource,
)
from grporecipe.reading.load import Options, load_recipe
from verdicts import codes_of, error_codes, lint_text

GV = select_rules(["GV"])

REWARDS, TAKEN = (read_own_yaml(__file__, name) for name in ("rewards.yaml", "taken.yaml"))


def findings(
    config: Json, version: str = "1.16", framework: str = "trl", **more: Any
) -> list[Diagnostic]:
    """The family's findings on a recipe."""
    return list(
        lint_recipe(Recipe(framework, parse_version(version), config, **more), GV).diagnostics
    )


KEYS = read_own_yaml(__file__, "keys.yaml")


@pytest.mark.parametrize("row", KEYS["found"].values(), ids=KEYS["found"])
def test_keys_and_values_are_judged_by_the_release(row: Json) -> None:
    """A fix is safe if the meaning is kept."""
    found = findings(row["config"], row.get("version", "1.16"), row.get("framework", "trl"))
    for one, stated in zip(found, row["found"], strict=True):
        assert one.code == stated["code"]
        assert one.severity == stated.get("severity", one.severity)
        assert list(one.keys) == stated.get("keys", list(one.keys))
        assert stated.get("says", "") in one.message
        if "first" in stated:
            assert one.fixes[0].change == stated["first"]
        if "safe" in stated:
            assert one.fixes[0].safe is stated["safe"]
        if "fixes" in stated:
            for fix, wanted in zip(one.fixes, stated["fixes"], strict=True):
                assert fix.change == wanted["change"]
                assert fix.safe is wanted.get("safe", fix.safe)


ALONE = [(code, config) for code, configs in KEYS["alone"].items() for config in configs]


@pytest.mark.parametrize(("code", "config"), ALONE)
def test_a_value_that_is_refused_at_start_is_one_error(code: str, config: Json) -> None:
    """By its type, or by transformers. Nothing else is reported about it."""
    assert [found.code for found in findings(config)] == [code]


def test_what_happens_to_an_unknown_key_depends_on_the_launch() -> None:
    """trl.scripts.grpo drops it silently, and the user's own script may read it."""
    swallowed = findings({"betta": 1}, launch=LaunchContext("accelerate", "trl.scripts.grpo"))[0]
    assert "trl.scripts.grpo drops it silently" in swallowed.message
    handed_on = findings({"betta": 1}, launch=LaunchContext("trl", "trl.scripts.grpo"))[0]
    assert "accelerate launch" in handed_on.message
    own = findings({"betta": 1}, launch=LaunchContext("torchrun", "train.py"))[0]
    assert (own.code, own.severity) == ("GV108", "warning")
    assert [
        found.code
        for found in findings({"system_prompt": "x"}, launch=LaunchContext("torchrun", "train.py"))
    ] == ["GV108"]


# the lines of a key that a script gives as a flag
FLAG = {"betta": 4}
OWN = LaunchContext("accelerate", "train.py")


@pytest.mark.parametrize(
    ("version", "launcher", "program", "of_yaml", "of_flag"),
    [
        ("0.18.2", "accelerate", "open_r1/grpo.py", "warning", "error"),
        ("0.19", "accelerate", "open_r1/grpo.py", "error", "error"),
        ("0.18.2", "accelerate", "trl.scripts.grpo", "warning", "error"),
        ("0.21", "accelerate", "trl.scripts.grpo", "error", "error"),
        ("0.22.2", "accelerate", "trl/scripts/grpo.py", "warning", "warning"),
        ("1.0", "accelerate", "trl.scripts.grpo", "warning", "error"),
        ("0.28", "trl", "trl.scripts.grpo", "warning", "warning"),
        ("0.29", "trl", "trl.scripts.grpo", "error", "error"),
    ],
)
def test_the_parser_of_each_release_drops_a_key_or_stops(
    version: str, launcher: str, program: str, of_yaml: str, of_flag: str
) -> None:
    """As trl/scripts/utils.py, scripts/grpo.py and the `trl` command of these releases do it."""
    launch = LaunchContext(launcher, program)
    (yaml,) = findings({"betta": 1}, version, launch=launch)
    (flag,) = findings({"betta": 1}, version, launch=launch, lines=FLAG)
    assert (yaml.severity, flag.severity) == (of_yaml, of_flag)
    assert ("is lost" in yaml.message) == (of_yaml == "warning")


def test_keys_that_the_launched_script_declares_are_known() -> None:
    """They are its dataclasses' fields or its options. The script also shows what happens to other
    keys.
    """
    declares = {"max_pixels": KeySpec("int?", None)}
    code = LaunchedCode("train.py", declares, other_keys="stop")
    assert findings({"max_pixels": "400"}, launch=OWN, lines=FLAG, code=code) == []
    # as `check` finds it, where an installed package builds the configuration
    assert findings({"max_pixels": "400"}, code=replace(code, file="")) == []
    (typo,) = findings({"betta": 1}, launch=OWN, lines=FLAG, code=code)
    assert (typo.code, typo.severity) == ("GV102", "error")
    (lost,) = findings(
        {"betta": 1},
        launch=OWN,
        lines=FLAG,
        code=LaunchedCode("train.py", declares, other_keys="dropped"),
    )
    assert (lost.code, lost.severity) == ("GV102", "warning")
    (unread,) = findings({"betta": 1}, launch=OWN, lines=FLAG, code=LaunchedCode("train.py"))
    assert (unread.code, unread.severity) == ("GV108", "warning")


# on 7 processes no whole groups
BATCH = {"num_generations": 8, "per_device_train_batch_size": 1, "max_steps": 10}


def test_batch_rules_of_trl_do_not_judge_another_trainer() -> None:
    """Its batches may hold prompts: neither an error nor a plan, and one warning says so."""
    plain = lint_recipe(Recipe("trl", (1, 16, 0), BATCH, 7))
    assert "GB101" in error_codes(plain.diagnostics)
    own = lint_recipe(
        Recipe(
            "trl",
            (1, 16, 0),
            BATCH,
            7,
            code=LaunchedCode("t.py", trainer="MyTrainer", own_trainer=True),
        )
    )
    assert [found.code for found in own.diagnostics] == ["GV112"]
    assert "MyTrainer" in own.diagnostics[0].message
    assert set(own.plan.values()) == {None}


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"max_staleness": 4, "beta": -1, "unknown_key": 1}, NO_CODE),
        ({"num_generations": 7}, LaunchedCode("t.py", trainer="AsyncGRPOTrainer")),
    ],
)
def test_an_asynchronous_trainer_is_named_and_not_judged(config: Json, code: LaunchedCode) -> None:
    """By its class, or by keys that only it has: it makes batches its own way."""
    (found,) = findings(config, code=code)
    assert (found.code, found.severity) == ("GV112", "note")
    assert "AsyncGRPOTrainer trains: it generates while it trains" in found.message
    recipe = Recipe("trl", parse_version("1.16"), config, code=code)
    assert lint_recipe(recipe, select_rules(["GB"])).diagnostics == ()


def test_own_keys_of_own_scripts_are_one_warning() -> None:
    """Not one a key: a script may have many."""
    config = {f"my_word_{n}": n for n in range(12)}
    (found,) = findings(config, launch=LaunchContext("accelerate", "src/train.py"))
    assert len(found.keys) == 12
    assert "and 4 more" in found.message
    assert "src/train.py" in found.message


DENSE = {"model_name_or_path": "Qwen/Qwen2.5-1.5B"}
LIGER = {"fused_linear_cross_entropy": True}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"use_peft": True, "lora_target_modules": ["q_proj", "lm_head"]}, "use_peft"),
        ({**DENSE, "router_aux_loss_coef": 0.001}, "router_aux_loss_coef"),
        ({"use_liger_kernel": True, "liger_kernel_config": LIGER}, "use_liger_kernel"),
        (
            {"dataset_streaming": True, "accelerator_config": {"dispatch_batches": True}},
            "dataset_streaming",
        ),
    ],
)
def test_what_trl_refuses_at_start_is_an_error(config: Json, key: str) -> None:
    """Each was tried with TRL 1.16 and a tiny model. Without one of the keys it trains, and so do
    older releases.
    """
    assert [found.code for found in findings(config)] == ["GV118"]
    assert findings({name: value for name, value in config.items() if name != key}) == []
    assert "GV118" not in codes_of(findings(config, "1.8"))


@pytest.mark.parametrize(("code", "is_told", "config"), REWARDS)
def test_rewards_that_teach_nothing_are_reported(code: str, is_told: bool, config: Json) -> None:
    """In half of the groups of two or more, or in every completion."""
    found = lint_recipe(Recipe("trl", parse_version("1.16"), config)).diagnostics
    assert (code in {each.code for each in found}) == is_told


@pytest.mark.parametrize("config", TAKEN)
def test_values_that_trl_and_transformers_take_are_fine(config: Json) -> None:
    """No false alarm, nor for a value without effect."""
    assert findings(config) == []


def test_a_mode_of_vllm_that_trl_does_not_have_is_an_error() -> None:
    """With vLLM; without its correction, the mode of that is not read."""
    modes = {"use_vllm": True, "vllm_mode": "local", "vllm_importance_sampling_mode": "token"}
    codes = [found.code for found in findings(modes) if found.severity == "error"]
    assert codes == ["GV104", "GV104"]
    assert (
        len(findings({**modes, "vllm_importance_sampling_correction": False}))
        == len(findings(modes)) - 1
    )


# imports torch
@pytest.mark.slow
def test_every_name_that_transformers_takes_is_a_choice() -> None:
    """In the installed release."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    assert {name.value for name in SchedulerType} <= {*choices("lr_scheduler_type")}
    assert {name.value for name in OptimizerNames} <= {*choices("optim")}
    assert INTEGRATION_TO_CALLBACK.keys() <= {*choices("report_to")}


def test_duplicates_name_both_lines() -> None:
    """The last one counts."""
    (found,) = findings(
        {"beta": 0.1}, duplicates=(Duplicate("beta", 3, 9, 0.0),), lines={"beta": 9}
    )
    assert (found.code, found.severity, found.line) == ("GV105", "warning", 9)
    assert "beta is 0 on line 3 and 0.1 on line 9" in found.message


def test_rules_that_depend_on_an_unknown_value_report_nothing() -> None:
    """``num_generations: $G`` is neither 8 nor wrong."""
    recipe = Recipe(
        "trl",
        (1, 16, 0),
        {"num_generations": "$G", "per_device_train_batch_size": 1, "beta": -1.0},
        7,
        unresolved={"num_generations": "$G"},
    )
    verdict = lint_recipe(recipe)
    codes = codes_of(verdict.diagnostics)
    assert "GV106" in codes
    assert "GK106" in codes
    assert not any(code.startswith("GB") for code in codes)
    assert verdict.plan["completions_per_rollout"] is None


def test_unknown_values_that_a_rule_reads_are_one_finding() -> None:
    """Not for the name of a folder, nor for ``$@``; other words that may hold options have one of
    their own.
    """
    unresolved = {
        "num_generations": "$G",
        "beta": "$B",
        "output_dir": "$OUT",
        "$@": "$@",
        "$ARGS": "$ARGS",
    }
    values, words = sorted(
        findings({}, unresolved=unresolved), key=lambda found: found.keys, reverse=True
    )
    assert values.keys == ("num_generations", "beta")
    assert values.message.startswith(
        "num_generations: $G, beta: $B: the file alone does not determine them"
    )
    assert words.keys == ("$ARGS",)
    assert "the rest was checked without them" in words.message


@pytest.mark.parametrize(
    ("framework", "version", "key", "is_judged"),
    [
        ("verl", (0, 9, 1), "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", True),
        ("verl", (0, 9, 1), "algorithm.use_kl_in_reward", True),
        # nothing follows from it
        ("verl", (0, 9, 1), "actor_rollout_ref.rollout.name", False),
        ("verl", (0, 9, 1), "data.filter_overlong_prompts", False),
        ("verl", (0, 9, 1), "data.train_files", False),
        ("easyr1", (0, 2, 0), "worker.actor.kl_loss_coef", True),
        # algorithm.kl_coef replaced it
        ("easyr1", (0, 3, 3), "worker.actor.kl_loss_coef", False),
        ("easyr1", (0, 3, 3), "algorithm.kl_coef", True),
        ("ms-swift", (4, 6, 0), "loss_type", True),
        ("ms-swift", (4, 6, 0), "warmup_ratio", True),
        ("trl", (1, 16, 0), "accelerator_config", True),
        ("trl", (1, 16, 0), "run_name", False),
    ],
)
def test_unresolved_values_are_reported_for_keys_that_the_release_reads(
    framework: str, version: tuple[int, int, int], key: str, is_judged: bool
) -> None:
    """A warning about a key that nothing depends on would be noise."""
    config = {key: "$X"} | ({"rlhf_type": "grpo"} if framework == "ms-swift" else {})
    found = lint_recipe(
        Recipe(framework, version, config, unresolved={key: "$X"}), select_rules(["GV106"])
    ).diagnostics
    assert bool(found) is is_judged


@pytest.mark.parametrize(
    ("framework", "typo", "severity"),
    [
        ("trl", "num_generatons", "error"),
        ("trl", "cast_lm_head_to_fp23", "warning"),
        ("ms-swift", "num_generatons", "error"),
    ],
)
def test_a_typo_of_a_key_of_all_releases_is_an_error_if_another_key_hides_the_version(
    tmp_path: Path, framework: str, typo: str, severity: str
) -> None:
    """A key that came late may be spelled otherwise in a fork; ``num_generations`` is in every
    release.
    """
    own = {"ms-swift": "rlhf_type: grpo\nmodel: m\n", "trl": "model_name_or_path: m\n"}[framework]
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{own}{typo}: 4\nnothing_is_like_it: 1\n")
    recipe = load_recipe(path, Options(framework))
    assert recipe.version_source == NOT_STATED
    found = {
        problem.keys: problem
        for problem in lint_recipe(recipe, select_rules(["GV102", "GV501"])).diagnostics
    }
    assert (found[(typo,)].severity, [fix.safe for fix in found[(typo,)].fixes]) == (
        severity,
        [False],
    )
    assert ("nothing_is_like_it",) not in found
    # a fork's own list; TRL's key takes one word
    if framework == "trl":
        path.write_text(
            "model_name_or_path: m\ndataset_configs: [default]\nnothing_is_like_it: 1\n"
        )
        (fork,) = lint_recipe(
            load_recipe(path, Options("trl")), select_rules(["GV102"])
        ).diagnostics
        assert fork.severity == "warning"


@pytest.mark.parametrize(("kind", "severity"), [("asked", "error"), ("default", "warning")])
def test_an_error_of_one_release_is_a_warning_if_another_release_may_train(
    kind: Any, severity: str
) -> None:
    """The loss cispo came with TRL 0.23: under an assumed 0.18 it may be right. Groups of one are
    wrong in every release.
    """
    recipe = Recipe(
        "open-r1", (0, 18, 0), {"loss_type": "cispo"}, 8, version_source=VersionSource(kind)
    )
    (found,) = lint_recipe(recipe, select_rules(["GL101"])).diagnostics
    assert (found.severity, any(fix.safe for fix in found.fixes)) == (severity, False)
    torn = replace(recipe, config={"num_generations": 1, "per_device_train_batch_size": 8})
    (always,) = lint_recipe(torn, select_rules(["GB102"])).diagnostics
    assert (always.code, always.severity) == ("GB102", "error")


def test_an_unknown_key_hides_no_choice_that_no_release_has(tmp_path: Path) -> None:
    """The version is unknown then; a misspelt word is wrong with any."""
    launch = "algorithm.adv_estimator=grop actor_rollout_ref.actor.foo=1\n"
    verl = lint_text(tmp_path, f"python3 -m verl.trainer.main_ppo {launch}")
    assert "GV305" in error_codes(verl.diagnostics)
    keys = "num_generations: 8\nfoo_bar: 1\ntorch_dtype: bf16\n"
    trl = lint_text(tmp_path, f"{keys}lr_scheduler_type: cosine_annealing\n", "recipe.yaml")
    assert [found.code for found in trl.diagnostics].count("GV104") == 2


@pytest.mark.parametrize(
    ("model", "length", "more", "fires"),
    [
        ("Qwen/Qwen3-0.6B", 512, {}, True),
        ("Qwen/Qwen3-0.6B", 1024, {}, False),
        ("Qwen/Qwen3-0.6B", 512, {"chat_template_kwargs": {"enable_thinking": False}}, False),
        ("Qwen/Qwen3-0.6B-Base", 512, {}, False),
        ("Qwen/Qwen3-4B-Instruct-2507", 512, {}, False),
        ("Qwen/Qwen3-4B-Thinking-2507", 1024, {}, True),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1024, {}, True),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 8192, {}, False),
    ],
)
def test_a_model_that_thinks_has_room_for_its_answer(
    model: str, length: int, more: Json, fires: bool
) -> None:
    """GA208 knows it by its name, and offers a length."""
    config = {"model_name_or_path": model, "max_completion_length": length, **more}
    found = lint_recipe(
        Recipe("trl", parse_version("1.16"), config), select_rules(["GA208"])
    ).diagnostics
    assert [fix.change for one in found for fix in one.fixes] == (
        [{"max_completion_length": 8192}] if fires else []
    )
