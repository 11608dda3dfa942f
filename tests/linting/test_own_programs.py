"""Whose program is it? A launch is judged by a framework only if its program uses that framework.

Each case is a false error of an earlier release on a public repository.
"""

from pathlib import Path

import pytest

from grporecipe.errors import NotARecipe
from grporecipe.linting.linter import Diagnostic, lint_recipe
from grporecipe.reading.load import Options, load_recipe, load_recipes
from verdicts import codes_of, error_codes, findings_of

LAUNCH = "export CUDA_VISIBLE_DEVICES=0,1\npython train.py --num_generations 8 --beta 0.1\n"
OWN = (
    "import argparse\nimport torch\nfrom training import "
    "GRPOTrainer\nargparse.ArgumentParser().parse_args()\n"
)
VERL = (
    "python3 -m verl.{} data.train_batch_size=64 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=64 {}\n"
)


def write(folder: Path, **files: str) -> Path:
    """A repository with these files; names have double underscores for slashes. Return its
    run.sh.
    """
    (folder / ".git").mkdir()
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace(
            "_yaml", ".yaml"
        ).replace("_sh", ".sh")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "run.sh"


def errors(path: Path, version: str | None = None) -> list[Diagnostic]:
    """The errors of a recipe."""
    return [d for d in findings_of(path, own_version=version) if d.severity == "error"]


@pytest.mark.parametrize(
    "inside", ["from trl import GRPOTrainer\n", "import importlib\nimportlib.import_module(name)\n"]
)
def test_a_program_that_may_use_trl_is_judged(tmp_path: Path, inside: str) -> None:
    """TRL behind an import of the repository, or one that only running it would tell."""
    run = write(tmp_path, run_sh=LAUNCH, train_py=OWN, training_py=f"import torch\n{inside}")
    assert [found.code for found in errors(run)] == ["GT105"]


TRAIN = (
    "from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser\nargs, _ = "
    "TrlParser((GRPOConfig, ModelConfig))"
)
TRAIN += ".parse_args_and_config()\nGRPOTrainer(reward_funcs=[len], args=args, train_dataset=1)\n"


@pytest.mark.parametrize(
    ("option", "stops"),
    [
        ("--num_train_epoch 6", False),
        ("--per_device_train_b 8", False),
        ("--num_gen 8", True),
        ("--lr_sch cosine", True),
        # each key is also an option with dashes
        ("--learning 1e-5", True),
    ],
)
def test_a_prefix_of_one_option_is_that_option(option: str, stops: bool, tmp_path: Path) -> None:
    """As argparse reads it (checked with TRL's own parser): it stops at a prefix of several."""
    run = write(tmp_path, run_sh=f"torchrun train.py --beta 0.1 {option}\n", train_py=TRAIN)
    found = lint_recipe(load_recipe(run, Options()))
    assert ("GV102" in error_codes(found.diagnostics)) is stops
    assert found.setting.epochs == (6 if "epoch" in option else 3)


def test_a_recipe_in_a_variable_is_judged_with_the_program_next_to_it(tmp_path: Path) -> None:
    """Its own keys are known, and its parser decides what happens to others."""
    own = (
        "from dataclasses import dataclass\n@dataclass\nclass Own:\n    data_id: str = ''\n"
        + TRAIN.replace("(GRPOConfig, ModelConfig)", "(Own, GRPOConfig)")
    )
    yaml = (
        "num_generations: 8\nper_device_train_batch_size: 8\nlearning_rate: 1.0e-6\ndata_id: "
        "a\nlab_project: b\n"
    )
    write(tmp_path, run_sh="", train__script__r_yaml=yaml, train__main_py=own)
    recipe = tmp_path / "train/script/r.yaml"
    assert [d.keys for d in errors(recipe, "1.16")] == [("lab_project",)]
    (tmp_path / "train/main.py").write_text(
        own.replace("config()", "config(fail_with_unknown_args=False)")
    )
    assert errors(recipe, "1.16") == []


def test_a_verl_next_to_the_script_is_not_what_runs_if_it_refuses_a_release_s_keys(
    tmp_path: Path,
) -> None:
    """A copy for evaluation; one above the script is what Python imports."""
    line = VERL.format("trainer.main_ppo", "+actor_rollout_ref.rollout.n_val=4")
    config = (
        "data: {train_batch_size: 1}\nactor_rollout_ref: {rollout: {n: 1, n_val: 8}, "
        "actor: {ppo_mini_batch_size: 1}}\n"
    )
    for place, refuses in (("copy/", False), ("", True)):
        folder = tmp_path / f"repository{refuses}"
        (folder / f"{place}verl/trainer/config").mkdir(parents=True)
        (folder / f"{place}verl/trainer/config/ppo_trainer.yaml").write_text(config)
        write(folder, scripts__run_sh=line)
        assert ("GV402" in codes_of(errors(folder / "scripts/run.sh"))) is refuses


@pytest.mark.parametrize(
    "path",
    [
        "PYTHONPATH=lib ",
        "export PYTHONPATH=$PWD/lib:$PYTHONPATH\n",
        'PYTHONPATH="$HOME_OF_IT/lib" ',
    ],
)
@pytest.mark.parametrize("inside", ["import torch\n", "from trl import GRPOTrainer\n"])
def test_programs_and_imports_are_found_by_the_script_s_pythonpath(
    inside: str, path: str, tmp_path: Path
) -> None:
    """A program with a trainer of its own is not judged; one whose trainer is TRL's is."""
    launch = LAUNCH.replace("python train.py", f"{path}python -m own.train_grpo")
    run = write(tmp_path, run_sh=launch, lib__own__train_grpo_py=OWN, lib__training_py=inside)
    if "trl" in inside:
        assert [found.code for found in errors(run)] == ["GT105"]
        return
    with pytest.raises(NotARecipe, match=r"train_grpo has a trainer of its own"):
        load_recipe(run, Options())


LOADER = (
    "import argparse, yaml\nfrom trl import GRPOConfig, GRPOTrainer\np = "
    "argparse.ArgumentParser()\n"
    "p.add_argument('--config')\nc = yaml.safe_load(open(p.parse_args().config))\n"
    "GRPOTrainer(args=GRPOConfig(beta=c['beta']), reward_funcs=[len], "
    "train_dataset=c['train_file'])\n"
)


def test_keys_of_a_recipe_that_the_program_loads_itself_are_its_own(tmp_path: Path) -> None:
    """In the script and in the recipe that the script names. Its argparse stops at other
    options.
    """
    yaml = (
        "num_generations: 8\nbeta: 0.1\nmax_steps: 2\nlearning_rate: 1.0e-6\ntrain_file: "
        "a\npatience: 3\n"
    )
    run = write(
        tmp_path,
        run_sh="accelerate launch -m own.train_rl --config conf/r.yaml\n",
        src__own__train_rl_py=LOADER,
        conf__r_yaml=yaml,
    )
    assert errors(run, "1.16") == errors(tmp_path / "conf/r.yaml", "1.16") == []


STOCK = "accelerate launch train.py --num_generations 8 --importance_sampling_level item\n"
SWIFT = "swift rlhf --rlhf_type grpo --loss_type real --external_plugins plugins/p.py\n"
TO_SITE = "T=$(python -c 'import trl; print(trl.__file__)')\ncp libs/trl/grpo.py $T\n"


@pytest.mark.parametrize(
    ("script", "name", "text", "why"),
    [
        (STOCK, "requirements.txt", "trl==0.21.0", ""),
        (STOCK, "requirements.txt", "git+https://github.com/huggingface/trl.git@v0.21.0", ""),
        (STOCK, "requirements.txt", "git+https://github.com/me/trl.git", "requirements.txt"),
        (STOCK, "pyproject.toml", "[tool.uv.sources]\ntrl={git='https://a.b/me/trl'}", "pyproj"),
        (STOCK, "INSTALL.SH", TO_SITE, "INSTALL.SH copies files"),
        (SWIFT, "plugins/p.py", "import swift\norms['a'] = 1\n", ""),
        (SWIFT, "plugins/p.py", "from swift import mixin\nmixin.teach = ours\n", "p.py replaces"),
        (SWIFT, "plugins/p.py", "import swift, torch\ntorch.backends.x.y = fast\n", ""),
        (STOCK, "setup.sh", "S=/opt/site-packages\ncp configs/trl/ds.json ~/cache\n", ""),
    ],
)
def test_what_stock_code_refuses_is_a_note_where_other_code_trains(
    script: str, name: str, text: str, why: str, tmp_path: Path
) -> None:
    """A fork, files copied over the installed package, or a plug-in that replaces functions."""
    run = write(tmp_path, run_sh=script, **{name: text})
    found = findings_of(run)
    (refused,) = (each for each in found if each.code in ("GL103", "GL503"))
    assert refused.severity == ("note" if why else "error")
    assert f"Not an error here, because {why}" in refused.message or not why


def test_keys_of_a_recipe_that_a_program_opens_are_known_to_it_alone(tmp_path: Path) -> None:
    """It may be anywhere in the repository, and passes what it likes to GRPOConfig."""
    program = "from trl import GRPOConfig\nGRPOConfig(**yaml.safe_load(open('r.yaml'))['grpo'])\n"
    write(tmp_path, src__train_py=program, r_yaml="num_generations: 8\ndataset_split: a\n")
    assert errors(tmp_path / "r.yaml", "1.16") == []
    (tmp_path / "src/train.py").write_text("# r.yaml\nyaml.safe_load(open('other_r.yaml'))\n")
    assert [each.code for each in errors(tmp_path / "r.yaml", "1.16")] == ["GV102"]


SIZES = "data.train_batch_size=32 actor_rollout_ref.actor.ppo_mini_batch_size=16"
MAIN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8"
LENGTH = "actor_rollout_ref.rollout.max_model_len=320"
EASYR1 = "python3 -m verl.trainer.main config=examples/config.yaml trainer.n_gpus_per_node=1"


@pytest.mark.parametrize(
    ("script", "codes", "prompts"),
    [
        (f"{MAIN} --config-path=/x --config-name=own", ["GV405"], None),
        (f"{MAIN} --config-path=/x --config-name=own {SIZES}", ["GV405"], 32),
        (f"{MAIN} --config-path=conf --config-name=part {SIZES}", [], 32),
        (f"{MAIN} --config-path=conf --config-name=part {LENGTH}", [], None),
        (EASYR1, ["GV106", "GV116"], None),
    ],
)
def test_values_of_a_configuration_that_is_not_known_are_unknown(
    script: str, codes: list[str], prompts: int | None, tmp_path: Path
) -> None:
    """It was not found, or builds on others that were not: no default of verl's is judged, nor
    EasyR1's example in its place. A plan needs sizes that the launch states.
    """
    part = "defaults: [/algo: base, _self_]\ndata: {max_response_length: 64}\n"
    run = write(tmp_path, run_sh=script, conf__part_yaml=part, examples__a_py="")
    found = lint_recipe(load_recipes(run, Options())[0])
    assert [each.code for each in found.diagnostics] == codes
    assert found.plan["prompts_per_rollout"] == prompts


TRAINER = (
    "from verl.trainer.ppo.ray_trainer import RayPPOTrainer\nclass Robot(RayPPOTrainer): pass\n"
)


@pytest.mark.parametrize("checks", [True, False])
def test_sizes_are_judged_if_the_program_validates_them(checks: bool, tmp_path: Path) -> None:
    """Since verl 0.6 the program calls validate_config, and a robot's trainer splits episodes into
    more samples.
    """
    line = VERL.replace("train_batch_size=64", "train_batch_size=16").format(
        "robot.main_ppo", "trainer.n_gpus_per_node=8"
    )
    program = TRAINER + "from verl.utils.config import validate_config\n" * checks
    run = write(tmp_path, run_sh=line + "", verl__robot__main_ppo_py=program, verl____init___py="")
    run.write_text(
        line.replace("\n", " actor_rollout_ref.rollout.n=8 algorithm.adv_estimator=grpo\n")
    )
    assert ("GB402" in codes_of(errors(run, "0.7.0"))) is checks


def test_an_edited_launch_is_read_again_in_the_same_process(tmp_path: Path) -> None:
    """A notebook lints, edits, and lints once more. A value of the base that each launch replaces
    has no effect; one that they repeat has.
    """
    base = (
        "data: {rollout_batch_size: 512}\nalgorithm: {adv_estimator: grpo}\nworker:\n  "
        "rollout: {n: 1}\n"
    )
    launch = "python3 -m verl.trainer.main config=base.yaml worker.rollout.n={}\n"
    write(tmp_path, run_sh=launch.format(5), base_yaml=base)
    assert "GB302" not in codes_of(errors(tmp_path / "base.yaml", "0.2.0"))
    (tmp_path / "run.sh").write_text(launch.format(1))
    assert "GB302" in codes_of(errors(tmp_path / "base.yaml", "0.2.0"))
