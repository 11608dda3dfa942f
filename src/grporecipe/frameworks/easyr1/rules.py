"""GB, GS, GT, GL, GV and GK for EasyR1: its checks, the sizes that it rounds down, discarded
completions, and its keys.

Symbols as in ``rules.rollout_batch``. Sources: EasyR1 0.3.3 verl/trainer/ray_trainer.py,
verl/workers/fsdp_workers.py (_init_dist_mesh), verl/protocol.py (chunk, split),
verl/workers/rollout/vllm_rollout_spmd.py; for keys verl/trainer/main.py and config.py (OmegaConf
over dataclasses), by release in keys.json.
"""

from collections.abc import Iterator

from grporecipe.fields.dotted import nearest
from grporecipe.fields.reading import values_of
from grporecipe.frameworks.easyr1 import recipes as easyr1
from grporecipe.model.framework import known_keys
from grporecipe.model.planning import shared
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import is_taken, text
from grporecipe.model.setting import Setting
from grporecipe.rules.helpers import named, of_key, other_sizes, show
from grporecipe.rules.keys import find_dead_keys, find_unknown_words, unknown
from grporecipe.rules.kl import find_idle_reference, has_no_horizon
from grporecipe.rules.registry import Finding, Violation, recipe_rule, rule, variant
from grporecipe.rules.rollout_batch import (
    SIZED,
    SPLIT,
    find_lone_completion,
    is_shared,
    is_sized,
    is_unfilled,
    is_whole_steps,
    on_ranks,
    per_rank,
    ranks,
    rollout_completions,
    step_completions,
)

EASYR1 = frozenset({"easyr1"})


variant("GB302", EASYR1, lambda s: find_lone_completion(s, "EasyR1 refuses it"))
# the prompts of the first generation call
variant(
    "GS301",
    EASYR1,
    lambda s: is_unfilled(s, s.prompts_per_generation or s.prompts_per_rollout),
)
# It builds the controller in any case.
variant("GK304", EASYR1, lambda s: bool(s.loads_reference) and has_no_horizon(s))
variant("GK306", EASYR1, lambda s: find_idle_reference(s, "algorithm.disable_kl=true"))


@rule(
    "GB303",
    "error",
    SIZED,
    of=EASYR1,
    blames=("prompts_per_rollout", "prompts_per_step"),
    why="it is not a multiple of {prompts_per_step=} (both count prompts)",
    instead="Choose a multiple of {s.prompts_per_step}.",
    to=other_sizes("prompts_per_step", "prompts_per_rollout", accepts=is_whole_steps),
)
def a_rollout_is_whole_steps(s: Setting) -> bool:
    """A rollout must be whole steps: P is a multiple of p, and both count prompts.

    EasyR1: "Rollout batch size must be divisible by actor global batch size."
    """
    return is_sized(s) and not is_whole_steps(s)


def _experience_fits(s: Setting) -> bool:
    return rollout_completions(s) % (s.experience_batch_size or 1) == 0


@rule(
    "GB304",
    "error",
    (*SIZED, "experience_batch_size"),
    of=EASYR1,
    blames=("experience_batch_size", "num_generations", "prompts_per_rollout"),
    why=(
        "it does not divide the {completions} completions of a rollout ({s.prompts_per_rollout} "
        "prompts x {s.num_generations})"
    ),
    instead="Choose a divisor, such as {s.num_generations}.",
    to=other_sizes("experience_batch_size", "prompts_per_rollout", accepts=_experience_fits),
)
def experience_is_whole_micro_batches(s: Setting) -> Finding:
    """The completions of a rollout, P G, must be a multiple of the micro-batch for
    log-probabilities.

    EasyR1, counting the rollout of all processes, and with dynamic batching too: "Rollout batch
    size * rollout.n must be divisible by actor micro batch size for experience."
    """
    size = s.experience_batch_size
    if not is_sized(s) or size is None or size < 1 or _experience_fits(s):
        return None
    return {"completions": rollout_completions(s)}


@rule(
    "GB305",
    "error",
    (*SIZED, *SPLIT),
    "by trial",
    of=EASYR1,
    blames=("prompts_per_step", "num_generations", "processes"),
    why="{s.prompts_per_step} x {s.num_generations} completions per step are fewer than {on_ranks}",
    instead="Choose at least {least} prompts.",
    to=other_sizes("prompts_per_step", "num_generations", accepts=lambda s: per_rank(s) >= 1),
)
def every_rank_has_a_completion(s: Setting) -> Finding:
    """A step must hold a completion for every data rank: g = floor(p G / R) is at least 1.

    EasyR1, in each worker: "actor global batch size * ulysses size must be larger than num gpus."
    (the batch is p G).
    """
    count = ranks(s)
    if not is_sized(s) or count is None or per_rank(s) >= 1:
        return None
    return {"on_ranks": on_ranks(s), "least": -(-count // s.num_generations)}


def _micro_fits(s: Setting) -> bool:
    return per_rank(s) >= 1 and per_rank(s) % s.per_device_train_batch_size == 0


@rule(
    "GB306",
    "error",
    (*SIZED, *SPLIT),
    "by trial",
    of=EASYR1,
    blames=("per_device_train_batch_size", "prompts_per_step", "num_generations", "processes"),
    why="it does not divide the {per_rank} completions of a step on each rank "
    "({s.prompts_per_step} prompts x {s.num_generations} / {on_ranks})",
    instead="Choose a divisor of {per_rank}.",
    to=other_sizes("per_device_train_batch_size", "prompts_per_step", accepts=_micro_fits),
)
def a_rank_has_whole_micro_batches(s: Setting) -> Finding:
    """A step on one data rank, g = floor(p G / R) completions, must be a multiple of m.

    EasyR1, in each worker, with dynamic batching too: "actor global batch size per device must be
    divisible by the micro batch size." With sequences shared by two processes there are half as
    many data ranks, so g is twice as large.
    """
    if not is_shared(s) or per_rank(s) < 1 or _micro_fits(s):
        return None
    return {"per_rank": per_rank(s), "on_ranks": on_ranks(s)}


@rule(
    "GB307",
    "error",
    (*SIZED, *SPLIT, "offloads_parameters"),
    "by trial",
    of=EASYR1,
    blames=("offloads_parameters", "per_device_train_batch_size", "prompts_per_step"),
    why="a step takes {per_rank} completions on each rank in micro-batches of "
    "{s.per_device_train_batch_size}, and FSDP "
    "cannot accumulate gradients with the weights offloaded",
    instead=(
        "Set {offloads_parameters}=false (worker.actor.offload.offload_params=true saves "
        "memory too)."
    ),
    to=lambda s: ({"offloads_parameters": False}, {"per_device_train_batch_size": per_rank(s)}),
    harmless=("offloads_parameters",),
)
def offloading_does_not_accumulate(s: Setting) -> Finding:
    """FSDP's own CPU offload does not support gradient accumulation: a step must be one
    micro-batch, g = m.

    EasyR1: "actor cannot use FSDP's CPU offload when gradient accumulation is enabled." Its
    ``offload.offload_params`` is another switch, which supports it.
    """
    if not s.offloads_parameters or not is_shared(s):
        return None
    if per_rank(s) in (0, s.per_device_train_batch_size):
        return None
    return {"per_rank": per_rank(s)}


def _chunks(s: Setting) -> bool:
    prompts = s.prompts_per_generation or s.prompts_per_rollout or 0
    count = s.processes or 1
    return prompts % count == 0 and rollout_completions(s) % count == 0


@rule("GB308", "error", (*SIZED, "prompts_per_generation", "processes"), "by trial", of=EASYR1)
def every_process_generates_alike(s: Setting) -> Violation | None:
    """The prompts of a generation call (``mini_rollout_batch_size``, or all of P) are cut into W
    equal parts.

    EasyR1 at the first rollout: "only support equal chunk. Got size of DataProto {n} and chunk
    {W}."
    """
    processes = s.processes or 0
    if not is_sized(s) or processes < 1 or _chunks(s):
        return None
    name = "prompts_per_rollout"
    if (s.prompts_per_generation or 0) % processes:
        name = "prompts_per_generation"
    return Violation(
        named(s, (name,)),
        f"the {s.processes} processes generate equal parts of it, and it is not a multiple of "
        f"{s.processes}",
        f"Choose a multiple of {s.processes}.",
        (name, "processes"),
        other_sizes(name, accepts=_chunks)(s),
    )


def _held(s: Setting) -> int:
    """A rollout's completions on one data rank."""
    return rollout_completions(s) // (s.processes or 1) * shared(s)


def _is_split(s: Setting) -> bool:
    """Whether sizes, processes and ranks allow EasyR1 to reach the split of a rollout into
    steps.
    """
    return is_shared(s) and per_rank(s) >= 1 and is_whole_steps(s)


def _splits(s: Setting) -> bool:
    return per_rank(s) >= 1 and _held(s) % per_rank(s) == 0


@rule(
    "GB309",
    "error",
    (*SIZED, *SPLIT),
    "by trial",
    of=EASYR1,
    blames=("prompts_per_step", "num_generations", "processes"),
    why="{s.prompts_per_step} x {s.num_generations} completions over {on_ranks} are rounded "
    "down to {per_rank} per rank, "
    "which do not divide its {held} completions of a rollout",
    instead="Choose {prompts_per_step} x {num_generations} as a multiple of {ranks}.",
    to=other_sizes(
        "prompts_per_step", "num_generations", accepts=lambda s: is_whole_steps(s) and _splits(s)
    ),
)
def a_rank_has_whole_steps(s: Setting) -> Finding:
    """The completions of a rollout on one data rank, P G / R, must be whole steps of g = floor(p G
    / R).

    If p G is not a multiple of R, g is rounded down, and the rollout may no longer be whole steps.
    EasyR1 at the first update: "only support equal split. Got size of DataProto {n} and split {g}."
    """
    if not _is_split(s) or _splits(s):
        return None
    return {"on_ranks": on_ranks(s), "per_rank": per_rank(s), "held": _held(s), "ranks": ranks(s)}


@rule(
    "GB310",
    "warning",
    (*SIZED, *SPLIT),
    of=EASYR1,
    blames=("prompts_per_step", "num_generations", "processes"),
    why=(
        "{wanted} completions per step over {on_ranks} are rounded down: steps of {taken}, and "
        "{steps} of them per rollout"
    ),
    instead="Choose {prompts_per_step} x {num_generations} as a multiple of {ranks}.",
)
def a_step_is_not_rounded_down(s: Setting) -> Finding:
    """The completions of a step, p G, should be a multiple of R: EasyR1 silently rounds g = p G / R
    down.

    It then takes more and smaller steps. Verified with EasyR1's own code: two processes, one prompt
    per step, five completions per prompt and four prompts per rollout give five steps of 4
    completions instead of four steps of 5.
    """
    count = ranks(s)
    if not _is_split(s) or not _splits(s) or count is None or step_completions(s) % count == 0:
        return None
    return {
        "wanted": step_completions(s),
        "on_ranks": on_ranks(s),
        "taken": per_rank(s) * count,
        "steps": _held(s) // per_rank(s),
        "ranks": count,
    }


@rule(
    "GB311",
    "warning",
    (*SIZED, "prompts_per_generation", "filters_groups"),
    of=EASYR1,
    blames=("prompts_per_generation", "prompts_per_rollout"),
    why=(
        "it does not divide {prompts_per_rollout=}: {surplus} completions per rollout are "
        "generated and discarded"
    ),
    instead="Choose a divisor of {s.prompts_per_rollout}.",
)
def nothing_is_generated_for_the_bin(s: Setting) -> Finding:
    """``mini_rollout_batch_size`` should divide P: completions beyond the rollout are discarded.

    EasyR1 generates portions until there are enough, and keeps ``batch[: P * n]``. With online
    filtering this is necessary.
    """
    size = s.prompts_per_generation
    prompts = s.prompts_per_rollout or 0
    if size is None or size < 1 or not is_sized(s) or s.filters_groups or prompts % size == 0:
        return None
    return {"surplus": -prompts % size * s.num_generations}


@rule(
    "GS304",
    "note",
    ("filters_groups", "max_steps"),
    of=EASYR1,
    blames=("filters_groups", "max_steps"),
    why=(
        "dropped groups are replaced by further prompts, so a counted epoch is more than one "
        "pass over the data"
    ),
    instead="Set {max_steps}, which counts rollouts.",
)
def epochs_are_epochs(s: Setting) -> bool:
    """Online filtering replaces dropped prompts by further ones, and restarts the data when they
    run out.

    EasyR1 counts its steps as if each took P prompts, so an epoch of steps is more than one pass
    over the data.
    """
    return s.filters_groups and s.max_steps is None


LENGTHS = ("max_batched_tokens", "max_prompt_length", "max_completion_length")


@rule(
    "GT303",
    "error",
    LENGTHS,
    of=EASYR1,
    blames=LENGTHS,
    why=(
        "a prompt and its response have up to {longest} tokens ({s.max_prompt_length} + "
        "{s.max_completion_length})"
    ),
    instead="Set {max_batched_tokens}={longest} or more.",
    to=lambda s: ({"max_batched_tokens": _longest(s)},),
)
def a_sequence_fits_the_engine(s: Setting) -> Finding:
    """The engine's token limit must hold a whole prompt with its response.

    EasyR1 when generation is set up: "max_num_batched_tokens should be greater than prompt_length +
    response_length."
    """
    is_short = s.max_batched_tokens is not None and s.max_batched_tokens < _longest(s)
    if is_short:
        return {"longest": _longest(s)}
    return None


def _longest(s: Setting) -> int:
    return (s.max_prompt_length or 0) + s.max_completion_length


@rule(
    "GL302",
    "warning",
    ("loss_average",),
    of=EASYR1,
    blames=("loss_average",),
    why=(
        "EasyR1 weighs each micro-batch by its number of tokens, so this is not the mean over "
        "sequences"
    ),
    instead="Set {loss_average}=token, whose weights are exact.",
)
def the_mean_over_sequences_is_one(s: Setting) -> bool:
    """``loss_avg_mode=seq`` is not a plain mean: EasyR1 multiplies each micro-batch by its share of
    the tokens.

    So it is not the mean over sequences of the GRPO paper, and long micro-batches count more.
    """
    return s.loss_average == "seq"


# The successors of EasyR1's removed keys.
SUCCESSORS = {
    **easyr1.RENAMED,
    "worker.actor.kl_loss_coef": "algorithm.kl_coef",
    "worker.actor.kl_loss_type": "algorithm.kl_penalty",
    "worker.actor.clip_ratio": "worker.actor.clip_ratio_high",
    "worker.reward.score_function": "worker.reward.reward_function",
    "worker.reward.compute_score": "worker.reward.reward_function",
}
KL_WORDS = ("kl_coef", "kl_penalty", "kl_type", "kl_horizon", "kl_target")


@recipe_rule("GV301", "error", of=EASYR1, by_release=True)
def keys_of_easyr1_exist(recipe: Recipe) -> Iterator[Violation]:
    """A key that EasyR1 does not take: a typo, another framework's key, or one of another release.

    EasyR1 stops at start: "ConfigKeyError: Key 'kl_loss_coef' not in 'ActorConfig'".
    ``worker.actor.kl_loss_coef`` is a key of release 0.2, where it is the coefficient of the KL
    loss; since 0.3.0 only ``algorithm.kl_coef`` exists.
    """
    keys = known_keys(recipe)
    for key in recipe.config:
        if is_taken(key, keys):
            continue
        new = SUCCESSORS.get(key)
        near_keys = [new] if new is not None and new in keys else nearest(key, keys)
        reason = f"{_when(key, recipe)}{_instead(recipe, new)}; EasyR1 refuses it"
        yield unknown(recipe, key, near_keys, reason, safe=key in easyr1.RENAMED)


def _when(key: str, recipe: Recipe) -> str:
    """Say when a key was added or removed, and name the release that the recipe is judged by."""
    now = text(recipe.version)
    releases = easyr1.span(key)
    if releases is None:
        return "no EasyR1 release has such a key"
    first, last = releases
    if recipe.version < first:
        return f"it came with EasyR1 {text(first)}, and this is {now}"
    return f"EasyR1 {text(last)} removed it" if last else f"EasyR1 {now} does not take it"


def _instead(recipe: Recipe, new: str | None) -> str:
    """Name the key that replaced an unknown one, with its value."""
    if new is None:
        return ""
    if new in recipe.config:
        new = f"{new}={show(recipe.config[new])}"
    return f", and {new} took its place"


@recipe_rule("GV302", "warning", of=EASYR1)
def easyr1_keeps_what_is_set(recipe: Recipe) -> Iterator[Violation]:
    """A key that EasyR1 accepts and then overwrites, so it has no effect.

    ``worker.actor.kl_coef=0.1`` becomes the value of ``algorithm.kl_coef``, and
    ``global_batch_size_per_device`` is computed.
    """
    keys = known_keys(recipe)
    for key, value in recipe.config.items():
        if key not in keys or not keys[key].type.startswith("auto"):
            continue
        other = easyr1.OVERWRITTEN.get(key, "")
        reason = "EasyR1 computes it and ignores what is set"
        advice = "Remove it."
        if other:
            default = keys[other].default if other in keys else None
            now = recipe.config.get(other, default)
            reason = f"EasyR1 overwrites it with {other}={show(now)}"
            advice = f"Set {other} instead."
        change = {key: None}
        yield of_key(key, value, reason, advice, change, without_effect=frozenset(change))


@recipe_rule("GV304", "warning", of=EASYR1)
def a_configuration_of_easyr1_is_named(recipe: Recipe) -> Iterator[Violation]:
    """A command line without ``config=``: EasyR1 uses the defaults of its classes for every key
    that is not set.

    They are not those of examples/config.yaml: one completion per prompt (which GRPO refuses), KL
    in the reward, another estimator, larger micro-batches.
    """
    if not recipe.base and recipe.launch.program:
        yield Violation(
            "config= is not given",
            "EasyR1 then uses the defaults of its classes, not those of examples/config.yaml",
            "Start the overrides with config=examples/config.yaml.",
        )


def _unknown_words(recipe: Recipe) -> Iterator[Violation]:
    """Find choices that EasyR1 does not know. The source in a repository may have others: there
    only misspellings count.
    """
    words = dict(easyr1.CHOICES)
    if recipe.vendored is not None:
        del words["algorithm.adv_estimator"], words["worker.actor.loss_type"]
    for problem in find_unknown_words(recipe, words):
        if recipe.vendored is None or problem.certain:
            yield problem


def _dead_keys(recipe: Recipe) -> Iterator[Violation]:
    """KL keys without effect, with the place where KL is computed instead."""
    values = values_of(recipe)
    of_algorithm = tuple(f"algorithm.{word}" for word in KL_WORDS)
    if recipe.version >= easyr1.ALGORITHM_KL:
        if values.flag("algorithm.disable_kl"):
            dead = ("algorithm.use_kl_loss", *of_algorithm)
            yield from find_dead_keys(recipe, dead, "algorithm.disable_kl=true switches all KL off")
    elif values.flag("worker.actor.use_kl_loss", True):
        coefficient = f"worker.actor.kl_loss_coef={values.number('worker.actor.kl_loss_coef'):g}"
        yield from find_dead_keys(recipe, of_algorithm, f"KL is in the loss, with {coefficient}")
    else:
        dead = ("worker.actor.kl_loss_coef", "worker.actor.kl_loss_type")
        yield from find_dead_keys(
            recipe, dead, "worker.actor.use_kl_loss=false puts KL into the reward"
        )


variant("GV305", EASYR1, _unknown_words)
variant("GK310", EASYR1, _dead_keys)
