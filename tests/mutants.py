"""Mutation testing of a sample: `make mutants`, or `python tests/mutants.py [COUNT [SEED
[PART...]]]` with cosmic-ray.

Each mutant changes one place of a copy of the last commit, and the tests near it are run. What
survives is printed as a diff.
"""

import random
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.plugins import get_operator
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import MutationSpec, TestOutcome

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = Path("src")
# for the tests of one mutant; one that hangs is killed by that
SECONDS = 900.0
# what is mutated, and the folders or files whose tests of the default tier are run
NEAR = {
    "grporecipe/model/planning.py": (
        "test_planning.py",
        "test_planning_trained.py",
        "test_cost.py",
        "rules/test_rules_in_prompts.py",
    ),
    "grporecipe/rules/fixes.py": ("rules/test_fixes.py", "linting/test_fixing_files.py"),
    "grporecipe/rules": ("rules", "linting/test_keys_and_versions.py"),
    "grposweep/search": ("search", "sweep/test_early_stopping.py"),
    "grposweep/sweep": ("sweep", "fuzz/test_queue.py", "faults/test_controller_states.py"),
    "grposweep/launchers": ("launchers",),
    "grposweep/storage": (
        "storage",
        "train/test_checkpoints.py",
        "fuzz/test_sweep_files.py",
        "sweep/test_resume.py",
        "sweep/test_rerun.py",
        "sweep/test_warm_start.py",
        "launchers/slurm/test_slurm_launcher.py",
    ),
}
SWAPS = {
    "ReplaceBinaryOperator": (
        "Add_Sub",
        "Sub_Add",
        "Mul_Div",
        "Div_Mul",
        "FloorDiv_Div",
        "Mod_Mul",
    ),
    "ReplaceComparisonOperator": (
        "Eq_NotEq",
        "NotEq_Eq",
        "Lt_LtE",
        "LtE_Lt",
        "Gt_GtE",
        "GtE_Gt",
        "Lt_Gt",
        "Gt_Lt",
        "Is_IsNot",
        "IsNot_Is",
    ),
}
OPERATORS = [
    *(f"core/{kind}_{swap}" for kind, swaps in SWAPS.items() for swap in swaps),
    *(
        f"core/{name}"
        for name in (
            "AddNot",
            "ReplaceUnaryOperator_Delete_Not",
            "ReplaceTrueWithFalse",
            "ReplaceFalseWithTrue",
            "ReplaceAndWithOr",
            "ReplaceOrWithAnd",
            "ReplaceBreakWithContinue",
            "ReplaceContinueWithBreak",
            "ExceptionReplacer",
            "NumberReplacer",
            "ZeroIterationForLoop",
        )
    ),
]


def mutants(module: Path) -> Iterator[MutationSpec]:
    """Yield the mutants of a module, one for each operator at each place that it fits."""
    tree = get_ast(module.read_text())
    for name in OPERATORS:
        operator = get_operator(name)()
        places = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(places):
            yield MutationSpec(module, name, occurrence, start, end)


def sample(
    source: Path, count: int, seed: int, parts: Sequence[str] = tuple(NEAR)
) -> list[tuple[str, MutationSpec]]:
    """Return as many mutants of each part, no two of one place."""
    chance = random.Random(seed)
    found = []
    for part in parts:
        root = source / part
        places: dict[tuple[Path, tuple[int, int]], list[MutationSpec]] = {}
        for module in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            for mutant in mutants(module):
                places.setdefault((module, mutant.start_pos), []).append(mutant)
        chosen = chance.sample(sorted(places, key=str), min(-(-count // len(parts)), len(places)))
        found += [(part, chance.choice(places[place])) for place in chosen]
    chance.shuffle(found)
    return found[:count]


def main(count: int = 70, seed: int = 0, parts: Sequence[str] = ()) -> int:
    """Test a sample of mutants; return 1 if fewer than nine of ten are killed."""
    killed = tried = 0
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        archive = subprocess.run(
            ["git", "-C", str(PROJECT), "archive", "HEAD"], capture_output=True, check=True
        )
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as file:
            file.extractall(copy, filter="data")
        is_green: dict[str, bool] = {}
        for part, mutant in sample(copy / SOURCE, count, seed, parts or tuple(NEAR)):
            # tests that fail anyway would kill everything
            if part not in is_green:
                outcome, output = run_tests(near_tests(copy, part), SECONDS)
                is_green[part] = outcome is TestOutcome.SURVIVED
                print(
                    f"{part}: its tests "
                    f"{'pass' if is_green[part] else f'FAIL without a mutant: {output[-2000:]}'}",
                    flush=True,
                )
            if not is_green[part]:
                continue
            result = mutate_and_test(
                [mutant], near_tests(copy, part, mutant.module_path.stem), SECONDS
            )
            tried += 1
            killed += result.test_outcome is TestOutcome.KILLED
            where = (
                f"{mutant.module_path.relative_to(copy)}:{mutant.start_pos[0]} "
                f"{mutant.operator_name}"
            )
            print(f"{killed} of {tried} killed; {result.test_outcome}: {where}", flush=True)
            if result.test_outcome is not TestOutcome.KILLED:
                print(result.diff or result.output, flush=True)
    print(f"{killed} of {tried} mutants killed")
    return int(killed < 0.9 * tried or not all(is_green.values()))


def near_tests(copy: Path, part: str, module: str = "") -> str:
    """Return the command that runs the tests near a part, those that are named like the module
    first: they kill soonest.
    """
    own = sorted((copy / "tests").rglob(f"test_{module}.py"))
    near = dict.fromkeys(map(str, [*own, *(copy / "tests" / name for name in NEAR[part])]))
    pytest = ["-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    place = ["env", f"PYTHONPATH={copy / 'src'}", f"--chdir={copy}"]
    return shlex.join([*place, str(PROJECT / ".venv" / "bin" / "python"), *pytest, *near])


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), parts=sys.argv[3:]))
