"""GB, GT, GV and GK, verl, on the recipe: sizes that must be stated and agree, keys that exist, hold what they can, are read.

Sources: verl 0.9.1 workers/config/actor.py (__post_init__), utils/config.py (check_mutually_exclusive),
workers/engine_workers.py:616-637, trainer/ppo/v1/trainer_separate_async.py:59, trainer/ppo/utils.py, trainer/ppo/core_algos.py;
hydra 1.3 config_loader_impl.py over verl's configuration (keys.json).
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches

from grposweep.frameworks.dotted import is_taken, nearest
from grposweep.frameworks.key_rules import find_dead_keys, find_mistyped, find_unknown_words, unknown
from grposweep.frameworks.reading import Values, values_of
from grposweep.frameworks.verl import keys as verl
from grposweep.frameworks.verl.recipes import refills
from grposweep.frameworks.verl.rules import VERL
from grposweep.recipe import Recipe
from grposweep.rules.helpers import show
from grposweep.rules.registry import Violation, recipe_rule, recipe_variant
from grposweep.setting import Setting

FILTERS = "algorithm.filter_groups.enable"
PROMPTS, STEP, FETCH = "data.train_batch_size", f"{verl.ACTOR}.ppo_mini_batch_size", "data.gen_batch_size"
MICRO = f"{verl.ACTOR}.ppo_micro_batch_size"
DYNAMIC, ULYSSES = f"{verl.ACTOR}.use_dynamic_bsz", f"{verl.ACTOR}.ulysses_sequence_parallel_size"
PACKED = f"{verl.MODEL}.use_remove_padding"
COUNTS = {field.name for field in fields(Setting) if str(getattr(field.type, "__name__", field.type)).startswith("int")}
WHOLE = {row.key for row in verl.FIELDS if row.name in COUNTS} | {"trainer.nnodes"}
LOGGED = (f"{verl.ROLLOUT}.log_prob_micro_batch_size", f"{verl.REF}.log_prob_micro_batch_size")


@recipe_rule("GB407", "error", of=VERL)
def a_rollout_is_whole_fetches(recipe: Recipe) -> Iterator[Violation]:
    """A rollout must be whole fetches: P is a multiple of ``gen_batch_size``, the prompts of one.

    verl at the first step: "num_prompts (64) must be a positive multiple of gen_batch_size (48); it is submitted in whole
    gen_batch_size dataloader fetches." Where groups are filtered or the trainer is asynchronous it is 1, whatever is set;
    more than P is only ever set for these, so a configuration that does not say whether it filters is not blamed.
    """
    found = values_of(recipe)
    size, prompts = found.get(FETCH, "int"), found.whole(PROMPTS, 1024)
    if size is None or size < 1 or prompts < 1 or prompts % size == 0 or refills(found):
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
    has_reference = found.flag("algorithm.use_kl_in_reward") or found.flag(f"{verl.ACTOR}.use_kl_loss")
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


@recipe_rule("GV406", "error", of=VERL)
def micro_batches_are_sized_per_gpu(recipe: Recipe) -> Iterator[Violation]:
    """``ppo_micro_batch_size`` and ``log_prob_micro_batch_size``, for all GPUs together, are deprecated.

    They pass verl's validation, and then a bare AssertionError ends the run when the workers are set up, because only the
    sizes per GPU are read. Releases of 2024 and early 2025 took them.
    """
    found = values_of(recipe)
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
    if logged is not None and logged != update:
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
    if found.word("trainer.v1.trainer_mode", "sync") == "separate_async" and prompts != steps * step:
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


HYDRA_STOPS = "Hydra stops at it, because verl's configuration has none of this name"
OWN_PROGRAMS = ("verl.trainer.main_ppo", "verl/trainer/main_ppo.py")
GROUPS = ("defaults", "actor", "ref", "rollout", "model", "critic", "data", "reward", "model_engine", "hydra",
          "transfer_queue")  # fmt: skip


@recipe_rule("GV401", "error", of=VERL)
def keys_of_verl_exist(recipe: Recipe) -> Iterator[Violation]:
    """A key that verl's configuration does not have, without the ``+`` that adds one.

    Hydra stops: "Could not override 'actor_rollout_ref.actor.foo'. To append to your config use +...". With ``+`` a typo
    is accepted, and never read.
    """
    if recipe.launch is not None and not recipe.launch.program.endswith(OWN_PROGRAMS):
        return  # another trainer, whose configuration has more keys
    if _is_not_at_hand(recipe):
        return
    known = verl.known_keys(recipe)
    for key, value in recipe.config.items():
        plain = key.lstrip("+~")
        if plain.split("@")[0].split("/")[0] in GROUPS and "." not in plain.split("@")[0]:
            continue  # an option of a group: hydra's own business
        if is_taken(plain, known) or (key not in recipe.lines and recipe.base):
            continue  # what another configuration file adds, it may add
        if not key.startswith("+"):
            yield unknown(recipe, key, nearest(plain, known), HYDRA_STOPS)
        elif (near := get_close_matches(plain, list(known), n=1, cutoff=0.93)) and not plain.startswith("ray_kwargs"):
            yield Violation(f"{key}={show(value)}", f"the + adds a key that nothing reads, one letter from {near[0]}",
                            f"Write {near[0]}, without the +.", (key,), ({key: None, near[0]: value},))  # fmt: skip


@recipe_rule("GV402", "error", of=VERL)
def keys_of_verl_are_not_added_twice(recipe: Recipe) -> Iterator[Violation]:
    """``+key`` for a key that verl has: Hydra adds only what is not there.

    "Could not append to config. An item is already at 'trainer.val_before_train'." ``++key`` sets it either way.
    """
    known = verl.known_keys(recipe)
    for key, value in recipe.config.items():
        plain = key.lstrip("+")
        if key.startswith("+") and not key.startswith("++") and plain in known:
            why = "the + adds a key, and verl's configuration has this one already, so Hydra stops"
            yield Violation(f"{key}={show(value)}", why, f"Write {plain} without the +.", (key,), ({key: None, plain: value},),
                            without_effect=frozenset({key, plain}))  # fmt: skip


@recipe_rule("GV403", "warning", of=VERL)
def verl_reads_what_is_set(recipe: Recipe) -> Iterator[Violation]:
    """Keys that verl takes and nothing in it reads.

    ``actor.grad_clip`` (the engine clips by ``actor.optim.clip_grad``); ``actor.clip_ratio`` (``clip_ratio_low`` and
    ``clip_ratio_high`` have values of their own and win); ``gen_batch_size`` where prompts are fetched one by one.
    """
    for written, value in recipe.config.items():
        key = written.lstrip("+")
        if key in verl.UNREAD and value is not None:
            other = verl.UNREAD[key]
            advice = f"Set {other}." if other else "Leave it out."
            if key.endswith(".clip_ratio"):
                if {f"{key}_low", f"{key}_high"} <= recipe.config.keys():
                    continue
                advice = f"Set {key}_low and {key}_high."
            yield Violation(f"{key}={show(value)}", "verl takes it, and nothing reads it", advice, (written,))
    size = recipe.config.get(FETCH)
    if size not in (None, 1) and refills(values_of(recipe)):
        why = "verl overwrites it with 1, because it replaces groups one by one"
        yield Violation(f"{FETCH}={show(size)}", why, "Leave it out.", (FETCH,))


@recipe_rule("GV404", "error", of=VERL)
def an_engine_of_verl_is_named(recipe: Recipe) -> Iterator[Violation]:
    """``actor_rollout_ref.rollout.name`` has no default: a whole recipe must say vllm, sglang or trtllm.

    verl stops at the first access ("Missing mandatory value"). A configuration in JSON may be a part, and is not asked.
    """
    key = f"{verl.ROLLOUT}.name"
    is_whole = recipe.launch is not None and not recipe.base
    if is_whole and key not in {written.lstrip("+") for written in recipe.config}:
        yield Violation(
            f"{key} is not set", "it has no default, so verl stops", f"Set {key}=vllm.", (key,), ({key: "vllm"},)
        )


@recipe_rule("GV405", "warning", of=VERL)
def a_configuration_of_verl_is_at_hand(recipe: Recipe) -> Iterator[Violation]:
    """A configuration of one's own (``--config-name``) that was not found, or that only a running shell could name.

    What it sets was not judged.
    """
    if _is_not_at_hand(recipe):
        why = "no such file from here or from the script's folders, so what it sets was not judged"
        yield Violation(f"--config-name {recipe.base}", why, "Lint from where it can be found.")


def _is_not_at_hand(recipe: Recipe) -> bool:
    """Whether a recipe builds on a configuration that is neither verl's nor was found."""
    own = recipe.base and not recipe.base.endswith(("ppo_trainer.yaml", "ppo_megatron_trainer.yaml"))
    return bool(own) and recipe.launch is not None and not recipe.config.keys() - recipe.lines.keys()


def _looser(key: str, kind: str) -> str:
    """Defaults of verl are whole where fractions may be: only what counts something is held to be whole."""
    return "float?" if kind == "int?" and key not in WHOLE else kind


def _words(recipe: Recipe) -> Mapping[str, tuple[str, ...]]:
    """The words of the keys that count: some do only where a switch is on."""
    found = values_of(recipe)
    off = {key for key, switch in verl.SWITCHES.items() if not found.flag(switch)}
    return {key: words for key, words in verl.CHOICES.items() if key not in off}


LOSS_KL = (f"{verl.ACTOR}.kl_loss_coef", f"{verl.ACTOR}.kl_loss_type")
REWARD_KL = ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon",
             "algorithm.kl_ctrl.target_kl", "algorithm.kl_penalty")  # fmt: skip
# Whether KL is in the loss, and in the reward: the keys without effect then, why, and the coefficient that counts.
DEAD: dict[tuple[bool, bool], tuple[tuple[str, ...], str, str]] = {
    (True, False): (REWARD_KL, "algorithm.use_kl_in_reward is false; KL is in the loss, with ", LOSS_KL[0]),
    (False, True): (LOSS_KL, f"{verl.ACTOR}.use_kl_loss is false; KL is in the reward, with ", REWARD_KL[0]),
    (False, False): ((*LOSS_KL, *REWARD_KL),
                     f"{verl.ACTOR}.use_kl_loss and algorithm.use_kl_in_reward are both false: there is no KL", ""),
}  # fmt: skip


def _dead_keys(recipe: Recipe) -> Iterator[Violation]:
    """Find KL keys without effect, by where KL is instead."""
    found = values_of(recipe)
    place = (found.flag(f"{verl.ACTOR}.use_kl_loss"), found.flag("algorithm.use_kl_in_reward"))
    if place in DEAD:
        dead, why, coefficient = DEAD[place]
        yield from find_dead_keys(
            recipe, dead, why + (f"{coefficient}={found.number(coefficient):g}" if coefficient else "")
        )


recipe_variant("GV303", VERL, lambda recipe: find_mistyped(recipe, verl.known_keys(recipe), _looser))
recipe_variant("GV305", VERL, lambda recipe: find_unknown_words(recipe, _words(recipe)))
recipe_variant("GK310", VERL, _dead_keys)
