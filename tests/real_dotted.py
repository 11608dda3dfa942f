"""Recipes for EasyR1 and verl drawn at random, broken in known ways, and judged by their own code
in their environment.
"""

import json
import random
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grporecipe.linting.apply_fixes import render_value
from grporecipe.linting.linter import LintResult, changed, lint_recipe
from grporecipe.reading.load import Options, build_recipe

ASKS = Path(__file__).resolve().parents[1] / "benchmarks" / "frameworks"
PROMPTS = 4096
Config = dict[str, Any]
Mutation = Callable[[Config, random.Random], Config]
A, R, F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
W, D = "worker.actor", "data"


@dataclass(frozen=True)
class Peer:
    """A framework to compare with: how recipes are drawn and broken, and what it accepts
    silently.
    """

    name: str
    draw: Callable[[random.Random], Config]
    wild: Callable[[random.Random], Config]
    mutations: dict[str, Mutation]
    # mutations that it accepts, and trains something else than was written
    silent: frozenset[str]
    # the codes that say so
    silences: frozenset[str]


def numbers(rng: random.Random) -> dict[str, int]:
    """Sizes that fit together: processes, completions, prompts per step and a rollout,
    micro-batches.
    """
    processes, group = rng.choice([1, 2, 4, 8, 16]), rng.randint(2, 8)
    step = processes * rng.randint(1, 6)
    rollout = step * rng.randint(1, 4)
    each = step * group // processes
    divisors = [n for n in range(1, each + 1) if each % n == 0]
    return {
        "processes": processes,
        "group": group,
        "step": step,
        "rollout": rollout,
        "micro": rng.choice(divisors),
    }


def draw_easyr1(rng: random.Random) -> Config:
    """A recipe that EasyR1 takes."""
    n = numbers(rng)
    return {
        f"{D}.rollout_batch_size": n["rollout"],
        "worker.rollout.n": n["group"],
        f"{W}.global_batch_size": n["step"],
        f"{W}.micro_batch_size_per_device_for_update": n["micro"],
        f"{W}.micro_batch_size_per_device_for_experience": rng.choice(
            [n["group"], n["processes"], 1]
        ),
        f"{W}.ppo_epochs": rng.choice([1, 1, 2]),
        f"{W}.dynamic_batching": rng.random() < 0.5,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": n["processes"],
        "worker.rollout.tensor_parallel_size": 1,
        "algorithm.use_kl_loss": rng.random() < 0.7,
        "algorithm.kl_penalty": rng.choice(["low_var_kl", "mse"]),
        "algorithm.kl_coef": rng.choice([1e-3, 0.01]),
        f"{W}.loss_avg_mode": rng.choice(["token", "seq"]),
    }


def wild_easyr1(rng: random.Random) -> Config:
    """Sizes at random, which seldom fit."""
    return draw_easyr1(rng) | {
        f"{D}.rollout_batch_size": rng.choice([8, 12, 16, 24, 32]),
        "worker.rollout.n": rng.randint(1, 6),
        f"{W}.global_batch_size": rng.choice([1, 2, 4, 8, 12]),
        "trainer.n_gpus_per_node": rng.choice([1, 2, 3, 4, 8]),
        f"{W}.micro_batch_size_per_device_for_update": rng.choice([1, 1, 2, 4]),
        f"{W}.micro_batch_size_per_device_for_experience": rng.choice([1, 2, 3, 4]),
        f"{W}.ulysses_size": rng.choice([1, 1, 1, 2]),
        "worker.rollout.tensor_parallel_size": rng.choice([1, 1, 2]),
        f"{D}.mini_rollout_batch_size": rng.choice([None, None, 4, 8]),
        f"{W}.fsdp.enable_cpu_offload": rng.random() < 0.2,
    }


def draw_verl(rng: random.Random) -> Config:
    """A recipe that verl takes."""
    n = numbers(rng)
    each = n["rollout"] * n["group"] // n["processes"]
    log = rng.choice([size for size in range(1, each + 1) if each % size == 0])
    return {
        "algorithm.adv_estimator": "grpo",
        f"{R}.name": "vllm",
        "data.train_batch_size": n["rollout"],
        f"{R}.n": n["group"],
        f"{A}.ppo_mini_batch_size": n["step"],
        f"{A}.ppo_micro_batch_size_per_gpu": n["micro"],
        f"{R}.log_prob_micro_batch_size_per_gpu": log,
        f"{F}.log_prob_micro_batch_size_per_gpu": log,
        f"{A}.ppo_epochs": rng.choice([1, 1, 2]),
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": n["processes"],
        f"{R}.tensor_model_parallel_size": 1,
        f"{A}.use_kl_loss": rng.random() < 0.7,
        f"{A}.kl_loss_type": rng.choice(["low_var_kl", "k3+", "mse"]),
        f"{A}.kl_loss_coef": rng.choice([1e-3, 0.01]),
        f"{A}.loss_agg_mode": rng.choice(["token-mean", "seq-mean-token-mean"]),
    }


def wild_verl(rng: random.Random) -> Config:
    """Sizes at random, which seldom fit."""
    return draw_verl(rng) | {
        "data.train_batch_size": rng.choice([6, 8, 12, 16, 32]),
        f"{R}.n": rng.randint(2, 6),
        f"{A}.ppo_mini_batch_size": rng.choice([2, 4, 8, 12, 16]),
        "trainer.n_gpus_per_node": rng.choice([1, 2, 3, 4, 8]),
        f"{A}.ppo_micro_batch_size_per_gpu": rng.choice([1, 1, 2, 3]),
        f"{R}.log_prob_micro_batch_size_per_gpu": rng.choice([1, 1, 2]),
        f"{A}.use_dynamic_bsz": rng.random() < 0.3,
        f"{F}.log_prob_micro_batch_size_per_gpu": rng.choice([1, 2]),
        f"{R}.tensor_model_parallel_size": rng.choice([1, 1, 2]),
        f"{A}.fsdp_config.ulysses_sequence_parallel_size": rng.choice([1, 1, 1, 2]),
        "data.gen_batch_size": rng.choice([None, None, None, 4]),
    }


def off(key: str, other: str) -> Mutation:
    """A size that divides no product of another one and the group, because it is larger."""

    def mutate(config: Config, _: random.Random) -> Config:
        group = config.get("worker.rollout.n", config.get(f"{R}.n", 1))
        return config | {key: config[other] * group + 1}

    return mutate


def set_to(key: str, *values: Any) -> Mutation:
    """One of several values."""
    return lambda config, rng: config | {key: rng.choice(values)}


def both(*mutations: Mutation) -> Mutation:
    """One after the other."""

    def mutate(config: Config, rng: random.Random) -> Config:
        for one in mutations:
            config = one(config, rng)
        return config

    return mutate


def uneven(key: str, step: str) -> Mutation:
    """Two steps and one prompt more, where a step has at least two."""
    return lambda config, _: (
        config | {step: max(config[step], 2), key: max(config[step], 2) * 2 + 1}
    )


KL_ON = set_to("algorithm.use_kl_loss", True)
EASYR1 = Peer(
    "easyr1",
    draw_easyr1,
    wild_easyr1,
    {
        "a rollout of uneven steps": uneven(f"{D}.rollout_batch_size", f"{W}.global_batch_size"),
        "a micro-batch that divides no step": off(
            f"{W}.micro_batch_size_per_device_for_update", f"{W}.global_batch_size"
        ),
        "log-probabilities in parts": off(
            f"{W}.micro_batch_size_per_device_for_experience", f"{D}.rollout_batch_size"
        ),
        "a group of one": set_to("worker.rollout.n", 1),
        "a group of none": set_to("worker.rollout.n", 0),
        "no micro-batch": set_to(f"{W}.micro_batch_size_per_device_for_update", 0),
        "no rollout": set_to(f"{D}.rollout_batch_size", 0),
        "a step smaller than the ranks": both(
            set_to("trainer.n_gpus_per_node", 64), set_to(f"{W}.global_batch_size", 1)
        ),
        "offload and accumulation": both(
            set_to(f"{W}.fsdp.enable_cpu_offload", True),
            set_to(f"{W}.micro_batch_size_per_device_for_update", 1),
            lambda c, _: (
                c
                | {
                    f"{W}.global_batch_size": c["trainer.n_gpus_per_node"] * 2,
                    f"{D}.rollout_batch_size": c["trainer.n_gpus_per_node"] * 4,
                }
            ),
            set_to(f"{W}.micro_batch_size_per_device_for_experience", 1),
        ),
        "an uneven portion": both(
            set_to("trainer.n_gpus_per_node", 4),
            set_to(f"{D}.rollout_batch_size", 32),
            set_to(f"{W}.global_batch_size", 8),
            set_to(f"{W}.micro_batch_size_per_device_for_update", 1),
            set_to(f"{W}.micro_batch_size_per_device_for_experience", 1),
            set_to(f"{D}.mini_rollout_batch_size", 6, 10, 18),
        ),
        "engines of three": both(set_to("worker.rollout.tensor_parallel_size", 3, 5)),
        "sequences shared by three": set_to(f"{W}.ulysses_size", 3, 5, 32),
        "a short engine": set_to("worker.rollout.max_num_batched_tokens", 64, 512),
        "the estimator full": set_to("algorithm.kl_penalty", "full"),
        "an unknown estimator": set_to("algorithm.kl_penalty", "k3", "low_var", "lowvarkl"),
        "an unknown controller": set_to("algorithm.kl_type", "adaptiv", "none"),
        "no horizon": both(
            set_to("algorithm.kl_type", "adaptive"), set_to("algorithm.kl_horizon", 0.0, -1.0)
        ),
        "an unknown advantage": set_to("algorithm.adv_estimator", "grop", "dapo"),
        "an unknown schedule": set_to(f"{W}.optim.lr_scheduler_type", "linear", "cosin"),
        "an unknown average": set_to(f"{W}.loss_avg_mode", "tokens", "sequence"),
        "a key of 0.2": set_to(f"{W}.kl_loss_coef", 1e-3),
        "a key of verl": set_to(f"{W}.ppo_mini_batch_size", 64),
        "a key misspelt": set_to(f"{D}.rolout_batch_size", 64),
        "a word for a number": set_to(f"{W}.global_batch_size", "eight"),
        "a fraction for a count": set_to("worker.rollout.n", 4.5),
        "nothing for a count": set_to("worker.rollout.n", None),
        "too few prompts": set_to(f"{D}.rollout_batch_size", 2 * PROMPTS),
        "k1 as a loss": both(KL_ON, set_to("algorithm.kl_penalty", "kl")),
        "a negative coefficient": set_to("algorithm.kl_coef", -0.01, -1.0),
        "a dual clip of one": set_to(f"{W}.clip_ratio_dual", 1.0, 0.5),
        "an unknown loss": set_to(f"{W}.loss_type", "gsop", "ppo"),
    },
    frozenset({"k1 as a loss", "a negative coefficient", "a dual clip of one", "an unknown loss"}),
    frozenset({"GK302", "GK308", "GL301"}),
)
VERL = Peer(
    "verl",
    draw_verl,
    wild_verl,
    {
        "a rollout that GPUs cannot share": both(
            set_to("trainer.n_gpus_per_node", 16),
            set_to(f"{R}.n", 3),
            set_to("data.train_batch_size", 65, 70),
        ),
        "a rollout smaller than a step": lambda c, _: (
            c | {f"{A}.ppo_mini_batch_size": c["data.train_batch_size"] * 2}
        ),
        "no micro-batch": set_to(f"{A}.ppo_micro_batch_size_per_gpu", None),
        "a micro-batch of none": set_to(f"{A}.ppo_micro_batch_size_per_gpu", 0),
        "a micro-batch said twice": set_to(f"{A}.ppo_micro_batch_size", 8),
        "a micro-batch of all GPUs": lambda c, _: {
            **c,
            f"{A}.ppo_micro_batch_size_per_gpu": None,
            f"{A}.ppo_micro_batch_size": c[f"{A}.ppo_mini_batch_size"],
        },
        "no size for log-probabilities": set_to(f"{R}.log_prob_micro_batch_size_per_gpu", None),
        "no size for the reference": both(
            set_to(f"{A}.use_kl_loss", True), set_to(f"{F}.log_prob_micro_batch_size_per_gpu", None)
        ),
        "log-probabilities in parts": off(
            f"{R}.log_prob_micro_batch_size_per_gpu", "data.train_batch_size"
        ),
        "a reference in parts": both(
            set_to(f"{A}.use_kl_loss", True),
            off(f"{F}.log_prob_micro_batch_size_per_gpu", "data.train_batch_size"),
        ),
        "a micro-batch that divides no step": off(
            f"{A}.ppo_micro_batch_size_per_gpu", f"{A}.ppo_mini_batch_size"
        ),
        "a step that ranks cannot share": both(
            set_to("trainer.n_gpus_per_node", 8),
            set_to(f"{R}.n", 2),
            set_to("data.train_batch_size", 64),
            set_to(f"{A}.ppo_mini_batch_size", 2, 6),
        ),
        "an uneven fetch": lambda c, _: (
            c
            | {
                "data.gen_batch_size": max(c["data.train_batch_size"] - 1, 2)
                if c["data.train_batch_size"] > 3
                else 3
            }
        ),
        "engines of three": set_to(f"{R}.tensor_model_parallel_size", 3, 5),
        "sequences shared by three": set_to(
            f"{A}.fsdp_config.ulysses_sequence_parallel_size", 3, 5
        ),
        "shared sequences with padding": both(
            set_to("trainer.n_gpus_per_node", 2),
            set_to(f"{A}.ulysses_sequence_parallel_size", 2),
            set_to("actor_rollout_ref.model.use_remove_padding", False),
        ),
        "a model over three": both(
            set_to(f"{A}.strategy", "megatron"),
            set_to(f"{A}.megatron.tensor_model_parallel_size", 3),
        ),
        "two kinds of micro-batch": set_to(f"{R}.log_prob_use_dynamic_bsz", True),
        "an unknown average": set_to(f"{A}.loss_agg_mode", "token", "seq-mean"),
        "an unknown schedule": set_to(
            f"{A}.optim.lr_scheduler_type", "linear", "constant_with_warmup"
        ),
        "a key of EasyR1": set_to(f"{A}.global_batch_size", 64),
        "a key misspelt": set_to("data.train_batchsize", 64),
        "a key added twice": set_to("+trainer.total_epochs", 3),
        "an unknown estimator": both(
            set_to(f"{A}.use_kl_loss", True), set_to(f"{A}.kl_loss_type", "k4", "low_var")
        ),
        "the estimator full": both(
            set_to("algorithm.use_kl_in_reward", True), set_to("algorithm.kl_penalty", "full")
        ),
        "an unknown controller": both(
            set_to("algorithm.use_kl_in_reward", True), set_to("algorithm.kl_ctrl.type", "none")
        ),
        "no horizon": both(
            set_to("algorithm.use_kl_in_reward", True),
            set_to("algorithm.kl_ctrl.type", "adaptive"),
            set_to("algorithm.kl_ctrl.horizon", 0),
        ),
        "a dual clip of one": set_to(f"{A}.clip_ratio_c", 1.0, 0.5),
        "a synchronous engine": set_to(f"{R}.mode", "sync"),
        "a group of one": set_to(f"{R}.n", 1),
        "k1 as a loss": both(
            set_to(f"{A}.use_kl_loss", True), set_to(f"{A}.kl_loss_type", "kl", "k1")
        ),
        "a negative coefficient": both(
            set_to(f"{A}.use_kl_loss", True), set_to(f"{A}.kl_loss_coef", -0.01)
        ),
    },
    frozenset({"a group of one", "k1 as a loss", "a negative coefficient"}),
    frozenset({"GB302", "GK302", "GK308"}),
)
PEERS = {peer.name: peer for peer in (EASYR1, VERL)}


@dataclass
class ValidatedSpace:
    """One recipe with both verdicts; ``kind`` names the mutation, empty where it was drawn."""

    kind: str
    config: Config
    error: str
    codes: list[str]

    @property
    def is_bad(self) -> bool:
        """Refused by the framework, or broken in a way that it does not notice."""
        return bool(self.error)


@dataclass
class Comparison:
    """All recipes of one framework."""

    versions: dict[str, str] = field(default_factory=dict)
    judged: list[ValidatedSpace] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    fixes: int = 0
    accepted: int = 0
    mutants: int = 0

    def rates(self, peer: Peer) -> tuple[float, float, float, float]:
        """Precision and recall of lint, recipes that it judges rightly, and those that an always-ok
        linter does.
        """
        truth = [one.is_bad or one.kind in peer.silent for one in self.judged]
        said = [bool(one.codes) for one in self.judged]
        hits = sum(t and s for t, s in zip(truth, said, strict=True))
        right = sum(t == s for t, s in zip(truth, said, strict=True))
        return (
            hits / max(sum(said), 1),
            hits / max(sum(truth), 1),
            right / len(truth),
            1 - sum(truth) / len(truth),
        )

    def kept(self, of_each: int) -> Iterator[dict[str, Any]]:
        """Some recipes of each kind with the framework's verdict."""
        seen: dict[tuple[str, bool], int] = defaultdict(int)
        for one in self.judged:
            key = one.kind, bool(one.error)
            seen[key] += 1
            if seen[key] <= of_each:
                yield {
                    "kind": one.kind,
                    "config": one.config,
                    "error": one.error.splitlines()[0][:160] if one.error else "",
                }


class Asker:
    """A process that answers for a framework."""

    def __init__(self, python: str, name: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [python, str(ASKS / f"{name}_ask.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=ASKS,
        )
        self.versions: dict[str, str] = self._line()

    def ask(self, config: Config) -> str:
        """The error that a recipe meets, at once or late; empty where it trains."""
        assert self.process.stdin is not None
        self.process.stdin.write(
            json.dumps({"overrides": words(config), "prompts": PROMPTS}) + "\n"
        )
        self.process.stdin.flush()
        answer = self._line()
        return answer["error"] or answer.get("late", "")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)

    def _line(self) -> dict[str, str]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))


def words(config: Config) -> list[str]:
    """A recipe as the words of a command line."""
    return [f"{key}={render_value(value)}" for key, value in config.items()]


def lint(name: str, config: Config) -> LintResult:
    """What lint says."""
    return lint_recipe(build_recipe(config, Options(name, train_prompts=PROMPTS)))


def errors(verdict: LintResult) -> list[str]:
    """The codes of all errors."""
    return sorted({finding.code for finding in verdict.diagnostics if finding.severity == "error"})


def compare(peer: Peer, asker: Asker, count: int, seed: int) -> Comparison:
    """Draw, break and judge; then the fixes of what both refuse."""
    rng, done = random.Random(seed), Comparison(asker.versions)
    kinds = list(peer.mutations)
    for n in range(count):
        config = peer.draw(rng)
        kind = kinds[n % len(kinds)]
        for label, recipe in (
            ("", config),
            (kind, peer.mutations[kind](dict(config), rng)),
            ("wild", peer.wild(rng)),
        ):
            _judge(peer, asker, done, label, recipe)
    return done


def _judge(peer: Peer, asker: Asker, done: Comparison, kind: str, config: Config) -> None:
    verdict, error = lint(peer.name, config), asker.ask(config)
    codes = errors(verdict)
    done.judged.append(ValidatedSpace(kind, config, error, codes))
    done.accepted += not error
    done.mutants += kind not in ("", "wild")
    heard = [code for code in codes if code not in peer.silences]
    if (bool(error) != bool(heard) and kind not in peer.silent) or (
        kind in peer.silent and not codes
    ):
        done.differences.append(f"{kind or 'drawn'}: {error!r} {codes} {config}")
    if error and len(codes) == 1:
        _fixes(peer, asker, done, verdict, codes[0])


def _fixes(peer: Peer, asker: Asker, done: Comparison, verdict: LintResult, code: str) -> None:
    """Each fix of a recipe with a single problem is taken by the framework."""
    for finding in verdict.diagnostics:
        if finding.code != code or sum(other.code == code for other in verdict.diagnostics) > 1:
            continue
        for repair in finding.fixes:
            fixed = dict(changed(verdict.recipe, repair.change).config)
            done.fixes += 1
            if error := asker.ask(fixed):
                done.differences.append(f"fix of {code} {dict(repair.change)}: {error!r} {fixed}")
