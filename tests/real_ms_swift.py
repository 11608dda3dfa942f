"""Random recipes for ms-swift, broken in known ways: verdicts of its real argument classes compared
with lint's.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from grporecipe.files import Json
from grporecipe.frameworks.ms_swift.keys import VERSION
from grporecipe.linting.linter import LintResult, changed, lint_recipe
from grporecipe.model.planning import completions_per_rollout, micro_steps_per_generation
from grporecipe.model.recipe import Recipe
from real_asker import BENCHMARKS, TABLES, Answers, ask

ASK = BENCHMARKS / "frameworks" / "ms_swift_ask.py"
BASE = {
    "rlhf_type": "grpo",
    "model_type": "qwen2",
    "template": "default",
    "reward_funcs": ["format"],
}
# What the classes say, in the order to look for it, and the rules that say the same.
WORDS = {words: set(codes) for words, codes in TABLES["ms-swift"]["words"].items()}
# mutants that the classes accept, and that fail in training
LATE = (
    "no group",
    "a loss that is refused late",
    "a mask that is refused late",
)
# rules of which the classes know; others judge what comes later
CHECKED = frozenset({"GL503"}).union(*WORDS.values())


def draw_recipe(random: Random) -> tuple[int, Json]:
    """A number of processes and a recipe that ms-swift takes."""
    processes = random.choice([1, 2, 3, 4, 6, 7, 8, 16])
    size = random.choice([1, 2, 4, 6, 8])
    accumulation = random.choice([1, 1, 2, 4])
    steps = random.choice([None, None, 1, 2, 3, 4])
    rollout = processes * size * (steps or accumulation)
    groups = [n for n in range(2, min(rollout, 64) + 1) if rollout % n == 0]
    if not groups:
        return draw_recipe(random)
    group = random.choice(groups)
    config: Json = {
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
    config |= _draw_evaluation(random, processes, group) | _draw_others(random)
    return processes, {**BASE, **config}


def _draw_evaluation(random: Random, processes: int, group: int) -> Json:
    if random.random() < 0.6:
        return {}
    fits = [n for n in range(1, 65) if n * processes % group == 0]
    found: Json = {
        "per_device_eval_batch_size": random.choice(fits or [group]),
        "split_dataset_ratio": 0.01,
    }
    if random.random() < 0.3:
        found["eval_strategy"] = random.choice(["steps", "epoch"])
    return found


def _draw_others(random: Random) -> Json:
    """A quarter of the keys that need no other one."""
    choices: dict[str, list[Any]] = TABLES["ms-swift"]["choices"]
    return {
        name: random.choice(values) for name, values in choices.items() if random.random() < 0.25
    }


# One way each to break a valid recipe; most of them break every one.
MUTATIONS: dict[str, Json] = TABLES["ms-swift"]["mutations"]


def mutate(config: Json, name: str) -> Json:
    """A recipe broken in a named way."""
    change = MUTATIONS[name]
    kept = {key: value for key, value in config.items() if key not in change}
    return kept | {
        key: None if value == "NULL" else value
        for key, value in change.items()
        if value is not None
    }


def build_recipe(processes: int, config: Json) -> Recipe:
    """As lint gets it."""
    return Recipe("ms-swift", VERSION, config, processes)


def to_argv(config: Json) -> list[str]:
    """The words that `swift rlhf FILE` makes of a YAML: cli/main.py parse_yaml_args."""
    words: list[str] = []
    for key, value in config.items():
        words += [f"--{key}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return words


def ask_recipes(python: str, model: str, cases: Iterable[tuple[int, Json]]) -> Answers:
    """The versions behind an interpreter, and its answer to each recipe over a model and data in a
    folder.
    """
    files = ["--model", f"{model}/model", "--dataset", f"{model}/train.jsonl"]
    requests = ({"processes": n, "argv": [*files, *to_argv(config)]} for n, config in cases)
    return ask(python, ASK, requests)


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
    verdicts: list[Json] = field(default_factory=list)
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

    def kept(self, most: int) -> list[Json]:
        """Some verdicts of each kind."""
        seen = Counter[str]()
        found = []
        for line in self.verdicts:
            seen[line["mutation"]] += 1
            if seen[line["mutation"]] <= most * (6 if not line["mutation"] else 1):
                found.append(line)
        return found


def is_broken(line: Json) -> bool:
    """Whether a recorded recipe fails, early or late."""
    return bool(line["error"]) or line["mutation"] in LATE


def compare(python: str, model: str, count: int, seed: int) -> Comparison:
    """Judge recipes, half of them mutants, by lint and by the real classes; then let these judge
    the fixes.
    """
    random = Random(seed)
    done = Comparison()
    drawn = [draw_recipe(random) for _ in range(count)]
    named = [("", *case) for case in drawn]
    for n, (processes, config) in enumerate(drawn):
        name = list(MUTATIONS)[n % len(MUTATIONS)]
        named.append((name, processes, mutate(config, name)))
    done.versions, answers = ask_recipes(python, model, [case[1:] for case in named])
    repaired = []
    for (name, processes, config), answer in zip(named, answers, strict=True):
        verdict = lint_recipe(build_recipe(processes, config))
        _compare_one(name, verdict, answer, done)
        repaired += _repaired(verdict)
    for (processes, config), answer in zip(
        repaired, ask_recipes(python, model, repaired)[1], strict=True
    ):
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


def _compare_one(name: str, verdict: LintResult, answer: Json, done: Comparison) -> None:
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


def _misread(verdict: LintResult, derived: Json) -> list[str]:
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


def _repaired(verdict: LintResult) -> list[tuple[int, Json]]:
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
