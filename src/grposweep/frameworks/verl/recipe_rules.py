"""GB, GT, GV and GK, verl, on the recipe: sizes that must be stated and agree, keys that exist, hold what they can, are read.

Sources: verl 0.9.1 workers/config/actor.py (__post_init__), utils/config.py (check_mutually_exclusive),
workers/engine_workers.py:616-637, trainer/ppo/v1/trainer_separate_async.py:59, trainer/ppo/utils.py, trainer/ppo/core_algos.py;
hydra 1.3 config_loader_impl.py over verl's configuration (keys.json).
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches

from grposweep.frameworks.base import KeySpec
from grposweep.frameworks.dotted import is_taken, nearest
from grposweep.frameworks.dotted_rules import find_dead_keys, find_mistyped, find_unknown_words, unknown
from grposweep.frameworks.fields import Values
from grposweep.frameworks.verl import keys as verl
from grposweep.frameworks.verl.reader import refills, values_of
from grposweep.frameworks.verl.rules import VERL
from grposweep.recipe import Recipe
from grposweep.rules.helpers import show
from grposweep.rules.registry import Violation, recipe_rule, recipe_variant
from grposweep.setting import Setting

FILTERS = "algorithm.filter_groups.enable"
MICRO = f"{verl.ACTOR}.ppo_micro_batch_size"
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
    found, name = values_of(recipe), "data.gen_batch_size"
    size, prompts = found.get(name, "int"), found.whole("data.train_batch_size", 1024)
    if size is None or size < 1 or prompts < 1 or prompts % size == 0 or refills(found):
        return
    if size > prompts and recipe.file is None and FILTERS not in recipe.config:
        return
    fitting = [n for n in range(min(size, prompts), 0, -1) if prompts % n == 0][:3]
    yield Violation(
        what=f"{name}={size}",
        why=f"it does not divide data.train_batch_size={prompts}, and prompts are fetched in whole portions",
        instead=f"Leave {name} out, or choose a divisor of {prompts}.",
        fields=(name, "data.train_batch_size"),
        suggestions=({name: None}, *({name: n} for n in fitting)),
    )


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
    for name in _sized(found):
        if name != MICRO and is_part:
            continue
        if found.get(name, "int") is None and found.get(f"{name}_per_gpu", "int") is None and not _unread(found, name):
            size = found.get(f"{MICRO}_per_gpu", "int") or 1
            yield Violation(
                what=f"{name}_per_gpu is not set",
                why="it has no default, and without dynamic micro-batches verl stops at start",
                instead=f"Set {name}_per_gpu={size}.",
                fields=(f"{name}_per_gpu",),
                suggestions=({f"{name}_per_gpu": size}, {f"{name}_per_gpu": 1}),
            )


def _sized(found: Values) -> tuple[str, ...]:
    """The micro-batches that need a size."""
    if found.flag(f"{verl.ACTOR}.use_dynamic_bsz"):
        return ()
    has_reference = found.flag("algorithm.use_kl_in_reward") or found.flag(f"{verl.ACTOR}.use_kl_loss")
    return (MICRO, *LOGGED) if has_reference else (MICRO, LOGGED[0])


def _unread(found: Values, name: str) -> bool:
    return bool({name, f"{name}_per_gpu"} & found.bad)


@recipe_rule("GB409", "error", of=VERL)
def micro_batches_have_one_size(recipe: Recipe) -> Iterator[Violation]:
    """A micro-batch is sized per GPU or for all GPUs (deprecated), not both.

    verl at start: "[actor] You have set both 'actor.ppo_micro_batch_size' AND 'actor.ppo_micro_batch_size_per_gpu'."
    """
    found = values_of(recipe)
    for name in _sized(found):
        whole, each = found.get(name, "int"), found.get(f"{name}_per_gpu", "int")
        if whole is not None and each is not None:
            yield Violation(
                what=f"{name}={whole} and {name}_per_gpu={each}",
                why="both size the same micro-batch, and verl refuses the two together",
                instead=f"Leave {name} out.",
                fields=(name, f"{name}_per_gpu"),
                suggestions=({name: None},),
            )


@recipe_rule("GV406", "error", of=VERL)
def micro_batches_are_sized_per_gpu(recipe: Recipe) -> Iterator[Violation]:
    """``ppo_micro_batch_size`` and ``log_prob_micro_batch_size``, for all GPUs together, are deprecated.

    They pass verl's validation, and then a bare AssertionError ends the run when the workers are set up, because only the
    sizes per GPU are read. Releases of 2024 and early 2025 took them.
    """
    found = values_of(recipe)
    for name in _sized(found):
        whole = found.get(name, "int")
        if whole is None or found.get(f"{name}_per_gpu", "int") is not None:
            continue
        gpus = recipe.processes or found.whole("trainer.nnodes", 1) * found.whole("trainer.n_gpus_per_node", 8)
        each = max(whole // max(gpus, 1), 1)
        if name in recipe.config:
            yield Violation(
                what=f"{name}={whole}",
                why="verl no longer reads it: it passes validation, and the workers stop with an AssertionError",
                instead=f"Set {name}_per_gpu={each} instead.",
                fields=(name,),
                suggestions=({name: None, f"{name}_per_gpu": each},),
            )


@recipe_rule("GB410", "error", of=VERL)
def deprecated_micro_batches_divide_a_step(recipe: Recipe) -> Iterator[Violation]:
    """``ppo_micro_batch_size``, for all GPUs, divides ``ppo_mini_batch_size`` and gives every GPU a completion.

    verl at start: "ppo_mini_batch_size (100) must be divisible by ppo_micro_batch_size (64)", "ppo_micro_batch_size (4) *
    ulysses_sequence_parallel_size (1) must be >= n_gpus (8)".
    """
    found = values_of(recipe)
    size, step = found.get(MICRO, "int"), found.whole(f"{verl.ACTOR}.ppo_mini_batch_size", 256)
    if size is None or size < 1 or MICRO not in _sized(found):
        return
    gpus = recipe.processes or found.whole("trainer.nnodes", 1) * found.whole("trainer.n_gpus_per_node", 8)
    shared = found.whole(f"{verl.ACTOR}.ulysses_sequence_parallel_size", 1)
    if step % size:
        yield _deprecated(size, f"it does not divide {verl.ACTOR}.ppo_mini_batch_size={step}")
    if size * shared < gpus:
        yield _deprecated(size, f"it is shared by {gpus} GPUs" + (f", {shared} to a sequence" if shared > 1 else ""))


def _deprecated(size: int, why: str) -> Violation:
    return Violation(f"{MICRO}={size}", why, f"Set {MICRO}_per_gpu instead.", (MICRO,))


@recipe_rule("GB411", "error", of=VERL)
def one_kind_of_micro_batch(recipe: Recipe) -> Iterator[Violation]:
    """Micro-batches are dynamic for updates and for log-probabilities alike.

    verl stops with a bare AssertionError when the workers are set up. By default the second follows the first.
    """
    found, name = values_of(recipe), f"{verl.ROLLOUT}.log_prob_use_dynamic_bsz"
    update = found.flag(f"{verl.ACTOR}.use_dynamic_bsz")
    if found.get(name, "bool") is None or found.flag(name) == update:
        return
    yield Violation(
        what=f"{name}={str(found.flag(name)).lower()}",
        why=f"{verl.ACTOR}.use_dynamic_bsz={str(update).lower()}, and the workers assert that the two agree",
        instead=f"Leave {name} out: it follows.",
        fields=(name,),
        suggestions=({name: None},),
    )


@recipe_rule("GB412", "error", of=VERL)
def asynchronous_steps_are_whole(recipe: Recipe) -> Iterator[Violation]:
    """A separate asynchronous trainer takes ``parameter_sync_step`` steps of p prompts a rollout: P is their product.

    verl at start: AssertionError unless train_batch_size equals parameter_sync_step x ppo_mini_batch_size.
    """
    found = values_of(recipe)
    if found.word("trainer.v1.trainer_mode", "sync") != "separate_async":
        return
    steps = found.whole("trainer.v1.separate_async.parameter_sync_step", 4)
    prompts, step = found.whole("data.train_batch_size", 1024), found.whole(f"{verl.ACTOR}.ppo_mini_batch_size", 256)
    if prompts != steps * step:
        yield Violation(
            what=f"data.train_batch_size={prompts}",
            why=f"this trainer takes {steps} steps of {step} prompts a rollout, {steps * step} in all",
            instead=f"Set data.train_batch_size={steps * step}.",
            fields=("data.train_batch_size",),
            suggestions=({"data.train_batch_size": steps * step},),
        )


@recipe_rule("GT401", "error", of=VERL)
def shared_sequences_are_packed(recipe: Recipe) -> Iterator[Violation]:
    """Sequence parallelism by ``actor.ulysses_sequence_parallel_size`` needs packed sequences.

    verl at start: "When using sequence parallelism for actor/ref policy, you must enable `use_remove_padding`."
    """
    found, name = values_of(recipe), f"{verl.ACTOR}.ulysses_sequence_parallel_size"
    if found.whole(name, 1) <= 1 or found.flag(f"{verl.MODEL}.use_remove_padding") or verl.engine_of(recipe) != "dp":
        return
    yield Violation(
        what=f"{name}={found.whole(name)}",
        why=f"it needs packed sequences, and {verl.MODEL}.use_remove_padding is false",
        instead=f"Set {verl.MODEL}.use_remove_padding=true.",
        fields=(name, f"{verl.MODEL}.use_remove_padding"),
        suggestions=({f"{verl.MODEL}.use_remove_padding": True},),
    )


HYDRA_STOPS = "Hydra stops at it, because verl's configuration has none of this name"
OWN_PROGRAMS = ("verl.trainer.main_ppo", "verl/trainer/main_ppo.py")
GROUPS = (
    "defaults",
    "actor",
    "ref",
    "rollout",
    "model",
    "critic",
    "data",
    "reward",
    "model_engine",
    "hydra",
    "transfer_queue",
)


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
    known = _takes(recipe)
    for key, value in recipe.config.items():
        plain = key.lstrip("+~")
        if plain.split("@")[0].split("/")[0] in GROUPS and "." not in plain.split("@")[0]:
            continue  # an option of a group: hydra's own business
        if is_taken(plain, known) or (key not in recipe.lines and recipe.base):
            continue  # what another configuration file adds, it may add
        if not key.startswith("+"):
            yield unknown(recipe, key, nearest(plain, known), HYDRA_STOPS)
        elif (near := get_close_matches(plain, list(known), n=1, cutoff=0.93)) and not plain.startswith("ray_kwargs"):
            yield Violation(
                what=f"{key}={show(value)}",
                why=f"the + adds a key that nothing reads, one letter from {near[0]}",
                instead=f"Write {near[0]}, without the +.",
                fields=(key,),
                suggestions=({key: None, near[0]: value},),
            )


@recipe_rule("GV402", "error", of=VERL)
def keys_of_verl_are_not_added_twice(recipe: Recipe) -> Iterator[Violation]:
    """``+key`` for a key that verl has: Hydra adds only what is not there.

    "Could not append to config. An item is already at 'trainer.val_before_train'." ``++key`` sets it either way.
    """
    known = _takes(recipe)
    for key, value in recipe.config.items():
        plain = key.lstrip("+")
        if key.startswith("+") and not key.startswith("++") and plain in known:
            yield Violation(
                what=f"{key}={show(value)}",
                why="the + adds a key, and verl's configuration has this one already, so Hydra stops",
                instead=f"Write {plain} without the +.",
                fields=(key,),
                suggestions=({key: None, plain: value},),
                without_effect=frozenset({key, plain}),
            )


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
    size = recipe.config.get("data.gen_batch_size")
    if size not in (None, 1) and refills(values_of(recipe)):
        yield Violation(
            f"data.gen_batch_size={show(size)}", "verl overwrites it with 1, because it replaces groups one by one",
            "Leave it out.", ("data.gen_batch_size",),
        )  # fmt: skip


@recipe_rule("GV404", "error", of=VERL)
def an_engine_of_verl_is_named(recipe: Recipe) -> Iterator[Violation]:
    """``actor_rollout_ref.rollout.name`` has no default: a whole recipe must say vllm, sglang or trtllm.

    verl stops at the first access ("Missing mandatory value"). A configuration in JSON may be a part, and is not asked.
    """
    key = f"{verl.ROLLOUT}.name"
    is_whole = recipe.launch is not None and not recipe.base
    if is_whole and key not in {written.lstrip("+") for written in recipe.config}:
        yield Violation(
            what=f"{key} is not set", why="it has no default, so verl stops", instead=f"Set {key}=vllm.", fields=(key,),
            suggestions=({key: "vllm"},),
        )  # fmt: skip


@recipe_rule("GV405", "warning", of=VERL)
def a_configuration_of_verl_is_at_hand(recipe: Recipe) -> Iterator[Violation]:
    """A configuration of one's own (``--config-name``) that was not found, or that only a running shell could name.

    What it sets was not judged.
    """
    if _is_not_at_hand(recipe):
        yield Violation(
            what=f"--config-name {recipe.base}",
            why="no such file from here or from the script's folders, so what it sets was not judged",
            instead="Lint from where it can be found.",
        )


def _is_not_at_hand(recipe: Recipe) -> bool:
    """Whether a recipe builds on a configuration that is neither verl's nor was found."""
    own = recipe.base and not recipe.base.endswith(("ppo_trainer.yaml", "ppo_megatron_trainer.yaml"))
    return bool(own) and recipe.launch is not None and not recipe.config.keys() - recipe.lines.keys()


def _takes(recipe: Recipe) -> Mapping[str, KeySpec]:
    """The keys of the recipe's engine."""
    return verl.known(verl.engine_of(recipe))


def _looser(key: str, kind: str) -> str:
    """Defaults of verl are whole where fractions may be: only what counts something is held to be whole."""
    return "float?" if kind == "int?" and key not in WHOLE else kind


def _words(recipe: Recipe) -> Mapping[str, tuple[str, ...]]:
    """The words of the keys that count: some do only where a switch is on."""
    found = values_of(recipe)
    off = {key for key, switch in verl.SWITCHES.items() if not found.flag(switch)}
    return {key: words for key, words in verl.CHOICES.items() if key not in off}


def _dead_keys(recipe: Recipe) -> Iterator[Violation]:
    """KL keys without effect, by where KL is instead."""
    found = values_of(recipe)
    in_loss, in_reward = found.flag(f"{verl.ACTOR}.use_kl_loss"), found.flag("algorithm.use_kl_in_reward")
    loss = (f"{verl.ACTOR}.kl_loss_coef", f"{verl.ACTOR}.kl_loss_type")
    reward = ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon",
              "algorithm.kl_ctrl.target_kl", "algorithm.kl_penalty")  # fmt: skip
    if in_loss and not in_reward:
        why = f"algorithm.use_kl_in_reward is false; KL is in the loss, with {loss[0]}={found.number(loss[0]):g}"
        yield from find_dead_keys(recipe, reward, why)
    elif in_reward and not in_loss:
        why = f"{verl.ACTOR}.use_kl_loss is false; KL is in the reward, with {reward[0]}={found.number(reward[0]):g}"
        yield from find_dead_keys(recipe, loss, why)
    elif not in_loss:
        why = f"{verl.ACTOR}.use_kl_loss and algorithm.use_kl_in_reward are both false: there is no KL"
        yield from find_dead_keys(recipe, (*loss, *reward), why)


recipe_variant("GV303", VERL, lambda recipe: find_mistyped(recipe, _takes(recipe), _looser))
recipe_variant("GV305", VERL, lambda recipe: find_unknown_words(recipe, _words(recipe)))
recipe_variant("GK310", VERL, _dead_keys)
