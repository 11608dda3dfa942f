"""Recipes for EasyR1 and verl drawn at random, broken in known ways, and judged by their own code
in their environment.
"""

import json
import random
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from grporecipe.files import Json
from grporecipe.linting.apply_fixes import render_value
from grporecipe.linting.linter import LintResult, changed, lint_recipe
from grporecipe.reading.load import Options, build_recipe
from real_asker import BENCHMARKS, TABLES

ASKS = BENCHMARKS / "frameworks"
PROMPTS = 4096
Config = Json
Draw = Callable[[random.Random], Config]
Mutation = Callable[[Config, random.Random], Config]
A, R, F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
W = "worker.actor"
D = "data"


@dataclass(frozen=True)
class Peer:
    """A framework to compare with: how recipes are drawn and broken, and what it accepts
    silently.
    """

    name: str
    draw: Draw
    wild: Draw
    mutations: dict[str, Mutation]
    # mutations that it accepts, and trains something else than was written
    silent: frozenset[str]
    # the codes that say so
    silences: frozenset[str]


def numbers(rng: random.Random) -> dict[str, int]:
    """Sizes that fit together: processes, completions, prompts per step and a rollout,
    micro-batches.
    """
    processes = rng.choice([1, 2, 4, 8, 16])
    group = rng.randint(2, 8)
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


def _off(config: Config, key: str, other: str) -> Config:
    """A size that divides no product of another one and the group, because it is larger."""
    group = config.get("worker.rollout.n", config.get(f"{R}.n", 1))
    return {key: config[other] * group + 1}


def _uneven(config: Config, key: str, step: str) -> Config:
    """Two steps and one prompt more, where a step has at least two."""
    size = max(config[step], 2)
    return {step: size, key: size * 2 + 1}


def _times(config: Config, key: str, product: tuple[str, int]) -> Config:
    """A multiple of another size."""
    other, factor = product
    return {key: config[other] * factor}


def _fewer(config: Config, key: str, other: str) -> Config:
    """A size that does not divide another one."""
    return {key: max(config[other] - 1, 2) if config[other] > 3 else 3}


SIZES = {"off": _off, "uneven": _uneven, "times": _times, "fewer": _fewer}


def mutate(changes: list[Json], config: Config, rng: random.Random) -> Config:
    """The recipe after one way to break it, as mutations.yaml writes it."""
    for change in changes:
        for key, values in change.items():
            if isinstance(values, list):
                config = config | {key: rng.choice(values)}
            elif isinstance(values, dict):
                ((how, other),) = values.items()
                config = config | SIZES[how](config, key, other)
            else:
                config = config | {key: values}
    return config


def read_peer(name: str, draw: Draw, wild: Draw) -> Peer:
    """The framework with its mutations."""
    row = TABLES[name]
    ways = {kind: partial(mutate, changes) for kind, changes in row["mutations"].items()}
    return Peer(name, draw, wild, ways, frozenset(row["silent"]), frozenset(row["silences"]))


PEERS = {
    "easyr1": read_peer("easyr1", draw_easyr1, wild_easyr1),
    "verl": read_peer("verl", draw_verl, wild_verl),
}


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

    def kept(self, of_each: int) -> Iterator[Json]:
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
    rng = random.Random(seed)
    done = Comparison(asker.versions)
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
    verdict = lint(peer.name, config)
    error = asker.ask(config)
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
