"""Unsloth's own checks: its silent corrections, refusals, and dropped keys.

Sources: unsloth 2026.8.19 unsloth/models/rl.py (the arguments of the generated configuration),
rl_config_compat.py.
"""

from collections.abc import Iterator
from dataclasses import replace

from grporecipe.fields.reading import read_table, values_of
from grporecipe.frameworks.trl.recipe_rules import keys_are_known, keys_exist_in_this_version
from grporecipe.frameworks.unsloth import DAPO_CLIP, DEFAULTS, FRAMEWORK, corrected_size
from grporecipe.model import planning
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting
from grporecipe.rules.helpers import of_key
from grporecipe.rules.registry import RecipeJudge, Violation, recipe_rule, rule, variant

UNSLOTH = frozenset({"unsloth"})
# Unsloth's limit for the temperature
HOTTEST = 10


@recipe_rule("GB701", "warning", of=UNSLOTH)
def the_micro_batch_is_as_it_is_set(recipe: Recipe) -> Iterator[Violation]:
    """Unsloth sets the micro-batch to ``num_generations`` if B W A is not a multiple of it; the
    plan uses the new size.

    It prints "We will change the batch size of 4 to the `num_generations` of 6" and trains. Before
    2025.11.3, B itself must be a multiple.
    """
    if (
        recipe.config.get("steps_per_generation") is not None
        or recipe.config.get("generation_batch_size") is not None
    ):
        return
    reading = read_table(FRAMEWORK, recipe)
    if reading.unknown & {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_generations",
    }:
        return
    s = reading.setting
    size = int(
        values_of(recipe).stated.get(
            "per_device_train_batch_size", DEFAULTS["per_device_train_batch_size"]
        )
    )
    taken = corrected_size(
        size, s.gradient_accumulation_steps, s.processes, s.num_generations, recipe.version
    )
    if size < 1 or taken == size:
        return
    yield Violation(
        f"per_device_train_batch_size={size}",
        f"with gradient_accumulation_steps={s.gradient_accumulation_steps} it makes partial "
        f"groups of {s.num_generations}, so "
        f"Unsloth takes {s.num_generations} instead: memory and the plan follow from that",
        f"Set per_device_train_batch_size={s.num_generations}, which is what trains.",
        ("per_device_train_batch_size",),
        ({"per_device_train_batch_size": s.num_generations},),
        frozenset({"per_device_train_batch_size"}),
    )


@recipe_rule("GL701", "warning", of=UNSLOTH)
def the_loss_keeps_its_options(recipe: Recipe) -> Iterator[Violation]:
    """With ``loss_type=dapo`` Unsloth sets the upper clip to 0.28 and masks truncated completions;
    dr_grpo is not scaled.
    """
    stated = values_of(recipe).stated
    loss = str(stated.get("loss_type", "")).lower()
    taken = (
        {"epsilon_high": DAPO_CLIP, "mask_truncated_completions": True} if loss == "dapo" else {}
    )
    if loss == "dr_grpo" and str(stated.get("scale_rewards")) in ("True", "group"):
        taken = {"scale_rewards": False}
    for key, value in taken.items():
        if key in stated and stated[key] != value:
            yield Violation(
                f"{key}={stated[key]}",
                f"with loss_type={loss} Unsloth takes {value} instead",
                f"Set {key}={value}.",
                (key,),
                ({key: value},),
                frozenset({key}),
            )


@rule(
    "GL702",
    "error",
    ("framework", "temperature"),
    of=UNSLOTH,
    blames=("temperature",),
    why="Unsloth refuses 10 or more",
    instead="Set {temperature}=1.0.",
    to=({"temperature": 1.0},),
)
def the_temperature_is_no_noise(s: Setting) -> bool:
    """Unsloth refuses a temperature of 10 or more.

    "Please set a positive non-zero temperature less than 10, since sampling will be quite erratic."
    """
    return s.temperature >= HOTTEST


@recipe_rule("GB702", "error", of=UNSLOTH)
def a_mini_batch_fits_a_rollout(recipe: Recipe) -> Iterator[Violation]:
    """``unsloth_grpo_mini_batch`` is at most the completions of a rollout.

    "Unsloth GRPO mini batch size needs to be less than or equal to the effective generation batch
    size".
    """
    size = values_of(recipe).stated.get("unsloth_grpo_mini_batch") or 0
    rollout = planning.completions_per_rollout(read_table(FRAMEWORK, recipe).setting)
    if rollout is not None and size > rollout:
        key = "unsloth_grpo_mini_batch"
        reason = f"a rollout has {rollout} completions, and Unsloth stops"
        yield of_key(key, size, reason, f"Set at most {rollout}.", {key: rollout})


def _dropped(judge: RecipeJudge) -> RecipeJudge:
    """Return a rule on keys as a warning, because recent releases of Unsloth drop keys that TRL
    does not take, with a message.
    """

    def dropped(recipe: Recipe) -> Iterator[Violation]:
        for broken in judge(recipe):
            reason = f"{broken.why}; recent releases of Unsloth drop it and continue"
            yield replace(broken, why=reason, severity="warning")

    return dropped


variant("GV101", UNSLOTH, _dropped(keys_exist_in_this_version))
variant("GV102", UNSLOTH, _dropped(keys_are_known))
