"""GA: settings that are allowed but seldom wise. Opinions with evidence; ``--ignore GA`` switches
them off.

Sources: a user's report on EasyR1 training that stalled after 30 steps (7 B model, 8 prompts per
step, learning rate 1e-6); DeepSeekMath and DAPO for settings that were published with results;
"LoRA Without Regret" (Thinking Machines, 2025); what precision and sharding cost was measured, or
read in torch and TRL 1.16.
"""

import re
from collections.abc import Iterator
from math import log

from grporecipe.fields.reading import values_of
from grporecipe.fields.recipes import read_recipe
from grporecipe.model import planning
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.rates import FULL, rates_for, rounds_updates
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import EVERY, TRL_FAMILY, TRL_LIKE, Setting
from grporecipe.rules.batch import LARGE_MODEL, SIZES, judgeable, only_tries
from grporecipe.rules.helpers import named, of_key
from grporecipe.rules.registry import Finding, Violation, recipe_rule, rule

# per step; 8 is the batch of the stalled run
VERY_FEW_PROMPTS, FEW_PROMPTS = 2, 8
# a fifth of the usual rate, and ten times that for LoRA
TIMID, TIMID_LORA = 2e-7, 2e-6
# parameters: half and twice those of the report's model
SMALLEST_REPORTED, LARGEST_REPORTED = 3.5e9, 15e9
STEP = (*SIZES, "unsolved", "num_generations", "max_steps")


def _prompts_per_step(s: Setting) -> float | None:
    """Return the prompts behind one optimizer step; None while something is unknown, and for a run
    that only tries the code.
    """
    if only_tries(s) or s.num_generations < 1 or not judgeable(s):
        return None
    completions = planning.completions_per_step(s)
    if completions is None:
        return None
    return min(completions / s.num_generations, s.prompts_per_rollout or completions)


def _in_words(prompts: float) -> str:
    plural = "" if prompts == 1 else "s"
    return f"{prompts:g} prompt{plural}"


def _is_as_reported(s: Setting) -> bool:
    """Return whether all weights of a model are trained whose size is about that of the stalled
    run.
    """
    return not s.lora and SMALLEST_REPORTED <= (s.parameters or 0) <= LARGEST_REPORTED


@rule(
    "GA201",
    "warning",
    (*STEP, "given", "framework", "prompts_per_step", "prompts_per_rollout", "parameters", "lora"),
    of=EVERY,
)
def a_step_has_several_prompts(s: Setting) -> Violation | None:
    """An optimizer step over one or two prompts is mostly noise: groups that are all right or all
    wrong teach nothing.

    The EasyR1 report (7 B, full fine-tuning) stalled at 8 prompts per step and advises 32 to 64, so
    for models of half to twice that size up to 8 are reported. DeepSeekMath takes 16 prompts of 64
    completions, DAPO 512 prompts. Agents of smaller models train with 4 to 8 by choice. Only
    recipes are judged, not grposweep experiments.
    """
    if not s.given:
        return None
    prompts = _prompts_per_step(s)
    few = FEW_PROMPTS if _is_as_reported(s) else VERY_FEW_PROMPTS
    if prompts is None or prompts > few:
        return None
    name = "prompts_per_step"
    advice = "Take"
    if s.prompts_per_rollout is None:
        name = "gradient_accumulation_steps"
        advice = "Accumulate"
    elif s.prompts_per_rollout < (s.prompts_per_step or 0):
        name = "prompts_per_rollout"
    return Violation(
        named(s, (name,)),
        f"an optimizer step averages over {_in_words(prompts)} only",
        f"{advice} more; 32 prompts per step and above are common.",
        (name, "num_generations"),
    )


RATED = (
    "learning_rate",
    "parameters",
    "lora",
    "lora_alpha",
    "weights_dtype",
    "sharding",
    "architecture",
    "given",
    "processes",
    "framework",
    "runtime",
)


@rule(
    "GA202",
    "warning",
    RATED,
    of=EVERY,
    blames=("learning_rate", "lora_alpha"),
    why="high for {model}: stable GRPO runs are reported up to {most:g}",
    instead="Try {rate:.1g}, with warmup.",
)
def the_learning_rate_is_not_hot(s: Setting) -> Finding:
    """Full fine-tuning above 2e-5 (bfloat16 weights: 6e-5; LoRA: 5e-4) is beyond what stable GRPO
    runs report.

    The EasyR1 report advises 5e-6 to 1e-5 for 7 B; published runs take 1e-6 (DeepSeekMath, DAPO).
    float32 weights of 1.5 B diverge at 1.7e-5 (AReaL PR #1634), bfloat16 weights are best at 3e-5
    and 4e-5 in two public sweeps, because most of an update rounds to nothing (GA206). LoRA takes
    about ten times the rate of full fine-tuning ("LoRA Without Regret"), less for wide models
    (tinker-cookbook). Updates are scaled by alpha / rank, and the best rate hardly depends on the
    rank, so another alpha than 32 divides these limits. Judged only if the model's size is known.
    One function has all rates: model/rates.py.
    """
    rates = rates_for(s)
    if (s.parameters or 0) < LARGE_MODEL or s.learning_rate <= rates.most:
        return None
    return {"model": _model(s), "most": rates.most, "rate": rates.advised}


@rule(
    "GA203",
    "warning",
    (*STEP, *RATED, "warmup_steps"),
    of=EVERY,
    blames=("learning_rate",),
    why="conservative for {model}{step}",
    instead="Try {rate:.1g}{warmup}, or more prompts per step.",
)
def the_learning_rate_is_not_timid(s: Setting) -> Finding:
    """Full fine-tuning at 2e-7 or below over 8 prompts per step or fewer, or LoRA at 2e-6 or below,
    hardly moves the model.

    The EasyR1 report (7 B, 1e-6, 8 prompts per step) stalled, and advises 5e-6 to 1e-5 with warmup,
    so for models of half to twice that size 1e-6 is reported too. It is the usual rate of published
    full fine-tuning (DeepSeekMath, DAPO, nearly every recipe of verl), over at least 16 prompts per
    step. Judged up to twice the size of the report's model. GA206 speaks of weights in half
    precision.
    """
    if not LARGE_MODEL <= (s.parameters or 0) <= LARGEST_REPORTED or rounds_updates(s):
        return None
    rates = rates_for(s)
    most = rates.usual if _is_as_reported(s) else TIMID
    if s.lora:
        most = TIMID_LORA
    if not 0 < s.learning_rate <= min(most, rates.advised):
        return None
    prompts = _prompts_per_step(s)
    if not s.lora and (prompts is None or prompts > FEW_PROMPTS):
        return None
    step = "" if prompts is None else f" and {_in_words(prompts)} per step"
    warmup = "" if s.warmup_steps else " with warmup"
    return {"model": _model(s), "step": step, "rate": rates.advised, "warmup": warmup}


@rule(
    "GA204",
    "warning",
    (*RATED, "warmup_steps", "lr_scheduler_type", "version", "max_steps"),
    of=EVERY,
    blames=("warmup_steps", "learning_rate"),
    what="{warmup_steps}=0",
    why="{learning_rate=} applies in full from the first step",
    instead="Warm up over a twentieth of all steps{how}.",
)
def a_steep_start_has_warmup(s: Setting) -> Finding:
    """A learning rate of 5e-6 and above (bfloat16 weights three times, LoRA ten times that) from
    the first step on.

    Adam's moments have not settled then. The EasyR1 report advises these rates together with
    warmup. Judged only if the model's size is known.
    """
    is_steep = s.learning_rate >= rates_for(s).advised
    if s.parameters is None or only_tries(s) or not is_steep or s.warmup_steps != 0:
        return None
    if not s.framework.follows_trl:
        return {"how": ""}
    # transformers before 5, which TRL takes since 1.0, refuses a share as a number of steps.
    key = s.key("warmup_steps") if s.version >= (1, 0, 0) else "warmup_ratio"
    return {"how": f": {key}=0.05"}


@rule(
    "GA205",
    "warning",
    ("sharding", "use_vllm", "processes"),
    of=TRL_FAMILY,
    blames=("sharding", "use_vllm"),
    why=(
        "transformers then generates with sharded weights, and gathers every layer for every "
        "token: ten times slower or more"
    ),
    instead="Set {use_vllm}=true, or {sharding}=zero2.",
)
def generation_has_whole_weights(s: Setting) -> bool:
    """FSDP frees each layer after its forward pass, so generating by transformers sends all weights
    once a token.

    It works: TRL runs all ranks in step (``synced_gpus``). ZeRO-2 keeps the weights whole, ZeRO-3
    gathers them once a rollout (``ds3_gather_for_generation``), and vLLM holds its own. Source:
    torch distributed/fsdp fully_shard, trl 1.16 models/utils.py.
    """
    return s.sharding == "fsdp" and not s.use_vllm and (s.processes or 1) > 1


# The share of AdamW's intended movement that bfloat16 weights make, in 20 steps of
# torch.optim.AdamW.
MOVED = {1e-6: 0.016, 5e-6: 0.10, 1e-5: 0.19, 1e-4: 0.98}


@rule(
    "GA206",
    "warning",
    RATED,
    of=EVERY,
    blames=("weights_dtype", "learning_rate"),
    why="{learning_rate=} is too small for weights of 8 significant bits: most of its updates "
    "round to nothing (at {rate:g} "
    "AdamW makes {moved:.1%} of the intended movement)",
    instead="Set {weights_dtype}=float32 under bfloat16 autocast, {shard}use LoRA, or take a rate "
    "of {advised:g} or more.",
)
def small_updates_are_not_rounded_away(s: Setting) -> Finding:
    """AdamW on weights in half precision loses small updates: an update below 1/256 of a weight
    rounds to nothing.

    Measured with torch on weights of deviation 0.02, 20 steps: 1.6 % of the movement of float32
    weights at a learning rate of 1e-6, 10 % at 5e-6, 19 % at 1e-5, 98 % at 1e-4. So a learning rate
    found with such weights acts as another one with float32 weights. DeepSpeed and FSDP step
    float32 copies, peft keeps adapters of unquantized weights in float32, and TRL's own default is
    float32 weights under autocast, so none of these is affected. Adapters of quantized weights
    (QLoRA) are bfloat16 (trl 1.16 grpo_trainer.py). The measurement does not apply to them, so they
    are not judged: half of them start at zero, near which bfloat16 holds small numbers. A recipe of
    several processes may be sharded by a file that is not read, so it is not judged. verl's FSDP
    steps shards of ``model_dtype``. Above the rate that is advised for float32 weights it is
    silent: two public sweeps with bfloat16 weights end at 0.47 with 5e-6, 0.58 to 0.67 with 1e-5,
    and are best at 3e-5 and 4e-5.
    """
    advised = rates_for(s).advised
    is_toy = s.parameters is not None and s.parameters < LARGE_MODEL
    if not rounds_updates(s) or is_toy or not 0 < s.learning_rate <= FULL.advised:
        return None
    rate = min(MOVED, key=lambda rate_of_table: abs(log(rate_of_table / s.learning_rate)))
    shard = "shard (ZeRO and FSDP step float32 copies), " if s.sharding == "none" else ""
    return {"rate": rate, "moved": MOVED[rate], "advised": advised, "shard": shard}


# Models that think before they answer. Qwen3's do so unless its chat template is told not to.
THINKER = r"R1-Distill|QwQ-32B|-Thinking\b|DeepScaleR|DeepSeek-R1|Phi-4-(mini-)?reasoning|Magistral"
HYBRID = r"Qwen3(\.5)?-[\d.]+B(-A[\d.]+B)?(-unsloth)?(-bnb-4bit|-FP8|-AWQ)?"
# tokens
SHORT, SHORT_OF_HYBRIDS, USUAL = 2048, 1024, 8192
# With one of these the recipe decides how much the model thinks.
THINKING_KEYS = ("enable_thinking", "no_think", "thinking_budget", "reasoning_effort")


@recipe_rule("GA208", "warning", of=EVERY)
def thoughts_fit_in_a_completion(recipe: Recipe) -> Iterator[Violation]:
    """A model that thinks before it answers, with completions of fewer than 2,048 tokens (Qwen3,
    which also thinks less: 1,024).

    Its thoughts are cut before the answer, so all rewards of a group are 0: trl#5697 and #5759
    (``clipped_ratio`` 1). The makers of Qwen3 and DeepSeek-R1 advise 32,768 tokens, DeepScaleR
    starts R1-Distill-Qwen-1.5B at 8,192. verl's examples train Qwen3 on GSM8K with 1,024. Not
    judged if the recipe says how much the model thinks, and for Qwen3 in Python, where the file
    makes the prompts.
    """
    reading = read_recipe(recipe)
    s = reading.setting
    name = _model_name(s)
    is_hybrid = bool(re.fullmatch(HYBRID, name)) and not recipe.in_python
    short = SHORT if re.search(THINKER, name) else 0
    if is_hybrid:
        short = SHORT_OF_HYBRIDS
    if (
        s.max_completion_length >= short
        or {"max_completion_length", "model_name_or_path"} & reading.unknown
    ):
        return
    if _says_how_to_think(recipe):
        return
    key = s.key("max_completion_length")
    off = ""
    if is_hybrid:
        off = ", or switch thinking off in the chat template (enable_thinking: false)"
    reason = (
        f"{name} thinks before it answers, mostly for longer than this, and a completion that "
        "is cut has no answer"
    )
    yield Violation(
        f"{key}={s.max_completion_length}",
        reason,
        f"Set {key}={USUAL}, as DeepScaleR does{off}.",
        (key, s.key("model_name_or_path")),
        ({key: USUAL},),
    )


def _model_name(s: Setting) -> str:
    """Return the name of a model without its owner or folder."""
    path = s.model_name_or_path or ""
    return path.rstrip("/").rsplit("/", 1)[-1]


def _says_how_to_think(recipe: Recipe) -> bool:
    return any(word in f"{recipe.config}" for word in THINKING_KEYS)


# Models whose chat template ends a prompt with <think>, so that no completion begins with it.
OPENED = r"R1-Distill|DeepSeek-R1$|QwQ-32B(?!-Preview)|Qwen3-.*-Thinking|Qwen3\.[568]-|Nemotron-3-"
# rewards that want <think> in the completion, by their names in Open-R1, ms-swift and trl.rewards
OF_THOUGHTS = frozenset(["format", "think_format_reward"])


@recipe_rule("GA211", "warning", of=TRL_LIKE)
def thoughts_are_opened_by_the_model(recipe: Recipe) -> Iterator[Violation]:
    """A reward for ``<think>...</think>`` with a model whose chat template writes ``<think>`` into
    the prompt: it is 0 for every completion.

    trl 1.16 rewards/format_rewards.py and Open-R1's ``format`` match from the beginning of the
    completion (open-r1#255, #560, trl#6966); ms-swift's does too (ms-swift#9764). Not judged if the
    recipe says how the model thinks, or has a chat template of its own.
    """
    rewards = OF_THOUGHTS.intersection(_reward_names(recipe))
    has_template = "chat_template" in f"{recipe.config}" or _says_how_to_think(recipe)
    if not rewards or has_template:
        return
    name = _model_name(read_recipe(recipe).setting)
    if re.search(OPENED, name):
        yield Violation(
            f"reward_funcs has {min(rewards)}",
            f"the chat template of {name} writes <think> into the prompt, so no "
            "completion begins with it and the reward is always 0",
            "Leave it out, or take a chat template that ends before <think>.",
            ("reward_funcs",),
        )


def _reward_names(recipe: Recipe) -> list[str]:
    """Return the names of the rewards that a recipe states."""
    rewards = recipe.config.get("reward_funcs")
    if "reward_funcs" in recipe.unresolved or not isinstance(rewards, str | list):
        return []
    return [rewards] if isinstance(rewards, str) else [*map(str, rewards)]


# Rewards of 0 or 1 by their names in Open-R1, ms-swift and trl.rewards.
BINARY = frozenset(["accuracy", "format", "accuracy_reward", "think_format_reward"])
SMALLEST_GROUP = 2
SMALL_GROUP = 3


@recipe_rule("GA209", "warning", of=TRL_LIKE)
def groups_tell_right_from_wrong(recipe: Recipe) -> Iterator[Violation]:
    """Groups of two or three completions with rewards of 0 or 1: most groups are all right or all
    wrong and teach nothing.

    A group of G has no signal with probability p^G + (1 - p)^G, p being the share of right answers:
    for G = 2 half of all groups at best (p = 0.5), 70 % at p = 0.18 (77 % measured in
    jsboige/CoursIA#10603), for G = 8 20 %. "It Takes Two" (arXiv
    2510.00977) defends groups of two if there are more prompts per step. Judged if the names of all
    rewards show that they
    are 0 or 1.
    """
    names = _reward_names(recipe)
    key, count = _stated_count(recipe, "num_generations")
    if names and BINARY.issuperset(names) and SMALLEST_GROUP <= count <= SMALL_GROUP:
        least = 100 * 2 * 0.5**count
        reason = (
            f"with rewards of 0 or 1 at least {least:.0f} % of such groups are all right or "
            "all wrong, and teach nothing"
        )
        yield of_key(key, count, reason, f"Set {key}=8, or take more prompts per step.")


def _stated_count(recipe: Recipe, field: str) -> tuple[str, int]:
    """Return the key of a count and its value; 0 if the recipe does not state it."""
    key = FRAMEWORKS[recipe.framework].keys_at(recipe.version).get(field, "")
    values = values_of(recipe)
    if key in values.given and key not in values.bad:
        return key, values.whole(key)
    return key, 0


MANY_PASSES = 8


@recipe_rule("GA210", "warning", of=EVERY)
def a_rollout_is_used_a_few_times(recipe: Recipe) -> Iterator[Violation]:
    """Eight passes or more over each rollout: the samples of the last passes are far from the
    policy that made them.

    A public sweep (Qwen2.5-Math-1.5B on MATH, 32 prompts x 8) ends at an accuracy of 0.82 with 2
    passes and at 0 with 8 and with 16 (ShibukiZero/assignment5-alignment). Published runs take 1 to
    4. Not judged for a trainer of the repository, which may train on other parts of the samples in
    each pass (d1 draws another mask).
    """
    key, count = _stated_count(recipe, "num_iterations")
    if count >= MANY_PASSES and not recipe.code.own_trainer:
        reason = f"runs with {count} passes over each rollout are reported to collapse"
        yield of_key(key, count, reason, "Set 1 or 2.", {key: 1}, {key: 2})


ATTENTION = frozenset(
    [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "out_proj",
        "qkv_proj",
        "query_key_value",
        "c_attn",
        "Wqkv",
        "q_a_proj",
        "q_b_proj",
        "kv_a_proj_with_mqa",
        "kv_b_proj",
    ]
)


@rule(
    "GA207",
    "warning",
    ("lora", "lora_targets", "launcher"),
    of=EVERY,
    blames=("lora_targets",),
    what="{set}",
    why="the adapters are in attention alone, which learns less than with the MLP at any rank",
    instead="Set {lora_targets}=all-linear, as published LoRA runs do.",
)
def adapters_are_in_the_mlp_too(s: Setting) -> Finding:
    """LoRA on attention alone, without the MLP's modules.

    "LoRA Without Regret" (Thinking Machines, 2025): attention-only LoRA does worse even if a higher
    rank makes up for its parameters; TRL's guide of the same name and the published LoRA runs of
    verl and Tinker adapt all linear layers. If ``trl grpo`` names no modules, PEFT adapts q_proj
    and v_proj of most models (peft 0.21 utils/constants.py).
    """
    if (
        not s.lora
        or not ATTENTION.issuperset(s.lora_targets)
        or not (s.lora_targets or s.launcher == "trl")
    ):
        return None
    listed = ", ".join(s.lora_targets) or "null, for which PEFT takes q_proj and v_proj"
    return {"set": f"{s.key('lora_targets')}={listed}"}


def _model(s: Setting) -> str:
    """Return the model in words."""
    assert s.parameters is not None
    model = f"a {s.parameters / 1e9:.2g} B model"
    return f"LoRA on {model}" if s.lora else model


@recipe_rule("GA212", "note", of=EVERY)
def launches_are_one_sweep(recipe: Recipe) -> Iterator[Violation]:
    """Three launches or more of a script that differ in up to three keys with literal values.

    As one sweep they are compared by one measure, continue after an interruption, and the best is
    repeated with other seeds: `grposweep run` takes one of the launches as its command.
    """
    if recipe.swept:
        yield Violation(
            f"{' and '.join(recipe.swept)}: no other parameter differs in the script's launches",
            "as one sweep they are compared, continued and repeated",
            "Keep one launch and run: python src/run.py -m KEY=VALUE,VALUE -- COMMAND.",
            recipe.swept,
        )
