"""EasyR1's and verl's rules: each fires on a bad recipe, is silent on its neighbour, and its fixes
hold.
"""

import pytest

from grporecipe.files import Json, read_own_yaml
from grporecipe.linting.linter import LintResult, changed, lint_recipe
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import LaunchContext, Recipe
from grporecipe.reading.load import Options, build_recipe
from grporecipe.rules.check import RECIPE_RULES, REGISTRY
from verdicts import the_one

IN_PROMPTS = sorted(name for name, known in FRAMEWORKS.items() if known.is_dotted)
ACTOR, ROLLOUT, REF = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.ref",
)
GOOD: dict[str, Json] = {
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
# framework, code, what breaks it over GOOD, a neighbour that does not
CASES = [
    (framework, code, case["bad"], case["good"])
    for framework, rules in read_own_yaml(__file__, "cases_in_prompts.yaml").items()
    for code, cases in rules.items()
    for case in cases
]
LAUNCHED = (
    "GV304",
    "GV404",
    "GV405",
    "GV407",
)


def verdict(framework: str, changes: Json) -> LintResult:
    """The verdict of a ``release``, or the newest, on GOOD with changes, 1,024 training prompts;
    None removes a key.
    """
    config = {
        key: value for key, value in {**GOOD[framework], **changes}.items() if value is not None
    }
    release = config.pop("release", None)
    options = Options(framework, own_version=release, train_prompts=1024)
    return lint_recipe(build_recipe(config, options))


def codes(found: LintResult, severity: str = "") -> set[str]:
    """The codes of all findings."""
    return {finding.code for finding in found.diagnostics if finding.severity.startswith(severity)}


def test_a_coefficient_that_was_removed_is_moved_to_the_key_that_took_its_place() -> None:
    """EasyR1 0.3.0 has one coefficient, in the loss or in the reward."""
    keys = {"worker.actor.kl_loss_coef": 1e-3, "algorithm.kl_coef": 0.0}
    found = the_one(verdict("easyr1", keys).diagnostics, "GV301")
    moved = {"worker.actor.kl_loss_coef": None, "algorithm.kl_coef": 1e-3}
    assert moved in [fix.change for fix in found.fixes]


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
    framework: str, code: str, bad: Json, good: Json
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
    framework: str, code: str, bad: Json, good: Json
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
    framework: str, code: str, bad: Json, good: Json
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
    said: Json = {
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
