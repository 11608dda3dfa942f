"""OpenRLHF's own checks: refusals of argparse, train_ppo_ray.py and DeepSpeed at start, and completions that it drops.

Symbols: P prompts per rollout, G completions per prompt, p G completions per optimizer step (``train.batch_size``), m a
micro-batch, W the actor's GPUs, R = W / (ring attention x tensor parallel) data ranks. Sources: OpenRLHF 0.11.0
openrlhf/cli/train_ppo_ray.py, openrlhf/utils/deepspeed/deepspeed.py; DeepSpeed 0.19 runtime/config.py _batch_assertion.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from grporecipe.fields.reading import values_of
from grporecipe.frameworks.openrlhf.recipes import DOTTED, FLAT, OWN_PROGRAM, RENAMED, Options, at, choices, span
from grporecipe.model.framework import known_keys
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import closest_keys, text
from grporecipe.model.setting import Setting, Version
from grporecipe.rules.helpers import cut, near
from grporecipe.rules.keys import ambiguous, find_mistyped, find_unknown_words, unknown
from grporecipe.rules.registry import Change, Violation, recipe_rule, variant
from grporecipe.rules.rollout_batch import GROUPED

OPENRLHF = frozenset({"openrlhf"})
RANKS_CHECKED: Version = (0, 7, 2)
WHOLE_WORLD_UNTIL: Version = (0, 7, 0)
ENGINES_NEEDED: tuple[Version, Version] = ((0, 5, 8), (0, 7, 0))
ENGINES_ALONE: Version = (0, 8, 0)
LAUNCHERS = frozenset({"deepspeed", "torchrun", "accelerate"})
CORRECTION = "algo.advantage.is_correction"  # of the difference between the log-probabilities of vLLM and the trainer
# Until 0.11.1 is_correction_type named what level and mode say since.
TYPES = {"tis": ("token", "clip"), "icepop": ("token", "mask"), "seq-mask-tis": ("seq", "mask")}

# In OpenRLHF the scheduler advances at each step, and engines share the actor's GPUs only if all models are colocated.
for _code in ("GT301", "GS302", "GS301", "GD301"):
    variant(_code, OPENRLHF, lambda _: None)


def _lone(s: Setting) -> dict[str, str] | None:
    is_grouped = s.advantage_estimator in (*GROUPED, "reinforce_plus_plus_baseline")
    return {"consequence": "training stops at start"} if s.num_generations == 1 and is_grouped else None


variant("GB302", OPENRLHF, _lone)
variant("GK302", OPENRLHF, lambda _: None)  # it advises against k1 and trains: GK601


class Sizes(NamedTuple):
    """The sizes of a recipe: W, R, P G, the completions of a step, and m. None if one is unreadable or not positive."""

    world: int
    ranks: int
    rollout: int
    step: int
    micro: int

    @classmethod
    def of(cls, recipe: Recipe) -> "Sizes | None":
        """Return them."""
        option = Options.of(values_of(recipe))
        names = ("actor.num_nodes", "actor.num_gpus_per_node", "ds.ring_attn_size", "ds.tensor_parallel_size",
                 "rollout.batch_size", "rollout.n_samples_per_prompt", "train.batch_size", "train.micro_batch_size")  # fmt: skip
        if {at(name, recipe.version) for name in names} & option.bad:
            return None
        defaults = (1, 8, 1, 1, 1024, 1, 128, 1)
        nodes, gpus, ring, tensor, prompts, group, step, micro = (
            option.whole(name, default) for name, default in zip(names, defaults, strict=True)
        )
        if recipe.processes is None and recipe.launch and recipe.launch.launcher in LAUNCHERS:
            return None  # train_ppo.py: the launcher starts one process per GPU
        world = recipe.processes or nodes * gpus
        if min(world, ring, tensor, prompts, group, step, micro) < 1 or world % (ring * tensor):
            return None  # GB301 and GT302 report it
        micro = 1 if option.flag("train.dynamic_batch_enable") else micro
        return cls(world, world // (ring * tensor), prompts * group, step, micro)


def _sized(recipe: Recipe, name: str, sizes: "Iterator[int] | list[int]") -> tuple[Change, ...]:
    key = at(name, recipe.version)
    return tuple({key: size} for size in sizes)


@recipe_rule("GB601", "error", of=OPENRLHF)
def a_step_is_whole_micro_batches(recipe: Recipe) -> Iterator[Violation]:
    """The completions of a step (``train.batch_size``) are a multiple of m R: one micro-batch on every data rank.

    DeepSpeed at start: "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu *
    gradient_acc_step * world_size". OpenRLHF passes it the step x ring attention x tensor parallel.
    """
    s = Sizes.of(recipe)
    if s is None or s.step % (unit := s.micro * s.ranks) == 0:
        return
    names = [at(name, recipe.version) for name in ("train.batch_size", "train.micro_batch_size")]
    whole = max(s.step // unit, 1)
    yield Violation(
        f"{names[0]}={s.step}",
        f"it is not a multiple of {unit}, a micro-batch of {s.micro} on each of {s.ranks} data ranks, and DeepSpeed stops",
        f"Choose a multiple of {unit}.", tuple(names), _sized(recipe, "train.batch_size", [whole * unit, (whole + 1) * unit]),
    )  # fmt: skip


@recipe_rule("GB602", "error", of=OPENRLHF)
def every_rank_gets_samples(recipe: Recipe) -> Iterator[Violation]:
    """The rollout has at least one micro-batch for each data rank: floor(P G / rollout micro-batch) is at least R.

    OpenRLHF since 0.7.2: "The number of sample batches must be greater than or equal to the effective number of actor
    processes."
    """
    s = Sizes.of(recipe)
    key = at("rollout.micro_batch_size", recipe.version)
    size = Options.of(values_of(recipe)).whole("rollout.micro_batch_size", 1)
    if s is None or recipe.version < RANKS_CHECKED or size < 1 or s.rollout // size >= s.ranks:
        return
    most = s.rollout // s.ranks
    yield Violation(
        f"{key}={size}", f"{s.rollout} completions per rollout make {s.rollout // size} batches for {s.ranks} data ranks",
        f"Choose at most {most}." if most else "Choose a larger rollout.",
        (key, at("rollout.batch_size", recipe.version)), ({key: most},) if most else (),
    )  # fmt: skip


@recipe_rule("GB603", "warning", of=OPENRLHF)
def no_gradients_are_left_over(recipe: Recipe) -> Iterator[Violation]:
    """The completions of a rollout, P G, are a multiple of those of a step (``train.batch_size``).

    The rest of a rollout does not fill a step: its gradients are added to the next rollout's first step, under newer weights.
    With dynamic batches it is dropped (replay_buffer.py setup_dynamic_batch).
    """
    s = Sizes.of(recipe)
    if s is not None and s.rollout % s.step:
        key = at("train.batch_size", recipe.version)
        yield Violation(
            f"{key}={s.step}", f"{s.rollout} completions per rollout are not whole steps, and {s.rollout % s.step} are left over",
            f"Choose a divisor of {s.rollout}.", (key,),
            _sized(recipe, "train.batch_size", near(s.step, lambda size: s.rollout % size == 0)),
        )  # fmt: skip


@recipe_rule("GB604", "error", of=OPENRLHF)
def the_world_divides_a_rollout(recipe: Recipe) -> Iterator[Violation]:
    """Until OpenRLHF 0.6.4 the prompts of a rollout are a multiple of the actor's GPUs.

    "rollout_bach_size must be divisible by actor_world_size".
    """
    s = Sizes.of(recipe)
    prompts = Options.of(values_of(recipe)).whole("rollout.batch_size", 1024)
    if s is not None and recipe.version < WHOLE_WORLD_UNTIL and prompts % s.world:
        key = at("rollout.batch_size", recipe.version)
        yield Violation(
            f"{key}={prompts}", f"OpenRLHF {text(recipe.version)} needs a multiple of the actor's {s.world} GPUs",
            f"Choose a multiple of {s.world}.", (key,),
            _sized(recipe, "rollout.batch_size", near(prompts, lambda size: size % s.world == 0)),
        )  # fmt: skip


@recipe_rule("GT601", "error", of=OPENRLHF)
def colocated_engines_cover_the_actor(recipe: Recipe) -> Iterator[Violation]:
    """With all models colocated, engines x tensor parallel GPUs of vLLM are the actor's GPUs; not with async training.

    "actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * vllm_tensor_parallel_size" (since 0.5.9).
    """
    s, option = Sizes.of(recipe), Options.of(values_of(recipe))
    engines, size = option.whole("vllm.num_engines", 0), option.whole("vllm.tensor_parallel_size", 1)
    names = {at(name, recipe.version) for name in ("vllm.num_engines", "vllm.tensor_parallel_size")}
    is_checked = option.flag("train.colocate_all") and not option.flag("train.async_enable") and not names & option.bad
    if s is None or not is_checked or engines < 1 or engines * size == s.world:
        return
    key = at("vllm.num_engines", recipe.version)
    yield Violation(
        f"{key}={engines}",
        f"with all models colocated {engines} engines x {size} GPUs must be the actor's {s.world} GPUs",
        f"Set {key} x {at('vllm.tensor_parallel_size', recipe.version)} to {s.world}.",
        (key, at("vllm.tensor_parallel_size", recipe.version)),
        ({key: s.world // size},) if size > 0 and s.world % size == 0 else (),
    )


@recipe_rule("GT602", "error", of=OPENRLHF)
def a_colocated_reference_has_the_actor_s_gpus(recipe: Recipe) -> Iterator[Violation]:
    """With colocation and a KL coefficient the reference has as many nodes and GPUs as the actor.

    "num_nodes and num_gpus_per_node must be the same when colocate actor and ref model."
    """
    option = Options.of(values_of(recipe))
    if not (option.flag("train.colocate_all") or option.flag("train.colocate_actor_ref")):
        return
    if option.number("algo.kl.init_coef", 0.01) <= 0:
        return
    for name, default in (("num_nodes", 1), ("num_gpus_per_node", 8)):
        key, own = at(f"ref.{name}", recipe.version), at(f"actor.{name}", recipe.version)
        gpus, wanted = option.whole(f"ref.{name}", default), option.whole(f"actor.{name}", default)
        if gpus != wanted and not {key, own} & option.bad:
            yield Violation(f"{key}={gpus}", f"colocated with the actor, it must be {own}={wanted}", f"Set {key}={wanted}.",
                            (key, own), ({key: wanted},))  # fmt: skip


@recipe_rule("GT603", "error", of=OPENRLHF)
def vllm_generates(recipe: Recipe) -> Iterator[Violation]:
    """Since OpenRLHF 0.8.0 completions come from vLLM engines alone: without one the first rollout stops.

    experience_maker.py takes ``len(self.vllm_engines)`` of None, and samples_generator.py the first of no engines. The option's
    help still says "set to 0 to disable vLLM", and nothing is checked at start.
    """
    option, key = Options.of(values_of(recipe)), at("vllm.num_engines", recipe.version)
    if recipe.launch is not None and not OWN_PROGRAM.search(recipe.launch.program):
        return  # a program of the repository may generate in its own way
    is_part = (recipe.launch is None and key not in recipe.config) or option.flag(
        "ds.packing_samples"
    )  # then it is GV603
    if recipe.version < ENGINES_ALONE or is_part or key in option.bad or option.whole("vllm.num_engines", 0) > 0:
        return
    what = f"{key}=0" if key in recipe.config else f"{key} is not set"
    s = Sizes.of(recipe)
    colocated = 1 if s is None else max(s.world // max(option.whole("vllm.tensor_parallel_size", 1), 1), 1)
    yield Violation(what, "OpenRLHF generates by vLLM engines alone, and the first rollout stops", f"Set {key}=1 or more.",
                    (key,), ({key: 1}, {key: colocated}))  # fmt: skip


@recipe_rule("GK601", "warning", of=OPENRLHF)
def the_estimator_fits_its_place(recipe: Recipe) -> Iterator[Violation]:
    """KL in the loss needs k2 or k3, and KL in the reward k1. OpenRLHF only prints a recommendation.

    As a loss, k1 has an expected gradient of 0. With ``algo.kl.unbiased_gradient`` (since 0.11.1) all estimators have the
    gradient of the KL divergence.
    """
    option = Options.of(values_of(recipe))
    if option.flag("algo.kl.unbiased_gradient") or "algo.kl.unbiased_gradient" in option.bad:
        return
    key, name = at("algo.kl.estimator", recipe.version), option.word("algo.kl.estimator", "k1")
    if option.number("algo.kl.init_coef", 0.01) > 0 and option.flag("algo.kl.use_loss") and name == "k1":
        yield Violation(f"{key}=k1", "as a loss its expected gradient is 0, so the KL term only adds noise",
                        f"Set {key}=k3 or k2.", (key,), ({key: "k3"}, {key: "k2"}))  # fmt: skip


class Conflict(NamedTuple):
    """Options that OpenRLHF refuses together: one that is on, another that must or must not be on, and since when."""

    option: str
    other: str
    needed: bool
    why: str
    since: Version = (0, 3, 6)


CONFLICTS = (
    Conflict("ds.packing_samples", "vllm.num_engines", True, "packed samples need vLLM engines"),
    Conflict("train.async_enable", "vllm.enable_sleep", False, "engines must not sleep in async training", (0, 8, 0)),
    Conflict(
        "train.partial_rollout_enable", "train.async_enable", True, "partial rollouts need async training", (0, 9, 7)
    ),
)


@recipe_rule("GV603", "error", of=OPENRLHF)
def options_agree(recipe: Recipe) -> Iterator[Violation]:
    """Options that OpenRLHF asserts at start: packing needs vLLM, partial rollouts need async training, and others.

    Releases 0.5.8 to 0.6.4 compare ``vllm_num_engines`` with 0 even if it is not set, and stop with a TypeError.
    """
    values, version = values_of(recipe), recipe.version
    option = Options.of(values)
    if ENGINES_NEEDED[0] <= version < ENGINES_NEEDED[1] and "vllm_num_engines" not in recipe.config:
        yield Violation("vllm_num_engines is not set", f"OpenRLHF {text(version)} compares it with 0, and stops",
                        "Set vllm_num_engines=0 or more.", ())  # fmt: skip
    for row in CONFLICTS:
        key, other = at(row.option, version), at(row.other, version)
        is_colocated = row.other != "vllm.enable_sleep" or option.flag(
            "train.colocate_all"
        )  # otherwise it is switched off
        if version < row.since or not option.flag(row.option) or {key, other} & values.bad or not is_colocated:
            continue
        value: Any = option.whole(row.other, 0) if row.other == "vllm.num_engines" else option.flag(row.other)
        if bool(value) != row.needed:
            yield Violation(f"{key} {'without' if row.needed else 'with'} {other}", row.why,
                            f"{'Set' if row.needed else 'Remove'} {other}.", (key,))  # fmt: skip


@recipe_rule("GV601", "error", of=OPENRLHF, by_release=True)
def options_exist(recipe: Recipe) -> Iterator[Violation]:
    """argparse stops at an option that the release does not take: "unrecognized arguments".

    OpenRLHF 0.10.2 named nearly all options by sections: ``--rollout_batch_size`` became ``--rollout.batch_size``. 0.11.2
    replaced ``is_correction_enable`` and ``is_correction_type`` by ``is_correction_level`` and ``is_correction_mode``. It reads
    no files, so a program that passes a file on may keep some of its keys: a warning for what is spelt like an option, else a
    note.
    """
    takes, declared = known_keys(recipe), recipe.code.declares if recipe.code else {}
    is_file = recipe.launch is None and recipe.file is not None
    for key in recipe.config:
        if key in takes or key in declared or (recipe.code and recipe.code.declares_more):
            continue
        if (short := ambiguous(recipe, key, {**takes, **declared})) is not None:
            yield short
            continue
        other = RENAMED.get(key) if recipe.version >= DOTTED else FLAT.get(key)
        lived = span(key)
        when = "" if lived is None else f"OpenRLHF {text(recipe.version)} does not take it, "
        if f"{CORRECTION}_level" in takes and key in (f"{CORRECTION}_enable", f"{CORRECTION}_type"):
            yield _replaced(recipe, key, f"{when}and argparse stops")
            continue
        why = f"{when}and argparse stops" if lived else f"OpenRLHF has no option {cut(key)}, and argparse stops"
        if is_file and not lived:
            why = f"OpenRLHF has no option {cut(key)}: the program that passes this file on takes it out, or argparse stops"
        near = [other] if other is not None and other in takes else closest_keys(key, takes)
        violation = unknown(recipe, key, near, why)
        yield replace(violation, severity="warning" if near or lived else "note") if is_file else violation


def _replaced(recipe: Recipe, key: str, why: str) -> Violation:
    """Describe one of the two older options of the correction, with the present ones for both."""
    enable, kind = (f"{CORRECTION}_{name}" for name in ("enable", "type"))
    level, mode = TYPES.get(str(recipe.config.get(kind, "tis")), ("token", "mask"))
    new = {f"{CORRECTION}_level": level, f"{CORRECTION}_mode": mode} if enable in recipe.config else {}
    change = {**{name: None for name in (enable, kind) if name in recipe.config}, **new}
    advice = f"Instead: {' and '.join(f'{name}={value}' for name, value in new.items())}." if new else "Remove it."
    return Violation(f"{key}={recipe.config[key]}", why, advice, (key,), (change,))


@recipe_rule("GV604", "error", of=OPENRLHF)
def the_correction_is_possible(recipe: Recipe) -> Iterator[Violation]:
    """The correction of vLLM's log-probabilities clips only ratios of tokens, and a divergence has an upper bound alone.

    OpenRLHF since 0.11.2, when the actor starts (models/loss.py PolicyLoss): "is_correction_mode=clip requires
    is_correction_level=token and is_correction_gating=ratio"; "is_correction_gating=binary_kl takes an upper bound only (a
    single delta)". The default threshold has a lower bound too.
    """
    option = Options.of(values_of(recipe))
    level, mode, gating, threshold = (f"{CORRECTION}_{name}" for name in ("level", "mode", "gating", "threshold"))
    has_level, bounds = level in known_keys(recipe), option.numbers(threshold)
    possible = (1, 2) if has_level else (2,)
    if threshold in recipe.config and threshold not in option.bad and len(bounds) not in possible:
        upper = "OpenRLHF takes an upper bound, or a lower and an upper one"
        why = upper if has_level else "it has a lower and an upper bound"
        count = "one number" if len(bounds) == 1 else f"{len(bounds)} numbers"
        yield Violation(f"{threshold} has {count}", why, "Give two numbers.", (threshold,))
    if not has_level or {level, mode, gating, threshold} & option.bad:
        return
    is_ratio = option.word(gating, "ratio") == "ratio"
    if option.word(mode, "mask") == "clip" and (option.word(level, "off") == "seq" or not is_ratio):
        why, change = "OpenRLHF clips only the ratio of each token", {mode: "mask"}
        yield Violation(f"{mode}=clip", why, f"Set {mode}=mask.", (mode,), (change,))
    if option.word(level, "off") != "off" and not is_ratio and len(bounds) > 1 and bounds[0] > 0:
        default = "" if threshold in recipe.config else " (these are the default)"
        why = f"{gating}={option.word(gating)} has an upper bound only{default}"
        shown = f"{threshold}={' '.join(f'{bound:g}' for bound in bounds)}"
        yield Violation(shown, why, f"Give {threshold} one number.", (threshold, gating))


@recipe_rule("GV602", "error", of=OPENRLHF, by_release=True)
def values_fit_their_options(recipe: Recipe) -> Iterator[Violation]:
    """A value that does not have the option's type, or is not among its choices.

    argparse stops at it: "invalid int value", "invalid choice".
    """
    yield from find_mistyped(recipe, known_keys(recipe))
    if recipe.vendored is None:  # the source in a repository may have other estimators
        yield from find_unknown_words(recipe, choices(recipe.version))
