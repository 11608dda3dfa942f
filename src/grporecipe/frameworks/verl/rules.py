"""GB, GS, GT, GK, GL and GV, verl: its validation, assertions that come after minutes of start-up,
batches that it pads.

Symbols as in ``rules.rollout_batch``. Sources: verl 0.9.1 utils/config.py
(check_mutually_exclusive), workers/config/actor.py (__post_init__), workers/engine_workers.py:267
and 616-637, workers/engine/utils.py:125, trainer/ppo/v1/trainer_base.py (_balance_batch,
_next_train_batch), trainer/ppo/v1/trainer_separate_async.py:59, trainer/ppo/utils.py; verl 0.2 to
0.7 trainer/ppo/ray_trainer.py (_validate_config), workers/fsdp_workers.py, which rounds a step of a
rank down and divides sizes for all GPUs, workers/actor/dp_actor.py, which splits it into
micro-batches of any rest.
"""

from collections.abc import Iterator
from math import ceil

from grporecipe.fields.reading import values_of
from grporecipe.frameworks.verl import keys as verl
from grporecipe.frameworks.verl.recipes import CHECKED_AT_START, kl_places, refills
from grporecipe.model import planning
from grporecipe.model.framework import Values
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting
from grporecipe.rules.batch import judgeable
from grporecipe.rules.helpers import each, named, near, of_key, other_sizes, unset
from grporecipe.rules.kl import find_idle_reference
from grporecipe.rules.registry import Change, Finding, Violation, recipe_rule, rule, variant
from grporecipe.rules.rollout_batch import (
    SIZED,
    SPLIT,
    find_lone_completion,
    is_shared,
    is_sized,
    is_whole_steps,
    on_ranks,
    per_rank,
    ranks,
    rollout_completions,
    step_completions,
)

VERL = frozenset({"verl"})
CHECKED = (*SIZED, *SPLIT, "dynamic_batching")
LOGGED = ("experience_batch_size", "reference_batch_size")
# The releases since which verl checks that a rollout holds a step, exempts dynamic micro-batches
# from that check, splits batches by one engine without a rest, and pads them.
HOLDS_STEP, EXEMPTS, ONE_ENGINE, PADS = (0, 3, 0), (0, 6, 0), (0, 8, 0), (0, 9, 0)


def _idle_reference(s: Setting) -> Violation | None:
    # before, KL that is not in the loss is in the reward, so the advice would only move it
    if s.version < (0, 4):
        return None
    return find_idle_reference(s, f"{s.key('kl_placement')}=false")


variant("GK306", VERL, _idle_reference)
variant(
    "GB302",
    VERL,
    lambda s: find_lone_completion(s, "verl silently uses the reward itself as the advantage"),
)


def _unit(s: Setting) -> int:
    """Return the unit of a rollout's completions: the number of processes, or Megatron's data ranks
    times m.
    """
    if s.engine == "megatron":
        return (ranks(s) or 1) * s.per_device_train_batch_size
    return s.processes or 1


def _shared_alike(s: Setting) -> bool:
    return rollout_completions(s) % _unit(s) == 0


@rule(
    "GB401",
    "error",
    (*CHECKED, "engine", "version"),
    "by trial",
    of=VERL,
    blames=("prompts_per_rollout", "num_generations", "processes"),
    why="its {completions} completions are not a multiple of {unit} {made_of}",
    instead="Choose {prompts_per_rollout} x {num_generations} as a multiple of {unit}.",
    to=other_sizes("prompts_per_rollout", "num_generations", accepts=_shared_alike),
)
def a_rollout_is_shared_alike(s: Setting) -> Finding:
    """The completions of a rollout, P G, must be a multiple of all processes (FSDP), or of R m
    (Megatron).

    With sequence parallelism FSDP counts all processes too. verl at start, since 0.6 unless
    micro-batches are dynamic: "real_train_batch_size (1030) must be divisible by minimal possible
    batch size (8)".
    """
    is_exempt = s.dynamic_batching and s.version >= EXEMPTS
    if is_exempt or not is_shared(s) or _shared_alike(s):
        return None
    made_of = "processes"
    if s.engine == "megatron":
        made_of = f"({ranks(s)} data ranks x {s.per_device_train_batch_size})"
    return {"completions": rollout_completions(s), "unit": _unit(s), "made_of": made_of}


def _smaller_steps(s: Setting) -> tuple[Change, ...]:
    steps = range(s.prompts_per_rollout or 1, 0, -1)[:64]
    return (*each("prompts_per_step", steps), {"prompts_per_rollout": s.prompts_per_step})


@rule(
    "GB402",
    "error",
    (*SIZED, "dynamic_batching", "version"),
    of=VERL,
    blames=("prompts_per_step", "prompts_per_rollout"),
    why="a rollout has only {prompts_per_rollout=} prompts",
    instead="Set {prompts_per_step}={s.prompts_per_rollout}.",
    to=_smaller_steps,
)
def a_rollout_holds_a_step(s: Setting) -> bool:
    """A rollout must hold a step: P is at least p, and both count prompts.

    verl at start, since 0.3, unless micro-batches are dynamic (see GB406): "train_batch_size (64)
    must be >= actor.ppo_mini_batch_size (256)". The default of ``ppo_mini_batch_size`` is 256.
    """
    is_checked = s.version >= HOLDS_STEP and not s.dynamic_batching and is_sized(s)
    return is_checked and (s.prompts_per_rollout or 0) < (s.prompts_per_step or 0)


def _step_splits(s: Setting) -> bool:
    return step_completions(s) % (ranks(s) or 1) == 0


@rule(
    "GB403",
    "error",
    (*SIZED, *SPLIT, "version"),
    "by trial",
    of=VERL,
    blames=("prompts_per_step", "num_generations", "processes"),
    why="its {completions} completions cannot be split over {ranks} data ranks ({on_ranks})",
    instead="Choose {prompts_per_step} x {num_generations} as a multiple of {ranks}.",
    to=other_sizes("prompts_per_step", "num_generations", accepts=_step_splits),
)
def a_step_is_shared_alike(s: Setting) -> Finding:
    """The completions of a step, p G, must be a multiple of the data ranks R.

    verl at the first update, minutes after the start, with dynamic micro-batches too: "Got
    mini_batch_size={p G} and self.engine.get_data_parallel_size()={R}". Before 0.8 a rank's step is
    silently rounded down.
    """
    if s.version < ONE_ENGINE or not is_shared(s) or _step_splits(s):
        return None
    return {"completions": step_completions(s), "ranks": ranks(s), "on_ranks": on_ranks(s)}


def _micro_fits(s: Setting) -> bool:
    return _step_is_split(s) and per_rank(s) % s.per_device_train_batch_size == 0


def _step_is_split(s: Setting) -> bool:
    return s.version < ONE_ENGINE or _step_splits(s)


@rule(
    "GB404",
    "error",
    (*CHECKED, "version"),
    "by trial",
    of=VERL,
    blames=("per_device_train_batch_size", "prompts_per_step", "num_generations", "processes"),
    why="it does not divide the {per_rank} completions of a step on each data rank "
    "({s.prompts_per_step} prompts x {s.num_generations} / {ranks})",
    instead="Choose a divisor of {per_rank}.",
    to=other_sizes("per_device_train_batch_size", "prompts_per_step", accepts=_micro_fits),
)
def a_step_of_a_rank_is_whole_micro_batches(s: Setting) -> Finding:
    """A step on one data rank, p G / R completions, must be a multiple of
    ``ppo_micro_batch_size_per_gpu``.

    verl at the first update: "data size must be divisible by force_group_size *
    micro_batch_size_per_gpu". Before 0.8 when the workers are set up: "normalized
    ppo_mini_batch_size 6 should be divisible by ppo_micro_batch_size_per_gpu 4".
    """
    if s.dynamic_batching or not is_shared(s) or not _step_is_split(s) or _micro_fits(s):
        return None
    return {"per_rank": per_rank(s), "ranks": ranks(s)}


@rule("GB405", "error", (*CHECKED, *LOGGED, "loads_reference", "version"), "by trial", of=VERL)
def log_probabilities_are_whole_micro_batches(s: Setting) -> Violation | None:
    """A rollout's completions on one data rank must be a multiple of the micro-batches for
    log-probabilities.

    verl after the first rollout, for the policy and for the reference, if there is one: "data size
    must be divisible by force_group_size * micro_batch_size_per_gpu". Before 0.8 the last
    micro-batch may be smaller.
    """
    if s.version < ONE_ENGINE or s.dynamic_batching or not is_shared(s) or not _step_splits(s):
        return None
    prompts = s.prompts_per_rollout or 0
    step = s.prompts_per_step or 1
    # after verl has filled the last step
    count = ceil(prompts / step) * per_rank(s)
    logged = LOGGED if s.loads_reference else LOGGED[:1]
    sizes = {name: getattr(s, name) or 0 for name in logged}
    broken = tuple(name for name, size in sizes.items() if size > 0 and count % size)
    if not broken:
        return None
    filled = f", filled to {prompts + -prompts % step}," if prompts % step else ""
    fitting = near(sizes[broken[0]], lambda size: count % size == 0)
    they_do = "they do"
    divisors = "divisors"
    if len(broken) == 1:
        they_do = "it does"
        divisors = "a divisor"
    return Violation(
        named(s, broken),
        f"{they_do} not divide the {count} completions of a rollout on each data rank "
        f"({prompts} prompts{filled} x {s.num_generations} / {ranks(s)})",
        f"Choose {divisors} of {count}.",
        (*broken, "prompts_per_rollout", "num_generations", "processes"),
        tuple(dict.fromkeys(broken, size) for size in fitting),
    )


@rule(
    "GB406",
    "warning",
    (*SIZED, "dynamic_batching", "version"),
    of=VERL,
    blames=("prompts_per_rollout", "prompts_per_step"),
    why="it is not a multiple of {prompts_per_step=}: of the last step of a rollout {padding} "
    "of {s.prompts_per_step} prompts "
    "{are}",
    instead="Choose a multiple of {s.prompts_per_step}.",
)
def no_step_is_padded(s: Setting) -> Finding:
    """A rollout should be whole steps, P a multiple of p. verl pads the last step with samples that
    have no gradient.

    Losses that average over sequences still divide by the nominal number of them, so that step is
    weaker. With dynamic micro-batches even P < p passes verl's validation. Before 0.9 there is no
    padding: the last step is smaller, or Megatron's workers stop.
    """
    prompts = s.prompts_per_rollout or 0
    step = s.prompts_per_step or 1
    # the last: GB402
    if not is_sized(s) or is_whole_steps(s) or (prompts < step and not s.dynamic_batching):
        return None
    are = "are padding" if s.version >= PADS else "are missing"
    return {"padding": -prompts % step, "are": are}


@rule(
    "GS303",
    "warning",
    (*planning.TOTAL_STEPS_READS, "unsolved"),
    of=VERL,
    blames=("max_steps", "epochs"),
    what="{max_steps} means {s.max_steps} optimizer steps",
    why="{epochs=} holds only {total}, where verl stops: no last validation, no last "
    "checkpoint, and a schedule that is "
    "not finished",
    instead="Raise {epochs}.",
)
def the_steps_fit_into_the_epochs(s: Setting) -> Finding:
    """``total_training_steps`` beyond ``total_epochs``: verl stops with the epochs.

    The learning rate's schedule is then never finished, and the last validation and checkpoint
    never happen.
    """
    if (
        s.max_steps is None
        or s.epochs is None
        or not judgeable(s)
        or s.num_generations < 1
        or s.num_iterations < 1
    ):
        return None
    total = planning.total_steps(s)
    if total is not None and total < s.max_steps:
        return {"total": total}
    return None


@rule(
    "GK307",
    "warning",
    ("kl_placement", "beta", "kl_reward_coefficient"),
    of=VERL,
    blames=("beta", "kl_reward_coefficient", "kl_placement"),
    what="{beta=} and {kl_reward_coefficient=}",
    why="KL is in the loss and in the reward at once, so it counts twice",
    instead="Set algorithm.use_kl_in_reward=false.",
)
def kl_counts_once(s: Setting) -> bool:
    """KL in the loss and in the reward at once: it counts twice, with two coefficients and two
    estimators.

    verl prints "NOTICE: You have both enabled in-reward kl and kl loss." and continues.
    """
    return s.kl_placement == "both" and s.beta != 0 and s.kl_reward_coefficient != 0


@recipe_rule("GL303", "warning", of=VERL)
def grpo_is_the_estimator(recipe: Recipe) -> Iterator[Violation]:
    """The default ``adv_estimator`` of verl is ``gae``, which trains a critic. GRPO must be set
    explicitly.

    Reported if nothing says that PPO is meant: several completions per prompt, no estimator and no
    key of the critic.
    """
    values = values_of(recipe)
    key = "algorithm.adv_estimator"
    names = [name.lstrip("+~") for name in recipe.config]
    # A fork may have estimators by step and by token.
    says_ppo = any(name.startswith("critic.") or name.endswith("adv_estimator") for name in names)
    if not says_ppo and values.word(key) == "gae" and values.whole(f"{verl.ROLLOUT}.n", 1) > 1:
        yield unset(key, "verl's default is gae: this is PPO with a critic", "grpo")


FILTERS = "algorithm.filter_groups.enable"
PROMPTS, STEP, FETCH = (
    "data.train_batch_size",
    f"{verl.ACTOR}.ppo_mini_batch_size",
    "data.gen_batch_size",
)
MICRO = f"{verl.ACTOR}.ppo_micro_batch_size"
DYNAMIC = f"{verl.ACTOR}.use_dynamic_bsz"
ULYSSES = f"{verl.ACTOR}.ulysses_sequence_parallel_size"
PACKED = f"{verl.MODEL}.use_remove_padding"
SIZES_LOGGED = (
    f"{verl.ROLLOUT}.log_prob_micro_batch_size",
    f"{verl.REF}.log_prob_micro_batch_size",
)


@recipe_rule("GB407", "error", of=VERL)
def a_rollout_is_whole_fetches(recipe: Recipe) -> Iterator[Violation]:
    """A rollout must be whole fetches: P is a multiple of ``gen_batch_size``, the prompts of one.

    verl at the first step: "num_prompts (64) must be a positive multiple of gen_batch_size (48); it
    is submitted in whole gen_batch_size dataloader fetches." If groups are filtered or the trainer
    is asynchronous, it is 1 in any case. Only these set more than P, so a configuration that does
    not state whether it filters is not reported.
    """
    values = values_of(recipe)
    size = values.get(FETCH, "int")
    prompts = values.whole(PROMPTS, 1024)
    if (
        size is None
        or size < 1
        or prompts < 1
        or prompts % size == 0
        or refills(values)
        or not verl.is_v1(recipe)
    ):
        return
    if size > prompts and not recipe.file and FILTERS not in recipe.config:
        return
    fitting = [n for n in range(min(size, prompts), 0, -1) if prompts % n == 0][:3]
    yield Violation(
        f"{FETCH}={size}",
        f"it does not divide {PROMPTS}={prompts}, and prompts are fetched in whole portions",
        f"Leave {FETCH} out, or choose a divisor of {prompts}.",
        (FETCH, PROMPTS),
        ({FETCH: None}, *({FETCH: n} for n in fitting)),
    )


def _micro_batches(values: Values) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield the micro-batches that need a size, as set for all GPUs together, and as set per GPU,
    if both are known.
    """
    if values.flag(DYNAMIC):
        return
    names = [MICRO, *SIZES_LOGGED]
    if not any(kl_places(values)):
        names.pop()
    for name in names:
        if values.bad.isdisjoint({name, f"{name}_per_gpu"}):
            yield name, values.get(name, "int"), values.get(f"{name}_per_gpu", "int")


def _gpus(recipe: Recipe, values: Values) -> int:
    return recipe.processes or values.whole("trainer.nnodes", 1) * values.whole(
        "trainer.n_gpus_per_node", 8
    )


@recipe_rule("GB408", "error", of=VERL)
def micro_batches_have_a_size(recipe: Recipe) -> Iterator[Violation]:
    """Each micro-batch has a size per GPU, unless micro-batches are dynamic: there is no default.

    verl at start: "[actor] Please set at least one of 'actor.ppo_micro_batch_size' or
    'actor.ppo_micro_batch_size_per_gpu' if use_dynamic_bsz is not enabled." For log-probabilities
    of the policy, and of the reference if there is one: "[actor_rollout_ref.rollout] Please set at
    least one of ..." A configuration in JSON without any key for log-probabilities may be partial,
    so these are not required.
    """
    values = values_of(recipe)
    is_part = not recipe.file and not any(
        "log_prob_micro_batch_size" in key for key in recipe.config
    )
    size = values.get(f"{MICRO}_per_gpu", "int") or 1
    for name, whole, own in _micro_batches(values):
        key = f"{name}_per_gpu"
        if whole is None and own is None and not (name != MICRO and is_part):
            reason = "it has no default, and without dynamic micro-batches verl stops at start"
            yield unset(key, reason, size, 1)


@recipe_rule("GB409", "error", of=VERL)
def micro_batches_have_one_size(recipe: Recipe) -> Iterator[Violation]:
    """A micro-batch is sized per GPU or for all GPUs (deprecated), not both.

    verl since 0.2 at start: "[actor] You have set both 'actor.ppo_micro_batch_size' AND
    'actor.ppo_micro_batch_size_per_gpu'."
    """
    if recipe.version < CHECKED_AT_START:
        return
    for name, whole, own in _micro_batches(values_of(recipe)):
        if whole is not None and own is not None:
            reason = "both size the same micro-batch, and verl refuses the two together"
            yield Violation(
                f"{name}={whole} and {name}_per_gpu={own}",
                reason,
                f"Leave {name} out.",
                (name, f"{name}_per_gpu"),
                ({name: None},),
            )


@recipe_rule("GV406", "error", of=VERL, by_release=True)
def micro_batches_are_sized_per_gpu(recipe: Recipe) -> Iterator[Violation]:
    """``ppo_micro_batch_size`` and ``log_prob_micro_batch_size`` (for all GPUs together) are
    deprecated.

    They pass verl's validation, and then a bare AssertionError ends the run when the workers are
    set up, because only the sizes per GPU are read. Releases before 0.8 took them.
    """
    values = values_of(recipe)
    if not verl.sizes_per_gpu_only(verl.known_keys(recipe)):
        return
    for name, whole, own in _micro_batches(values):
        if whole is not None and own is None and name in recipe.config:
            size = max(whole // max(_gpus(recipe, values), 1), 1)
            reason = (
                "verl no longer reads it: it passes validation, and the workers stop with an "
                "AssertionError"
            )
            own_key = f"{name}_per_gpu"
            changes = {name: None, own_key: size}
            yield of_key(name, whole, reason, f"Set {own_key}={size} instead.", changes)


@recipe_rule("GB410", "error", of=VERL)
def deprecated_micro_batches_divide_a_step(recipe: Recipe) -> Iterator[Violation]:
    """``ppo_micro_batch_size``, for all GPUs, divides ``ppo_mini_batch_size`` and gives every GPU a
    completion.

    verl at start: "ppo_mini_batch_size (100) must be divisible by ppo_micro_batch_size (64)",
    "ppo_micro_batch_size (4) * ulysses_sequence_parallel_size (1) must be >= n_gpus (8)".
    """
    values = values_of(recipe)
    size = values.get(MICRO, "int")
    step = values.whole(STEP, 256)
    if size is None or size < 1 or values.flag(DYNAMIC):
        return
    gpus = _gpus(recipe, values)
    shared = values.whole(ULYSSES, 1)
    reasons = []
    if step % size:
        reasons.append(f"it does not divide {STEP}={step}")
    if size * shared < gpus:
        split = f", {shared} to a sequence" if shared > 1 else ""
        reasons.append(f"it is shared by {gpus} GPUs{split}")
    for reason in reasons:
        yield of_key(MICRO, size, reason, f"Set {MICRO}_per_gpu instead.")


@recipe_rule("GB411", "error", of=VERL)
def one_kind_of_micro_batch(recipe: Recipe) -> Iterator[Violation]:
    """Micro-batches are dynamic for updates and for log-probabilities alike.

    verl stops with a bare AssertionError when the workers are set up. By default the second follows
    the first.
    """
    values = values_of(recipe)
    name = f"{verl.ROLLOUT}.log_prob_use_dynamic_bsz"
    update = values.flag(DYNAMIC)
    logged = values.get(name, "bool")
    if logged is not None and logged != update and verl.sizes_per_gpu_only(verl.known_keys(recipe)):
        reason = f"{DYNAMIC}={str(update).lower()}, and the workers assert that the two agree"
        instead = f"Leave {name} out: it follows."
        yield of_key(name, logged, reason, instead, {name: None})


@recipe_rule("GB412", "error", of=VERL)
def asynchronous_steps_are_whole(recipe: Recipe) -> Iterator[Violation]:
    """A separate asynchronous trainer takes ``parameter_sync_step`` steps of p prompts per rollout:
    P is their product.

    verl at start: AssertionError unless train_batch_size equals parameter_sync_step x
    ppo_mini_batch_size.
    """
    values = values_of(recipe)
    steps = values.whole("trainer.v1.separate_async.parameter_sync_step", 4)
    prompts = values.whole(PROMPTS, 1024)
    step = values.whole(STEP, 256)
    is_asynchronous = values.word("trainer.v1.trainer_mode", "sync") == "separate_async"
    whole = steps * step
    if is_asynchronous and prompts != whole and verl.is_v1(recipe):
        reason = f"this trainer takes {steps} steps of {step} prompts per rollout, {whole} in all"
        yield of_key(PROMPTS, prompts, reason, f"Set {PROMPTS}={whole}.", {PROMPTS: whole})


@recipe_rule("GT401", "error", of=VERL)
def shared_sequences_are_packed(recipe: Recipe) -> Iterator[Violation]:
    """Sequence parallelism by ``actor.ulysses_sequence_parallel_size`` needs packed sequences.

    verl at start: "When using sequence parallelism for actor/ref policy, you must enable
    `use_remove_padding`."
    """
    values = values_of(recipe)
    if values.whole(ULYSSES, 1) > 1 and not values.flag(PACKED) and verl.engine_of(recipe) == "dp":
        yield Violation(
            f"{ULYSSES}={values.whole(ULYSSES)}",
            f"it needs packed sequences, and {PACKED} is false",
            f"Set {PACKED}=true.",
            (ULYSSES, PACKED),
            ({PACKED: True},),
        )
