"""GB, GT and GV, verl, on the recipe: sizes that must be stated and agree.

Sources: verl 0.9.1 workers/config/actor.py (__post_init__), utils/config.py (check_mutually_exclusive),
workers/engine_workers.py:616-637, trainer/ppo/v1/trainer_separate_async.py:59, trainer/ppo/utils.py; verl 0.2
trainer/ppo/ray_trainer.py (_validate_config), verl 0.7 workers/fsdp_workers.py, which divides sizes for all GPUs.
"""

from collections.abc import Iterator

from grposweep.frameworks.reading import Values, values_of
from grposweep.frameworks.verl import keys as verl
from grposweep.frameworks.verl.recipes import kl_places, refills
from grposweep.frameworks.verl.rules import VERL
from grposweep.recipe import Recipe
from grposweep.rules.registry import Violation, recipe_rule

FILTERS = "algorithm.filter_groups.enable"
PROMPTS, STEP, FETCH = "data.train_batch_size", f"{verl.ACTOR}.ppo_mini_batch_size", "data.gen_batch_size"
MICRO = f"{verl.ACTOR}.ppo_micro_batch_size"
DYNAMIC, ULYSSES = f"{verl.ACTOR}.use_dynamic_bsz", f"{verl.ACTOR}.ulysses_sequence_parallel_size"
PACKED = f"{verl.MODEL}.use_remove_padding"
LOGGED = (f"{verl.ROLLOUT}.log_prob_micro_batch_size", f"{verl.REF}.log_prob_micro_batch_size")


@recipe_rule("GB407", "error", of=VERL)
def a_rollout_is_whole_fetches(recipe: Recipe) -> Iterator[Violation]:
    """A rollout must be whole fetches: P is a multiple of ``gen_batch_size``, the prompts of one.

    verl at the first step: "num_prompts (64) must be a positive multiple of gen_batch_size (48); it is submitted in whole
    gen_batch_size dataloader fetches." Where groups are filtered or the trainer is asynchronous it is 1 in any case;
    more than P is only ever set for these, so a configuration that does not say whether it filters is not blamed.
    """
    found = values_of(recipe)
    size, prompts = found.get(FETCH, "int"), found.whole(PROMPTS, 1024)
    if size is None or size < 1 or prompts < 1 or prompts % size == 0 or refills(found) or not verl.is_v1(recipe):
        return
    if size > prompts and recipe.file is None and FILTERS not in recipe.config:
        return
    fitting = [n for n in range(min(size, prompts), 0, -1) if prompts % n == 0][:3]
    yield Violation(
        f"{FETCH}={size}", f"it does not divide {PROMPTS}={prompts}, and prompts are fetched in whole portions",
        f"Leave {FETCH} out, or choose a divisor of {prompts}.", (FETCH, PROMPTS),
        ({FETCH: None}, *({FETCH: n} for n in fitting)),
    )  # fmt: skip


def _micro_batches(found: Values) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield the micro-batches that need a size, as set for all GPUs together, and as set per GPU."""
    if found.flag(DYNAMIC):
        return
    has_reference = any(kl_places(found))
    for name in (MICRO, *LOGGED) if has_reference else (MICRO, LOGGED[0]):
        yield name, found.get(name, "int"), found.get(f"{name}_per_gpu", "int")


def _gpus(recipe: Recipe, found: Values) -> int:
    return recipe.processes or found.whole("trainer.nnodes", 1) * found.whole("trainer.n_gpus_per_node", 8)


@recipe_rule("GB408", "error", of=VERL)
def micro_batches_have_a_size(recipe: Recipe) -> Iterator[Violation]:
    """Each micro-batch has a size per GPU, unless micro-batches are dynamic: there is no default.

    verl at start: "[actor] Please set at least one of 'actor.ppo_micro_batch_size' or 'actor.ppo_micro_batch_size_per_gpu'
    if use_dynamic_bsz is not enabled." For log-probabilities of the policy, and of the reference where there is one:
    "[actor_rollout_ref.rollout] Please set at least one of ..." A configuration in JSON that says nothing at all about
    log-probabilities may be a part, and is not asked for these.
    """
    found = values_of(recipe)
    is_part = recipe.file is None and not any("log_prob_micro_batch_size" in key for key in recipe.config)
    size = found.get(f"{MICRO}_per_gpu", "int") or 1
    for name, whole, each in _micro_batches(found):
        key = f"{name}_per_gpu"
        if whole is None and each is None and not (name != MICRO and is_part) and found.bad.isdisjoint({name, key}):
            why = "it has no default, and without dynamic micro-batches verl stops at start"
            yield Violation(f"{key} is not set", why, f"Set {key}={size}.", (key,), ({key: size}, {key: 1}))


@recipe_rule("GB409", "error", of=VERL)
def micro_batches_have_one_size(recipe: Recipe) -> Iterator[Violation]:
    """A micro-batch is sized per GPU or for all GPUs (deprecated), not both.

    verl at start: "[actor] You have set both 'actor.ppo_micro_batch_size' AND 'actor.ppo_micro_batch_size_per_gpu'."
    """
    for name, whole, each in _micro_batches(values_of(recipe)):
        if whole is not None and each is not None:
            why = "both size the same micro-batch, and verl refuses the two together"
            yield Violation(f"{name}={whole} and {name}_per_gpu={each}", why, f"Leave {name} out.", (name, f"{name}_per_gpu"),
                            ({name: None},))  # fmt: skip


@recipe_rule("GV406", "error", of=VERL, by_release=True)
def micro_batches_are_sized_per_gpu(recipe: Recipe) -> Iterator[Violation]:
    """``ppo_micro_batch_size`` and ``log_prob_micro_batch_size``, for all GPUs together, are deprecated.

    They pass verl's validation, and then a bare AssertionError ends the run when the workers are set up, because only the
    sizes per GPU are read. Releases before 0.8 took them.
    """
    found = values_of(recipe)
    if not verl.sizes_per_gpu_only(verl.known_keys(recipe)):
        return
    for name, whole, each in _micro_batches(found):
        if whole is not None and each is None and name in recipe.config:
            size = max(whole // max(_gpus(recipe, found), 1), 1)
            why = "verl no longer reads it: it passes validation, and the workers stop with an AssertionError"
            yield Violation(f"{name}={whole}", why, f"Set {name}_per_gpu={size} instead.", (name,),
                            ({name: None, f"{name}_per_gpu": size},))  # fmt: skip


@recipe_rule("GB410", "error", of=VERL)
def deprecated_micro_batches_divide_a_step(recipe: Recipe) -> Iterator[Violation]:
    """``ppo_micro_batch_size``, for all GPUs, divides ``ppo_mini_batch_size`` and gives every GPU a completion.

    verl at start: "ppo_mini_batch_size (100) must be divisible by ppo_micro_batch_size (64)", "ppo_micro_batch_size (4) *
    ulysses_sequence_parallel_size (1) must be >= n_gpus (8)".
    """
    found = values_of(recipe)
    size, step = found.get(MICRO, "int"), found.whole(STEP, 256)
    if size is None or size < 1 or found.flag(DYNAMIC):
        return
    gpus, shared = _gpus(recipe, found), found.whole(ULYSSES, 1)
    broken = {
        f"it does not divide {STEP}={step}": step % size != 0,
        f"it is shared by {gpus} GPUs" + (f", {shared} to a sequence" if shared > 1 else ""): size * shared < gpus,
    }
    for why in (why for why, is_broken in broken.items() if is_broken):
        yield Violation(f"{MICRO}={size}", why, f"Set {MICRO}_per_gpu instead.", (MICRO,))


@recipe_rule("GB411", "error", of=VERL)
def one_kind_of_micro_batch(recipe: Recipe) -> Iterator[Violation]:
    """Micro-batches are dynamic for updates and for log-probabilities alike.

    verl stops with a bare AssertionError when the workers are set up. By default the second follows the first.
    """
    found, name = values_of(recipe), f"{verl.ROLLOUT}.log_prob_use_dynamic_bsz"
    update, logged = found.flag(DYNAMIC), found.get(name, "bool")
    if logged is not None and logged != update and verl.sizes_per_gpu_only(verl.known_keys(recipe)):
        why = f"{DYNAMIC}={str(update).lower()}, and the workers assert that the two agree"
        yield Violation(
            f"{name}={str(logged).lower()}", why, f"Leave {name} out: it follows.", (name,), ({name: None},)
        )


@recipe_rule("GB412", "error", of=VERL)
def asynchronous_steps_are_whole(recipe: Recipe) -> Iterator[Violation]:
    """A separate asynchronous trainer takes ``parameter_sync_step`` steps of p prompts a rollout: P is their product.

    verl at start: AssertionError unless train_batch_size equals parameter_sync_step x ppo_mini_batch_size.
    """
    found = values_of(recipe)
    steps = found.whole("trainer.v1.separate_async.parameter_sync_step", 4)
    prompts, step = found.whole(PROMPTS, 1024), found.whole(STEP, 256)
    is_asynchronous = found.word("trainer.v1.trainer_mode", "sync") == "separate_async"
    if is_asynchronous and prompts != steps * step and verl.is_v1(recipe):
        why = f"this trainer takes {steps} steps of {step} prompts a rollout, {steps * step} in all"
        yield Violation(
            f"{PROMPTS}={prompts}", why, f"Set {PROMPTS}={steps * step}.", (PROMPTS,), ({PROMPTS: steps * step},)
        )


@recipe_rule("GT401", "error", of=VERL)
def shared_sequences_are_packed(recipe: Recipe) -> Iterator[Violation]:
    """Sequence parallelism by ``actor.ulysses_sequence_parallel_size`` needs packed sequences.

    verl at start: "When using sequence parallelism for actor/ref policy, you must enable `use_remove_padding`."
    """
    found = values_of(recipe)
    if found.whole(ULYSSES, 1) > 1 and not found.flag(PACKED) and verl.engine_of(recipe) == "dp":
        yield Violation(f"{ULYSSES}={found.whole(ULYSSES)}", f"it needs packed sequences, and {PACKED} is false",
                        f"Set {PACKED}=true.", (ULYSSES, PACKED), ({PACKED: True},))  # fmt: skip
