"""Verdicts of a real TRL compared with those of the rules, on random settings in their native
configuration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from grporecipe.files import Json
from grporecipe.model import planning
from grporecipe.model.setting import Setting, Version
from grporecipe.rules.check import check, errors
from grporecipe.rules.fixes import changed, find_fixes
from real_asker import BENCHMARKS, TABLES, Answers, ask

ASK = BENCHMARKS / "trl_versions" / "ask.py"
# The rules that TRL applies while it builds its configuration (or, before 0.18, its trainer), by its
# words for them.
WORDS: dict[str, str] = TABLES["trl"]["words"]
CHECKED = frozenset(WORDS.values())
# The releases that added keys which are drawn.
REUSE, ROLLOUTS, OWN_EVAL, HUB, CLIPS = (0, 16), (0, 18), (0, 26), (0, 28), (1, 6)


def draw_setting(random: Random, version: Version) -> Setting:
    """A setting that is valid about half of the time."""
    processes = random.choice([1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9])
    size = random.choice([1, 2, 3, 4, 6, 8, 12, 16])
    drawn: Json = {
        "num_generations": random.choice([*[2, 3, 4, 4, 6, 8] * 4, 0, 1, 14]),
        "gradient_accumulation_steps": random.choice([1, 1, 2, 3, 4, 6, 8]),
        "num_iterations": random.randint(1, 3),
        "evaluates": random.random() < 0.3,
        "do_eval": random.random() < 0.5,
        "per_device_eval_batch_size": random.choice([2, 4, 8, 8, 12, 24, 24]),
    }
    if version >= ROLLOUTS:
        drawn |= _draw_rollout(random, processes * size, size)
    if version >= OWN_EVAL:
        drawn["num_generations_eval"] = random.choice([None, None, 0, 1, 2, 4, 8])
    drawn |= _draw_seldom(random, version)
    strategy = "steps" if drawn["evaluates"] else "no"
    return Setting(
        version=version,
        processes=processes,
        per_device_train_batch_size=size,
        max_steps=10,
        epochs=None,
        loss_type="grpo",
        eval_strategy=strategy,
        eval_steps=5 if drawn["evaluates"] else None,
        given=frozenset({"max_steps"}),
        **drawn,
    )


def _draw_rollout(random: Random, unit: int, size: int) -> Json:
    """None, one or (seldom) both of the two keys that size a rollout."""
    whole = unit * random.randint(1, 4)
    torn = size * random.randint(1, 9)
    rollout = random.choice([*[None] * 6, whole, whole, torn, random.randint(1, 64)])
    per = random.choice([None, None, 1, 2, 3, 4, 8])
    return {
        "generation_batch_size": rollout,
        "steps_per_generation": None if rollout and random.random() < 0.9 else per,
    }


def _draw_seldom(random: Random, version: Version) -> Json:
    """Keys that are mostly left alone."""
    drawn: Json = {"lr_scheduler_type": random.choice([*["linear"] * 9, "reduce_lr_on_plateau"])}
    if random.random() < 0.06:
        drawn |= {
            "load_best_model_at_end": True,
            "save_strategy": random.choice(["steps", "steps", "epoch"]),
        }
        drawn["save_steps"] = random.choice([3, 5, 10])
    if version >= (1, 9):
        drawn["auto_find_batch_size"] = random.random() < 0.05
    if version >= HUB:
        drawn |= {
            "log_completions": random.random() < 0.5,
            "log_completions_hub_repo": random.choice([None] * 9 + ["a/b"]),
        }
    if version >= CLIPS:
        drawn |= {
            "vllm_importance_sampling_mode": random.choice(["sequence_mask", "token_truncate"]),
            "vllm_importance_sampling_clip_min": random.choice([None, None, 0.5, 0.5, 3.0]),
            "vllm_importance_sampling_clip_max": random.choice([None, 2.0, *[3.5] * 8]),
            "vllm_importance_sampling_correction": random.random() < 0.5,
        }
    return drawn


def checked(version: Version) -> frozenset[str]:
    """The rules that a release applies by itself; 0.14 takes groups of one, whose advantage is not
    a number.
    """
    return CHECKED if version >= (0, 15) else CHECKED - {"GB102"}


def to_native(s: Setting) -> Json:
    """The keyword arguments of TRL's configuration."""
    names = [
        "num_generations",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "per_device_eval_batch_size",
        "do_eval",
        "eval_strategy",
        "lr_scheduler_type",
        "load_best_model_at_end",
    ]
    names += ["num_iterations"] if s.version >= REUSE else []
    names += ["generation_batch_size", "steps_per_generation"] if s.version >= ROLLOUTS else []
    names += ["num_generations_eval"] if s.version >= OWN_EVAL else []
    names += ["auto_find_batch_size"] if s.version >= (1, 9) else []
    names += ["log_completions", "log_completions_hub_repo"] if s.version >= HUB else []
    if s.version >= CLIPS:
        names += [
            f"vllm_importance_sampling_{name}"
            for name in ("mode", "clip_min", "clip_max", "correction")
        ]
    names += [
        name
        for name in ("eval_steps", "save_steps", "save_strategy")
        if getattr(s, name) is not None
    ]
    return {name: getattr(s, name) for name in names}


@dataclass
class Comparison:
    """Counts of one run, and every case where the two sides differ."""

    versions: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    accepted: int = 0
    refused: int = 0
    fixes: int = 0
    differences: list[str] = field(default_factory=list)


def compare(python: str, version: Version, count: int, seed: int) -> Comparison:
    """Judge random settings by the rules and by the TRL of an interpreter, then let it judge the
    fixes.
    """
    random = Random(seed)
    done = Comparison()
    settings = [draw_setting(random, version) for _ in range(count)]
    done.versions, answers = ask_settings(python, settings)
    for s, answer in zip(settings, answers, strict=True):
        _compare_one(s, answer, done)
    proposed = [repaired for s in settings for repaired in fixed(s)]
    for s, answer in zip(proposed, ask_settings(python, proposed)[1], strict=True):
        done.fixes += 1
        if answer["error"]:
            done.differences.append(
                f"a fix is refused: {to_native(s)} on {s.processes}: {answer['error']}"
            )
    return done


def _compare_one(s: Setting, answer: Json, done: Comparison) -> None:
    done.asked += 1
    codes = {problem.code for problem in errors(check(s))} & checked(s.version)
    error = answer["error"]
    if error:
        done.refused += 1
        reason = next((code for words, code in WORDS.items() if words in error), "?")
        # old releases list the numbers that work
        agreed = reason in codes or (reason == "GB101" and "GB102" in codes)
    else:
        done.accepted += 1
        agreed = not codes
    if not agreed:
        done.differences.append(
            f"{to_native(s)} on {s.processes}: rules {sorted(codes)}, TRL {error!r}"
        )
    derived = answer["derived"]
    if not error and derived.get("steps_per_generation") and not _misread(s):
        made = planning.completions_per_rollout(s), planning.micro_steps_per_generation(s)
        if made != (derived["generation_batch_size"], derived["steps_per_generation"]):
            done.differences.append(f"{to_native(s)} on {s.processes}: plan {made}, TRL {derived}")


def _misread(s: Setting) -> bool:
    return any(problem.code in ("GB201", "GB110") for problem in check(s))


def fixed(s: Setting) -> list[Setting]:
    """The setting after each of its fixes, where one problem is all that is wrong."""
    found = errors(check(s))
    if len(found) != 1 or found[0].code not in CHECKED:
        return []
    return [changed(s, dict(fix.change)) for fix in find_fixes(s, found[0])]


# Values of transformers' own arguments, most of them good.
ARGUMENTS: dict[str, list[Any]] = TABLES["trl"]["arguments"]


def draw_arguments(random: Random) -> Json:
    """A few of transformers' arguments, the first value of each most often."""
    names = random.sample(sorted(ARGUMENTS), random.randint(1, 5))
    return {name: random.choice([*ARGUMENTS[name][:1] * 2, *ARGUMENTS[name]]) for name in names}


def ask_settings(python: str, settings: Sequence[Setting]) -> Answers:
    """The versions behind an interpreter, and its answer to each setting."""
    requests = ({"processes": s.processes, "config": to_native(s)} for s in settings)
    return ask(python, ASK, requests)
