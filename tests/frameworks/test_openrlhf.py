"""OpenRLHF's launches are linted, fixed and planned, by the release that takes their options."""

import json
from itertools import product
from pathlib import Path

import pytest

from grporecipe.frameworks.openrlhf.recipes import FIELDS, RENAMED, known, releases
from grporecipe.linting.apply_fixes import fix_file
from grporecipe.linting.linter import LintResult, lint_recipe, select_rules
from grporecipe.model.recipe import Recipe
from grporecipe.reading.load import Options, load_recipe
from grporecipe.registries import NEWEST

FLAT = """#!/bin/bash
set -x
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \\
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 --ref_num_nodes 1 --ref_num_gpus_per_node 8 \\
   --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --colocate_all_models --packing_samples \\
   --advantage_estimator group_norm --use_kl_loss --kl_estimator k3 --init_kl_coef 1e-3 \\
   --rollout_batch_size 128 --n_samples_per_prompt 8 --train_batch_size 256 --micro_train_batch_size 8 \\
   --micro_rollout_batch_size 16 --actor_learning_rate 5e-6 --num_episodes 2 --pretrain Qwen/Qwen2.5-7B
"""


def linted(folder: Path, text: str, **more: object) -> LintResult:
    """The answer to a script."""
    path = folder / "run.sh"
    path.write_text(text)
    return lint_recipe(load_recipe(path, Options(**more)))  # type: ignore[arg-type]  # options by name


def errors(result: LintResult) -> set[str]:
    """The codes of its errors."""
    return {finding.code for finding in result.diagnostics if finding.severity == "error"}


def dotted(text: str) -> str:
    """A script with the options' names since 0.10.2."""
    words = [RENAMED.get(word[2:], word[2:]) if word.startswith("--") else word for word in text.split(" ")]
    return " ".join(
        f"--{new}" if old.startswith("--") else new for old, new in zip(text.split(" "), words, strict=True)
    )


def test_a_launch_is_read_in_either_spelling(tmp_path: Path) -> None:
    """A rollout counts prompts, a step completions; the GPUs are the actor's."""
    for text, version in ((FLAT, (0, 10, 1)), (dotted(FLAT), NEWEST["openrlhf"])):
        result = linted(tmp_path, text)
        s = result.setting
        assert (result.recipe.framework, s.version, errors(result)) == ("openrlhf", version, set())
        assert (s.processes, s.prompts_per_rollout, s.prompts_per_step, s.num_generations) == (8, 128, 32, 8)
        assert (s.advantage_estimator, s.kl_placement, s.beta, s.kl_estimator) == ("grpo", "loss", 1e-3, "k3")
        assert (s.epochs, s.learning_rate, s.vllm_tensor_parallel_size) == (2, 5e-6, 2)
        assert (result.plan["completions_per_rollout"], result.plan["steps_per_rollout"]) == (1024, 4)


def test_the_table_has_a_key_behind_each_row_in_the_newest_and_the_last_flat_release() -> None:
    """A row without a name there would never be read."""
    for version, without in (((0, 10, 1), {"actor.min_lr_ratio", "actor.loss_agg_mode"}), (NEWEST["openrlhf"], set())):
        missing = {row.key_at(version) for row in FIELDS} - known(version).keys()
        assert missing == without
    assert releases()[-1] == NEWEST["openrlhf"]


def config(world: int, ring: int, prompts: int, group: int, step: int, micro: int, rollout: int) -> dict[str, object]:
    """Options of these sizes."""
    return {
        "actor.num_gpus_per_node": world, "ref.num_gpus_per_node": world, "ds.ring_attn_size": ring,
        "rollout.batch_size": prompts, "rollout.n_samples_per_prompt": group, "train.batch_size": step,
        "train.micro_batch_size": micro, "rollout.micro_batch_size": rollout, "algo.advantage.estimator": "rloo",
    }  # fmt: skip


def test_sizes_are_refused_if_openrlhf_or_deepspeed_asserts() -> None:
    """train_ppo_ray.py lines 612 and 711, deepspeed.py 456 with DeepSpeed's train = micro x accumulation x world."""
    checked = 0
    for sizes in product((4, 8), (1, 2), (4, 16), (1, 4), (16, 24, 64), (1, 2, 4), (1, 8)):
        world, ring, prompts, group, step, micro, rollout = sizes
        whole = step * ring == micro * (step * ring // micro // world) * world
        fed = group * prompts // rollout >= world // ring
        accepted = group > 1 and whole and fed
        found = errors(lint_recipe(Recipe("openrlhf", (0, 11, 0), config(*sizes)), with_fixes=False))
        assert (found == set()) == accepted, (sizes, found)
        checked += 1
    assert checked == 288


@pytest.mark.parametrize(("old", "new", "code"), [
    ("--vllm_num_engines 4", "--vllm_num_engines 3", "GT601"),
    ("--ref_num_gpus_per_node 8", "--ref_num_gpus_per_node 4", "GT602"),
    ("--vllm_num_engines 4 ", "", "GV603"),
    ("--train_batch_size 256", "--train_batch_size 250", "GB601"),
    ("--micro_rollout_batch_size 16", "--micro_rollout_batch_size 256", "GB602"),
    ("--n_samples_per_prompt 8", "--n_samples_per_prompt 1", "GB302"),
    ("--kl_estimator k3", "--kl_estimator k4", "GV602"),
    ("--packing_samples", "--packing_sampels", "GV601"),
    ("--n_samples_per_prompt 8", "--n_samples_per_prompt 8 --actor 1", "GV601"),  # argparse: ambiguous option
    ("--num_episodes 2", "--num_episodes two", "GV602"),
])  # fmt: skip
def test_a_stop_at_start_is_an_error(old: str, new: str, code: str, tmp_path: Path) -> None:
    """And nothing else is."""
    assert errors(linted(tmp_path, FLAT.replace(old, new))) == {code}
    assert errors(linted(tmp_path, dotted(FLAT.replace(old, new)))) == {code}


@pytest.mark.parametrize(("release", "is_refused"), [("0.7.5", False), ("0.8.0", True), ("0.9.1", True)])
def test_a_rollout_needs_engines_since_0_8(release: str, is_refused: bool, tmp_path: Path) -> None:
    """Before, the actor itself generates without vLLM (OpenRLHF#1082)."""
    script = FLAT.replace("--vllm_num_engines 4", "--vllm_num_engines 0").replace("--packing_samples", "")
    assert errors(linted(tmp_path, script, own_version=release)) == ({"GT603"} if is_refused else set())


def test_a_fix_is_no_number_of_engines_that_another_rule_refuses(tmp_path: Path) -> None:
    """With all models colocated one engine of two GPUs would leave six of the actor's eight (GT601)."""
    script = FLAT.replace("--vllm_num_engines 4", "--vllm_num_engines 0").replace("--packing_samples", "")
    (error,) = linted(tmp_path, script, own_version="0.9.0").diagnostics
    assert [fix.change for fix in error.fixes] == [{"vllm_num_engines": 4}]


def test_a_prefix_of_one_option_is_that_option(tmp_path: Path) -> None:
    """argparse accepts it, in either spelling of the releases."""
    for text in (FLAT, dotted(FLAT)):
        result = linted(
            tmp_path, text.replace("packing_samples", "packing_sample").replace("n_samples_per_prompt", "n_sam")
        )
        assert errors(result) == set()
        assert result.setting.num_generations == 8


@pytest.mark.parametrize(("old", "new", "release", "code"), [
    ("--rollout_batch_size 128", "--rollout_batch_size 100", "0.6.0", "GB604"),
    ("--train_batch_size 256", "--train_batch_size 384", "0.9.0", "GB603"),
    ("--kl_estimator k3", "--kl_estimator k1", "0.9.0", "GK601"),
])  # fmt: skip
def test_findings_follow_the_checks_of_the_release(old: str, new: str, release: str, code: str, tmp_path: Path) -> None:
    """The recipe has none of them before the change."""
    before, after = (linted(tmp_path, text, own_version=release) for text in (FLAT, FLAT.replace(old, new)))
    assert code not in {found.code for found in before.diagnostics}
    assert code in {found.code for found in after.diagnostics}


def test_a_fix_speaks_the_recipe_s_own_options(tmp_path: Path) -> None:
    """A step is in completions there; a YAML of options is edited in place."""
    result = linted(tmp_path, FLAT.replace("--train_batch_size 256", "--train_batch_size 250"))
    assert [dict(fix.change) for fix in result.diagnostics[0].fixes] == [
        {"train_batch_size": 192},
        {"train_batch_size": 256},
    ]
    path = tmp_path / "options.yaml"
    path.write_text(
        "micro_rollout_batch_size: 8\nrollout_batch_size: 64\nn_samples_per_prompt: 8\ntrain_batch_size: 100\n"
    )
    assert fix_file(path, Options(), select_rules(), unsafe=True).judged.results[0].ok
    assert "train_batch_size: 64\n" in path.read_text()


def test_an_option_of_another_release_names_today_s(tmp_path: Path) -> None:
    """With the release stated, a flat option is an error with its new name."""
    result = linted(tmp_path, FLAT, own_version="0.11.0")
    finding = next(found for found in result.diagnostics if found.keys == ("rollout_batch_size",))
    assert finding.code == "GV601"
    assert finding.fixes[0].change == {"rollout_batch_size": None, "rollout.batch_size": "128"}


CORRECTED = dotted(FLAT).rstrip() + " --algo.advantage.is_correction_enable --algo.advantage.is_correction_type {}\n"


@pytest.mark.parametrize(
    ("kind", "level", "mode"), [("tis", "token", "clip"), ("icepop", "token", "mask"), ("seq-mask-tis", "seq", "mask")]
)
def test_the_correction_of_older_releases_gets_its_present_options(
    kind: str, level: str, mode: str, tmp_path: Path
) -> None:
    """It was a fix that argparse refuses: a word for a switch."""
    name = "algo.advantage.is_correction"
    found = [
        one for one in linted(tmp_path, CORRECTED.format(kind), own_version="0.11.2").diagnostics if one.code == "GV601"
    ]
    change = {f"{name}_enable": None, f"{name}_type": None, f"{name}_level": level, f"{name}_mode": mode}
    assert [one.fixes[0].change for one in found] == [change] * 2
    fixed = dotted(FLAT).rstrip() + f" --{name}_level {level} --{name}_mode {mode}\n"
    assert errors(linted(tmp_path, fixed, own_version="0.11.2")) == set()
    assert errors(linted(tmp_path, CORRECTED.format(kind), own_version="0.11.1")) == set()


def test_options_of_the_newest_releases_are_read(tmp_path: Path) -> None:
    """The mean over sequences is another loss; with the unbiased gradient k1 is as good as k3."""
    text = dotted(FLAT).rstrip().replace("k3", "k1") + " {}\n"
    found = linted(tmp_path, text.format("--algo.kl.unbiased_gradient --actor.loss_agg_mode seq-mean-token-mean"))
    assert (found.recipe.version, found.setting.loss_type, errors(found)) == (NEWEST["openrlhf"], "grpo", set())
    assert "GK601" not in {one.code for one in found.diagnostics}
    plain = linted(tmp_path, text.format(""))
    assert (plain.setting.loss_type, "GK601" in {one.code for one in plain.diagnostics}) == ("dapo", True)


def test_keys_as_json_are_told_by_their_names() -> None:
    """A program may ask without a script."""
    from grporecipe.reading.load import build_recipe

    line = json.loads('{"rollout.n_samples_per_prompt": 8, "rollout.batch_size": 64, "train.batch_size": 512}')
    assert build_recipe(line, Options()).framework == "openrlhf"


VERDICTS = [json.loads(line) for line in Path(__file__).with_name("openrlhf_verdicts.jsonl").read_text().splitlines()]


def test_verdicts_are_those_of_openrlhf_s_own_parser_and_assertions(tmp_path: Path) -> None:
    """DeepSpeed's own check (GB601) and the first rollout (GT603) come later than what was run (tools/openrlhf_verdicts.py)."""
    wrong, path = [], tmp_path / "run.sh"
    for row in VERDICTS:
        script = "python3 -m openrlhf.cli.train_ppo_ray " + " ".join(row["arguments"]) + "\n"
        path.write_text(script)
        found = lint_recipe(load_recipe(path, Options(own_version=row["release"])), with_fixes=False)
        codes = errors(found) - {"GB601", "GT603"}
        if bool(codes) != bool(row["refused"]):
            wrong.append((row, codes))
    assert wrong == []
    assert sum(bool(row["refused"]) for row in VERDICTS) > 60


def test_an_option_that_a_fork_s_program_declares_exists(tmp_path: Path) -> None:
    """Its argparse takes it."""
    (tmp_path / ".git").mkdir()
    program = tmp_path / "openrlhf" / "cli" / "train_ppo_ray.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        "from argparse import ArgumentParser\nparser = ArgumentParser()\nparser.add_argument('--own_bonus', type=float)\n"
    )
    found = linted(tmp_path, FLAT.replace("--packing_samples", "--packing_samples --own_bonus 0.1"))
    assert "own_bonus" not in {key for diagnostic in found.diagnostics for key in diagnostic.keys}


def test_the_gpus_of_train_ppo_are_those_of_its_launcher(tmp_path: Path) -> None:
    """Without Ray the options for its nodes say nothing, and eight GPUs were assumed."""
    text = ("deepspeed {} --module openrlhf.cli.train_ppo --pretrain a/b --n_samples_per_prompt 8 --micro_train_batch_size 2 "
            "--train_batch_size 120 --rollout_batch_size 15 --init_kl_coef 0.001 "
            "--actor_learning_rate 5e-7 --prompt_data c\n")  # fmt: skip
    assert "GB601" not in errors(linted(tmp_path, text.format("--include localhost:0,1,4,5")))
    assert "GB601" in errors(linted(tmp_path, text.format("--include localhost:0,1,2,3,4,5,6,7")))
    assert "GB601" not in errors(linted(tmp_path, text.format("")))
