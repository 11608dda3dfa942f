"""Random recipes for ms-swift, broken in known ways: verdicts of its real argument classes compared
with lint's.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from grporecipe.frameworks.ms_swift.keys import VERSION
from grporecipe.linting.linter import LintResult, changed, lint_recipe
from grporecipe.model.planning import completions_per_rollout, micro_steps_per_generation
from grporecipe.model.recipe import Recipe

ASK = Path(__file__).parents[1] / "benchmarks" / "frameworks" / "ms_swift_ask.py"
BASE = {
    "rlhf_type": "grpo",
    "model_type": "qwen2",
    "template": "default",
    "reward_funcs": ["format"],
}
# What the classes say, in the order to look for it, and the rules that say the same.
WORDS = {
    "integer modulo by zero": {"GB102", "GB103"},
    "integer division or modulo by zero": {"GB102", "GB103"},
    "float division by zero": {"GB103"},
    "must be evenly divisible by num_generations (": {"GB101"},
    "The global eval batch size": {"GE101"},
    "must be divisible by the global batch size": {"GB106"},
    "must equal per_device_train_batch_size": {"GB501"},
    "steps_per_generation must be > 0": {"GB103"},
    "num_generations must be greater than 1": {"GB102"},
    "remaining_argv": {"GV501"},
    "ambiguous option": {"GV501"},
    "invalid int value": {"GV502"},
    "invalid float value": {"GV502"},
    "invalid choice": {"GV502", "GL102", "GL103"},
    "Truthy value expected": {"GV502"},
    "expected at least one argument": {"GV502"},
    "expected one argument": {"GV502"},
    "is not a valid": {"GV502"},
    "vllm_mode is": {"GT502"},
    "requires an eval strategy": {"GS106"},
    "--load_best_model_at_end requires": {"GC102"},
    "Got warmup_steps": {"GS105"},
    "AssertionError: The soft_cache_length": {"GV505"},
    "AssertionError: async generate": {"GV505"},
    "AssertionError: Multiple loss types": {"GV505"},
    "AssertionError": {"GT502", "GV505"},
    "ValueError": {"GV505"},
    "NotImplementedError": {"GV505"},
}
# mutants that the classes accept, and that fail in training
LATE = (
    "no group",
    "a loss that is refused late",
    "a mask that is refused late",
)
# rules of which the classes know; others judge what comes later
CHECKED = frozenset({"GL503"}).union(*WORDS.values())


def draw_recipe(random: Random) -> tuple[int, dict[str, Any]]:
    """A number of processes and a recipe that ms-swift takes."""
    processes, size = random.choice([1, 2, 3, 4, 6, 7, 8, 16]), random.choice([1, 2, 4, 6, 8])
    accumulation, steps = random.choice([1, 1, 2, 4]), random.choice([None, None, 1, 2, 3, 4])
    rollout = processes * size * (steps or accumulation)
    groups = [n for n in range(2, min(rollout, 64) + 1) if rollout % n == 0]
    if not groups:
        return draw_recipe(random)
    group = random.choice(groups)
    config: dict[str, Any] = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": accumulation,
        "num_generations": group,
        "tuner_type": random.choice(["full", "lora"]),
        "max_completion_length": random.choice([64, 512, 1024]),
    }
    if steps is not None:
        config |= random.choice(
            [
                {"steps_per_generation": steps},
                {"generation_batch_size": rollout},
                {"steps_per_generation": steps, "generation_batch_size": rollout},
            ]
        )
    config |= (
        _draw_evaluation(random, processes, group)
        | _draw_objective(random)
        | _draw_schedule(random)
    )
    return processes, {**BASE, **config}


def _draw_evaluation(random: Random, processes: int, group: int) -> dict[str, Any]:
    if random.random() < 0.6:
        return {}
    fits = [n for n in range(1, 65) if n * processes % group == 0]
    found: dict[str, Any] = {
        "per_device_eval_batch_size": random.choice(fits or [group]),
        "split_dataset_ratio": 0.01,
    }
    if random.random() < 0.3:
        found["eval_strategy"] = random.choice(["steps", "epoch"])
    return found


def _draw_objective(random: Random) -> dict[str, Any]:
    choices: dict[str, list[Any]] = {
        "beta": [0.0, 0.04, 0.001, "1e-3"],
        "loss_type": ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"],
        "scale_rewards": ["group", "batch", "none", "gdpo"],
        "epsilon_high": [0.28, 0.2],
        "advantage_estimator": ["grpo", "rloo", "reinforce_plus_plus"],
        "kl_in_reward": [True, False],
        "importance_sampling_level": ["token", "sequence", "sequence_token"],
        "temperature": [1.0, 0.9, 0.7],
        "num_iterations": [1, 2],
        "sync_ref_model": [True, False],
    }
    return {
        name: random.choice(values) for name, values in choices.items() if random.random() < 0.25
    }


def _draw_schedule(random: Random) -> dict[str, Any]:
    choices: dict[str, list[Any]] = {
        "num_train_epochs": [1, 2, 0.5],
        "max_steps": [100, 10],
        "learning_rate": [1e-6, "1e-5", 1e-4],
        "warmup_ratio": [0.05, 0.1],
        "lr_scheduler_type": ["cosine", "linear", "constant"],
        "save_steps": [50, 100],
        "eval_steps": [50, 100],
        "bf16": [False],
    }
    return {
        name: random.choice(values) for name, values in choices.items() if random.random() < 0.25
    }


# One way each to break a valid recipe; most of them break every one.
MUTATIONS: dict[str, dict[str, Any]] = {
    "a group too large": {"num_generations": 97},
    "a group of one": {"num_generations": 1},
    "no group": {"num_generations": 0},
    "an odd rollout": {"generation_batch_size": 101, "steps_per_generation": None},
    "two sizes that disagree": {"generation_batch_size": 96, "steps_per_generation": 7},
    "no steps a generation": {"steps_per_generation": 0, "generation_batch_size": None},
    "negative steps a generation": {"steps_per_generation": -1, "generation_batch_size": None},
    "an evaluation batch of broken groups": {
        "split_dataset_ratio": 0.1,
        "num_generations_eval": 89,
        "eval_strategy": "steps",
    },
    "a loss that is refused late": {"loss_type": "real"},
    "a mask that is refused late": {"off_policy_sequence_mask_delta": 1.0},
    "a typo": {"num_generation_per_prompt": 4},
    "another library's word": {"group_size": 8},
    "an older word": {"train_type": "full"},
    "a word that went": {"vllm_device": "auto"},
    "words for a number": {"per_device_train_batch_size": "many"},
    "a fraction for a count": {"num_generations": 8.5},
    "null for a number": {"num_generations": "NULL"},
    "another tuner's choice": {"scale_rewards": "fast"},
    "a level that is none": {"importance_sampling_level": "paragraph"},
    "an estimator that is none": {"advantage_estimator": "ppo"},
    "a mode without vLLM": {"vllm_mode": "colocate"},
    "vLLM without a mode": {"use_vllm": True},
    "vLLM in a place that is none": {"use_vllm": True, "vllm_mode": "elsewhere"},
    "a server without address": {"use_vllm": True, "vllm_mode": "server"},
    "warmup twice": {"warmup_ratio": 0.1, "warmup_steps": 10},
    "a warmup of the whole run": {"warmup_ratio": 1.0, "warmup_steps": None},
    "prompts cut on the right": {"truncation_strategy": "right"},
    "cached data": {"cached_dataset": ["somewhere"]},
    "two losses": {"loss_type": ["grpo", "dapo"]},
    "soft_overlong without its length": {"reward_funcs": ["soft_overlong"]},
    "a reference with an adapter": {"tuner_type": "lora", "ref_model": "somewhere", "beta": 0.1},
    "generating ahead without a server": {"async_generate": True},
    "a reasoning parser": {"vllm_reasoning_parser": "qwen3"},
    "a plateau that is not watched": {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "eval_strategy": "no",
    },
    "no padding without flash attention": {"padding_free": True},
    "words for a flag": {"sync_ref_model": "maybe"},
    "a strategy that is none": {"save_strategy": "often"},
    "an empty list": {"reward_weights": []},
    "the best of what is not evaluated": {
        "load_best_model_at_end": True,
        "eval_strategy": "epoch",
        "save_strategy": "steps",
        "split_dataset_ratio": 0.1,
    },
}


def mutate(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A recipe broken in a named way."""
    change = MUTATIONS[name]
    kept = {key: value for key, value in config.items() if key not in change}
    return kept | {
        key: None if value == "NULL" else value
        for key, value in change.items()
        if value is not None
    }


def build_recipe(processes: int, config: dict[str, Any]) -> Recipe:
    """As lint gets it."""
    return Recipe("ms-swift", VERSION, config, processes)


def to_argv(config: dict[str, Any]) -> list[str]:
    """The words that `swift rlhf FILE` makes of a YAML: cli/main.py parse_yaml_args."""
    words: list[str] = []
    for key, value in config.items():
        words += [f"--{key}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return words


def ask(
    python: str, model: str, cases: Iterable[tuple[int, dict[str, Any]]]
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The versions behind an interpreter, and its answer to each recipe over a model and data in a
    folder.
    """
    files = ["--model", f"{model}/model", "--dataset", f"{model}/train.jsonl"]
    lines = [
        json.dumps({"processes": n, "argv": [*files, *to_argv(config)]}) for n, config in cases
    ]
    done = subprocess.run(
        [python, str(ASK)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    versions, *answers = (
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    )
    return versions, answers


@dataclass
class Comparison:
    """Counts of one run, and every case where the two sides differ."""

    versions: dict[str, str] = field(default_factory=dict)
    accepted: int = 0
    refused: int = 0
    fixes: int = 0
    derived: int = 0
    # refused mutants
    by_mutation: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    # recipes with what the classes said
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    # by lint
    flagged: int = 0
    rightly: int = 0

    @property
    def precision(self) -> float:
        """Of the recipes that lint refuses, the share that ms-swift refuses too (or that is known
        to fail late).
        """
        return self.rightly / self.flagged

    @property
    def recall(self) -> float:
        """Of the recipes that fail, the share that lint refuses."""
        return self.rightly / sum(is_broken(line) for line in self.verdicts)

    @property
    def right(self) -> float:
        """The share of recipes that lint judges rightly."""
        broken = sum(is_broken(line) for line in self.verdicts)
        return (len(self.verdicts) - self.flagged - broken + 2 * self.rightly) / len(self.verdicts)

    @property
    def fine(self) -> float:
        """The share of recipes that work, all of which a linter that always says ok judges
        rightly.
        """
        return 1 - sum(is_broken(line) for line in self.verdicts) / len(self.verdicts)

    def kept(self, most: int) -> list[dict[str, Any]]:
        """Some verdicts of each kind."""
        seen, found = Counter[str](), []
        for line in self.verdicts:
            seen[line["mutation"]] += 1
            if seen[line["mutation"]] <= most * (6 if not line["mutation"] else 1):
                found.append(line)
        return found


def is_broken(line: dict[str, Any]) -> bool:
    """Whether a recorded recipe fails, early or late."""
    return bool(line["error"]) or line["mutation"] in LATE


def compare(python: str, model: str, count: int, seed: int) -> Comparison:
    """Judge recipes, half of them mutants, by lint and by the real classes; then let these judge
    the fixes.
    """
    random, done = Random(seed), Comparison()
    drawn = [draw_recipe(random) for _ in range(count)]
    named = [("", *case) for case in drawn]
    for n, (processes, config) in enumerate(drawn):
        name = list(MUTATIONS)[n % len(MUTATIONS)]
        named.append((name, processes, mutate(config, name)))
    done.versions, answers = ask(python, model, [case[1:] for case in named])
    repaired = []
    for (name, processes, config), answer in zip(named, answers, strict=True):
        verdict = lint_recipe(build_recipe(processes, config))
        _compare_one(name, verdict, answer, done)
        repaired += _repaired(verdict)
    for (processes, config), answer in zip(repaired, ask(python, model, repaired)[1], strict=True):
        done.fixes += 1
        if answer["error"]:
            done.differences.append(f"a fix is refused: {config} on {processes}: {answer['error']}")
    return done


def codes_of(verdict: LintResult) -> set[str]:
    """The errors of lint that the argument classes could see."""
    return {
        finding.code for finding in verdict.diagnostics if finding.severity == "error"
    } & CHECKED


def agrees(verdict: LintResult, error: str) -> bool:
    """Both accept, or both refuse and for the same reason."""
    reason = next((codes for words, codes in WORDS.items() if words in error), set[str]())
    return bool(reason & codes_of(verdict)) if error else not codes_of(verdict)


def _compare_one(name: str, verdict: LintResult, answer: dict[str, Any], done: Comparison) -> None:
    error = answer["error"]
    done.accepted += not error
    done.refused += bool(error)
    if name and error:
        done.by_mutation[name] += 1
    line = {
        "mutation": name,
        "processes": verdict.recipe.processes,
        "config": verdict.recipe.config,
        "error": error,
    }
    done.verdicts.append(line)
    done.flagged += bool(codes_of(verdict))
    done.rightly += bool(codes_of(verdict)) and is_broken(line)
    where = f"{name or 'drawn'}: {dict(verdict.recipe.config)} on {verdict.recipe.processes}"
    if not agrees(verdict, error) and name not in LATE:
        done.differences.append(f"{where}: lint {sorted(codes_of(verdict))}, ms-swift {error!r}")
    if not error:
        done.derived += 1
        done.differences += [f"{where}: {text}" for text in _misread(verdict, answer["derived"])]


def _misread(verdict: LintResult, derived: dict[str, Any]) -> list[str]:
    """Where the setting is not what ms-swift made of the recipe."""
    s = verdict.setting
    made = {
        "generation_batch_size": completions_per_rollout(s),
        "steps_per_generation": micro_steps_per_generation(s),
        "gradient_accumulation_steps": s.gradient_accumulation_steps,
        "learning_rate": s.learning_rate,
        "beta": s.kl_reward_coefficient or s.beta,
        "loss_type": s.loss_type,
        "scale_rewards": s.scale_rewards,
        "eval_strategy": s.eval_strategy,
        "temperature": s.temperature,
        "lr_scheduler_type": s.lr_scheduler_type,
        "warmup_steps": s.warmup_steps,
        "max_completion_length": s.max_completion_length,
        "dataloader_drop_last": s.dataloader_drop_last,
        "max_steps": -1 if s.max_steps is None else s.max_steps,
    }
    if s.max_steps is None:
        made["num_train_epochs"] = s.epochs
    return [
        f"{name} read as {value}, is {derived[name]}"
        for name, value in made.items()
        if value != derived[name]
    ]


def _repaired(verdict: LintResult) -> list[tuple[int, dict[str, Any]]]:
    """The recipe after each repair of its only error."""
    errors = [finding for finding in verdict.diagnostics if finding.severity == "error"]
    if len(errors) != 1 or errors[0].code not in CHECKED:
        return []
    after = [changed(verdict.recipe, repair.change) for repair in errors[0].fixes]
    # A server would be connected to.
    return [
        (recipe.processes or 1, dict(recipe.config))
        for recipe in after
        if recipe.config.get("vllm_mode") != "server"
    ]
