"""The examples of docs/guides/extending.md: each is written to files, registered by its line, and
run.
"""

import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from grporecipe import registries as recipe_registries
from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import read_json
from grporecipe.linting.apply_fixes import fix_file
from grporecipe.linting.linter import LintResult, lint_recipe, select_rules
from grporecipe.model import planning
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.reading._detect import detect_framework
from grporecipe.reading.load import Options, load_recipe
from grporecipe.registries import Lazy
from grporecipe.rules import fixes
from grporecipe.rules import registry as registry_of_rules
from grporecipe.rules.registry import RECIPE_RULES, REGISTRY
from grposweep.config.compose import render_experiment, to_experiment
from grposweep.schema import Experiment
from grposweep.schema import registries as sweep_registries
from grposweep.schema.registries import Policy, TaskLoader
from in_process import Sweep
from support import PROJECT, lines, trials, wait_for

PAGE = (PROJECT / "docs" / "guides" / "extending.md").read_text()
EXAMPLE = re.compile(
    r"^`([\w/.]+)`(?:, in `(\w+)`)?:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
REGISTRIES = {
    "src/grporecipe/registries.py": recipe_registries,
    "src/grposweep/schema/registries.py": sweep_registries,
}


@pytest.fixture(autouse=True)
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the page's files where grposweep's packages find them, and add its lines to the
    registries.
    """
    codes = {*REGISTRY, *RECIPE_RULES}
    modules = set()
    for path, registry, text in EXAMPLE.findall(PAGE):
        if path in REGISTRIES:
            monkeypatch.setitem(getattr(REGISTRIES[path], registry), *entry(text))
            continue
        assert not (PROJECT / path).exists(), f"{path} is no example any more"
        written = tmp_path / path
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text)
        if path.startswith("src/"):
            modules.add(module_of(path))
            extend_package(tmp_path, Path(path), monkeypatch)
    yield tmp_path
    for rules in (REGISTRY, RECIPE_RULES):
        for code in rules.keys() - codes:
            del rules[code]
    for value in (*vars(registry_of_rules).values(), *vars(fixes).values()):
        # they hold the page's rule
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    for module in modules:
        sys.modules.pop(module, None)


def entry(line: str) -> tuple[str, Any]:
    """Return the name and the value of a registry's line."""
    added = eval(f"{{{line.strip()}}}", {"Lazy": Lazy, "Policy": Policy, "TaskLoader": TaskLoader})
    assert len(added) == 1
    return next(iter(added.items()))


def module_of(path: str) -> str:
    """Return the name under which a file of src/ is imported."""
    return ".".join(Path(path).with_suffix("").parts[1:]).removesuffix(".__init__")


def extend_package(root: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the package that an example belongs to look into the example's folder as well."""
    folder = path.parent if (PROJECT / path.parent).is_dir() else path.parent.parent
    package = import_module(".".join(folder.parts[1:]))
    places = dict.fromkeys([*package.__path__, str(root / folder)])
    monkeypatch.setattr(package, "__path__", list(places))


def judged(folder: Path, name: str, text: str) -> LintResult:
    """Return the verdict on a recipe."""
    (folder / name).write_text(text)
    return lint_recipe(load_recipe(folder / name, Options(processes=1)))


def test_the_page_has_an_example_of_everything() -> None:
    """A line for each registry but those of samplers and trackers; rules and rewards need none."""
    added = {registry for path, registry, _ in EXAMPLE.findall(PAGE) if path in REGISTRIES}
    assert added == {"TASKS", "POLICIES", "FRAMEWORKS", "LAUNCHERS"}


def test_the_reward_judges_completions(examples: Path) -> None:
    """Loaded from its file, as ``task.rewards`` names it."""
    from grposweep.train.rewards import load_reward

    reward = load_reward(f"{examples / 'rewards.py'}:brevity")
    assert reward(["a", "b"], ["", "x" * 50]) == [1.0, 0.5]


def test_the_rule_finds_its_problem_and_a_fix(examples: Path) -> None:
    """In a recipe of TRL, and not in a good one."""
    recipe = "per_device_train_batch_size: 8\nnum_generations: {}\nbeta: 0.04\n"
    assert "GB901" not in {
        found.code for found in judged(examples, "before.yaml", recipe.format(2)).diagnostics
    }
    import_module("grporecipe.rules.house")
    found = {
        finding.code: finding
        for finding in judged(examples, "small.yaml", recipe.format(2)).diagnostics
    }
    assert found["GB901"].message.startswith(
        "num_generations=2: the mean of so few rewards is a noisy baseline."
    )
    assert found["GB901"].fixes[0].change == {"num_generations": 4}
    assert "GB901" not in {
        finding.code for finding in judged(examples, "fine.yaml", recipe.format(4)).diagnostics
    }


def test_the_task_yields_rows(examples: Path) -> None:
    """Its option composes, and its rows become training and held-out prompts."""
    from grposweep.train.tasks import load_data

    with initialize_config_dir(config_dir=str(PROJECT / "conf"), version_base="1.3"):
        composed = compose(
            "config", ["task=reverse", f"hydra.searchpath=['file://{examples}/conf']"]
        )
    task = to_experiment(composed).task
    data = load_data(task)
    assert data.counts() == {"train_prompts": 296, "eval_prompts": 64}
    assert data.train[0]["answer"] == data.train[0]["prompt"].removesuffix("=")[::-1]


@pytest.mark.slow
def test_the_policy_stops_a_trial_of_a_sweep(sweep_here: Sweep) -> None:
    """The one that gets worse from evaluation to evaluation; the other one finishes."""
    folder = sweep_here(
        "trainer=fake",
        "name=s",
        "schedule=steps",
        "schedule.max_steps=64",
        "schedule.evaluations=16",
        "trainer.args.step_seconds=0.05",
        "search.guards=false",
        "search.stopping=patience",
        "lr=1e-7,1e-3",
    )
    results = [read_json(trial / "result.json") or {} for trial in trials(folder)]
    assert [result["status"] for result in results] == ["pruned", "finished"]
    reasons = [(read_json(trial / "control.json") or {}).get("reason") for trial in trials(folder)]
    assert reasons[0] == "no improvement in 3 evaluations"


def test_the_framework_is_linted_fixed_and_planned(examples: Path) -> None:
    """A recipe with a mistake in a size, and one with a mistake in a key."""
    import_module("grporecipe.frameworks.toyrl.rules")
    recipe = (
        "rollout_prompts: 64  # prompts\nstep_prompts: 24\ngroup: 8\niterations: 100\ngpus: 4\n"
    )
    verdict = judged(examples, "wrong.yaml", recipe)
    assert [found.code for found in verdict.diagnostics if found.severity == "error"] == ["GB902"]
    typo = judged(examples, "typo.yaml", recipe.replace("24", "32").replace("group", "grup"))
    assert [found.code for found in typo.diagnostics if found.severity == "error"] == ["GV901"]
    assert fix_file(examples / "wrong.yaml", Options(), select_rules(), unsafe=True).result.ok
    s = read_recipe(load_recipe(examples / "wrong.yaml", Options())).setting
    assert s.framework == FRAMEWORKS["toyrl"].traits
    assert (examples / "wrong.yaml").read_text() == recipe.replace("24", str(s.prompts_per_step))
    sizes = (
        planning.completions_per_rollout(s),
        planning.completions_per_step(s),
        planning.total_steps(s),
    )
    assert sizes in {(512, 128, 400), (512, 256, 200)}


def test_the_framework_s_command_line_is_detected_and_read(examples: Path) -> None:
    """Flat flags, its own command, processes from the environment, rollouts as steps; other keys
    are others' still.
    """
    (examples / "run.sh").write_text(
        "#!/bin/bash\nexport NPROC_PER_NODE=4\ntoyrl train --rollout_prompts 64 --step_prompts "
        "32 --group 8 \\\n"
        "    --rate 1e-5 --iterations 100\n"
    )
    recipe = load_recipe(examples / "run.sh", Options())
    s = read_recipe(recipe).setting
    assert (recipe.framework, recipe.processes, s.framework) == (
        "toyrl",
        4,
        FRAMEWORKS["toyrl"].traits,
    )
    assert (s.prompts_per_rollout, s.prompts_per_step, s.num_generations, s.learning_rate) == (
        64,
        32,
        8,
        1e-5,
    )
    # two optimizer steps per rollout
    assert (s.max_steps, s.lines["prompts_per_step"]) == (100 * 2, 3)
    keys = ("rollout_prompts", "num_generations", "actor_rollout_ref.rollout.n")
    assert [detect_framework({key: 8}) for key in keys] == ["toyrl", "trl", "verl"]


@pytest.mark.slow
def test_the_launcher_runs_a_sweep_at_the_lowest_priority(sweep_here: Sweep) -> None:
    """Each trial finishes; what the launcher cannot do is refused before anything starts."""
    fake = ("trainer=fake", "cluster.kind=nice", "cluster.gpus=0")
    folder = sweep_here(*fake, "name=s", "search.parallel=2", "lr=1e-4,1e-3")
    assert [(read_json(trial / "result.json") or {})["status"] for trial in trials(folder)] == [
        "finished"
    ] * 2
    ids = [
        event["job_id"]
        for trial in trials(folder)
        for event in lines(trial / "attempts.jsonl")
        if "job_id" in event
    ]
    assert all(job_id.startswith("local-nice-") for job_id in ids)
    with pytest.raises(UserError, match=r"cluster\.kind=nice runs one process"):
        sweep_here(*fake, "name=t", "cluster.processes=2", "lr=1e-4")


@pytest.mark.slow
def test_the_launcher_sets_the_priority_and_ends_what_runs(tmp_path: Path) -> None:
    """An attempt that hangs is killed."""
    from grposweep.launchers import build_launcher
    from grposweep.launchers.base import Job

    experiment = Experiment()
    experiment.trainer.kind = "fake"
    experiment.cluster.kind = "nice"
    experiment.trainer.args = {"hang_at": 2}
    experiment.schedule.max_steps = 50
    experiment.batch.per_device_train_batch_size = experiment.batch.gradient_accumulation_steps = 8
    launcher = build_launcher(experiment, tmp_path)
    folder = tmp_path / "trials" / "0000-abcdef"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(render_experiment(experiment))
    job_id = launcher.submit(Job(folder, 0, experiment.cluster))
    assert os.getpriority(os.PRIO_PROCESS, int(job_id.removeprefix("local-nice-"))) == 19
    wait_for((folder / "heartbeat").exists)
    assert launcher.poll(job_id) is None
    launcher.cancel(job_id)
    wait_for(lambda: launcher.poll(job_id) is not None)
    launcher.close()
