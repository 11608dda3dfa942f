"""A file that is no GRPO recipe of a supported framework is refused in one line that names its
kind.
"""

import re
from pathlib import Path

import pytest

from grporecipe.errors import ExitCode, NotARecipe
from grporecipe.files import Json
from grporecipe.linting.command import LintOptions, lint_files
from grporecipe.linting.linter import RuleSelection
from grporecipe.reading._detect import detect_framework, recognise_recipe
from grporecipe.reading.load import Options, load_recipe
from support import Printed

# our own words in the style of each framework
YAML = {
    "NeMo-RL": (
        "grpo:\n  num_prompts_per_step: 32\n  num_generations_per_prompt: 16\npolicy:\n  "
        "model_name: a/b\n"
    ),
    "SkyRL": (
        "trainer:\n  placement: {colocate_all: true}\ngenerator:\n  n_samples_per_prompt: "
        "5\ndata: {}\n"
    ),
    "ROLL": (
        "rollout_batch_size: 16\nadv_estimator: grpo\nactor_train:\n  training_args: "
        "{}\nactor_infer: {}\n"
    ),
    "AReaL": (
        "experiment_name: a\ntrial_name: b\nallocation_mode: sglang:d4\ngconfig:\n  "
        "n_samples: 4\nactor: {path: x}\n"
    ),
    "torchtune": "model:\n  _component_: torchtune.models.x\ngrpo_samples: 16\nbatch_size: 1\n",
    "oumi": (
        "model:\n  model_name: a/b\ntraining:\n  trainer_type: TRL_GRPO\n  grpo: "
        "{num_generations: 4}\n"
    ),
    "axolotl": (
        "base_model: a/b\nrl: grpo\ntrl:\n  num_generations: 4\ndatasets: []\nlearning_rate: 1e-6\n"
    ),
    "LLaMA-Factory": (
        "stage: dpo\ndo_train: true\nfinetuning_type: lora\ntemplate: qwen\nlearning_rate: 1e-6\n"
    ),
    "open-instruct": (
        "dataset_mixer_list: [a, '1.0']\nnum_unique_prompts_rollout: 64\nlearning_rate: 1e-6\n"
    ),
}
TOML = {
    "prime-rl": "[orchestrator]\nbatch_size = 128\ngroup_size = 16\n[trainer.optim]\nlr = 3e-6\n",
    "verifiers": 'model = "a/b"\n[env]\nid = "c/d"\n[trainer.args]\nrollouts_per_example = 8\n',
}
LAUNCHES = {
    "NeMo-RL": (
        "uv run python examples/run_grpo_math.py --config c.yaml grpo.num_prompts_per_step=32\n"
    ),
    "prime-rl": "uv run rl @ configs/a.toml --max-steps 5\n",
    "SkyRL": (
        "uv run --isolated -m skyrl_train.entrypoints.main_base "
        "trainer.algorithm.advantage_estimator=grpo\n"
    ),
    "OpenRLHF": (
        "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --rollout.batch_size "
        "128 --beta 0.1\n"
    ),
    "slime": (
        "ARGS=(\n  --rollout-batch-size 40\n  --n-samples-per-prompt 4\n)\npython3 "
        "train.py --colocate ${ARGS[@]}\n"
    ),
    "ROLL": "python examples/start_rlvr_pipeline.py --config_path a --config_name b\n",
    "AReaL": (
        "python3 -m areal.launcher.local examples/gsm8k_grpo.py --config a.yaml "
        "allocation_mode=d4\n"
    ),
    "verifiers": "vf-vllm --model a/b &\nvf-rl @ configs/a.toml\n",
    "torchtune": (
        "tune run --nproc_per_node 4 dev/grpo_full_finetune_distributed --config dev/3B_full_grpo\n"
    ),
    "oumi": "oumi train -c train.yaml\n",
    "axolotl": "accelerate launch -m axolotl.cli.train config.yaml\n",
    "LLaMA-Factory": "llamafactory-cli train examples/a.yaml\n",
    "open-instruct": (
        "python open_instruct/grpo_fast.py --num_samples_per_prompt_rollout 16 --beta 0.0\n"
    ),
}
OTHERS = {
    "a Docker Compose file": "services:\n  web:\n    image: x\n",
    "a GitHub Actions workflow": (
        "name: test\non: [push]\njobs:\n  test:\n    runs-on: ubuntu-latest\n"
    ),
    "a MkDocs configuration": "site_name: docs\nnav: []\n",
    "an accelerate configuration": "compute_environment: LOCAL_MACHINE\nnum_processes: 8\n",
    "a conda environment": "name: rl\nchannels: [conda-forge]\ndependencies: [python]\n",
    "a dataset card": "license: mit\ntask_categories: [question-answering]\n",
    "an SFT recipe": (
        "model_name_or_path: a\nlearning_rate: 1e-5\npacking: true\nnum_train_epochs: 1\n"
    ),
    "a DPO recipe": (
        "model_name_or_path: a\nlearning_rate: 1e-6\nbeta: 0.1\nmax_length: "
        "1024\nmax_prompt_length: 512\n"
    ),
    "nothing identifies it": "output_dir: a\nlearning_rate: 1e-5\nnum_train_epochs: 1\n",
    "its keys are in sections (grpo.num_generations)": (
        "grpo:\n  num_generations: 8\ntraining:\n  lr: 1e-6\n"
    ),
    "many of its keys": "num_generations: 8\n" + "".join(f"own_{n}: {n}\n" for n in range(9)),
    "many of its keys (own_0, ": (
        "num_generations: 8\nmax_steps: 9\nown_0: 1\nown_1: {a: 1}\nown_2: 2\nlearning_rate: 1\n"
    ),
}


def refusal(path: Path, text: str) -> str:
    """Return what is reported of a file."""
    path.write_text(text)
    with pytest.raises(NotARecipe) as refused:
        load_recipe(path, Options())
    return str(refused.value)


READ = "which grposweep does not read."
REFUSED = [
    *(("x.yaml", text, rf" {name} configuration, {READ}") for name, text in YAML.items()),
    *(("x.toml", text, f" {name} configuration") for name, text in TOML.items()),
    *(("run.sh", text, f"^it launches {name}, {READ}$") for name, text in LAUNCHES.items()),
    *(("x.yaml", text, re.escape(kind)) for kind, text in OTHERS.items()),
]


@pytest.mark.parametrize(
    ("file", "text", "said"), REFUSED, ids=[f"{file} {said}" for file, _, said in REFUSED]
)
def test_what_is_of_another_framework_or_kind_is_named(
    file: str, text: str, said: str, tmp_path: Path
) -> None:
    """A configuration, a launch whether it can be read or not, and what a folder of recipes holds
    besides.
    """
    assert re.search(said, refusal(tmp_path / file, text))


@pytest.mark.parametrize(
    "config",
    [
        {"num_generations": 8, "per_device_train_batch_size": 8},
        {"learning_rate": 1e-6, "beta": 0.04, "max_completion_length": 512},
        {"num_generation": 8, "learning_rate": 1e-6},
        {"loss_type": "dapo", "learning_rate": 1e-6},
        {"reward_funcs": ["accuracy"], "max_seq_length": 2048},
    ],
)
def test_few_keys_are_a_sign_of_grpo(config: Json) -> None:
    """Of TRL, whose words all others share; a misspelled one is judged as a mistake."""
    assert recognise_recipe(config) == "trl"


def test_sections_of_another_program_are_no_nemo_rl() -> None:
    """Other programs have a grpo and a policy, too."""
    with pytest.raises(NotARecipe, match="nothing identifies it"):
        recognise_recipe({"grpo": {"steps": 10}, "policy": {"name": "x"}})


def test_a_named_framework_always_wins(tmp_path: Path) -> None:
    """Keys without a sign are then judged as they stand."""
    path = tmp_path / "x.yaml"
    path.write_text("learning_rate: 1e-5\noutput_dir: a\n")
    assert load_recipe(path, Options("trl")).framework == "trl"
    # an object of few keys, from a program
    assert detect_framework({"learning_rate": 1e-5}) == "trl"


@pytest.mark.parametrize(
    ("rewards", "framework"), [("[accuracy, format]", "open-r1"), ("[accuracy_reward]", "trl")]
)
def test_the_names_of_rewards_tell_open_r1_from_trl(
    rewards: str, framework: str, tmp_path: Path
) -> None:
    """Without a repository around a recipe: its program would tell more."""
    path = tmp_path / "x.yaml"
    path.write_text(f"num_generations: 8\nlearning_rate: 1e-6\nreward_funcs: {rewards}\n")
    assert load_recipe(path, Options()).framework == framework
    inside = tmp_path / "repository" / "x.yaml"
    (inside.parent / ".git").mkdir(parents=True)
    inside.write_text(path.read_text())
    assert load_recipe(inside, Options()).framework == "trl"


def test_a_sign_in_the_program_s_name_is_enough(tmp_path: Path) -> None:
    """A supervised script with TRL's options has none."""
    path = tmp_path / "run.sh"
    path.write_text("accelerate launch src/my_grpo.py --learning_rate 1e-6 --bf16\n")
    assert load_recipe(path, Options()).framework == "trl"
    assert "nothing identifies it" in refusal(
        path, "accelerate launch src/train.py --learning_rate 1e-6 --bf16\n"
    )
    # checks a recipe, and is none
    assert refusal(path, "python -m grposweep lint recipe.yaml --processes 8\n")


def test_the_command_ends_with_exit_code_2(tmp_path: Path, printed: Printed) -> None:
    """The line has the file's name."""
    path = tmp_path / "x.yaml"
    path.write_text(YAML["axolotl"])
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        assert (
            lint_files([path], LintOptions(Options(), RuleSelection()), out, err)
            == ExitCode.BAD_INPUT
        )
    assert (tmp_path / "err").read_text() == (
        f"error: {path}: this is an axolotl configuration, which grposweep does not read.\n"
    )
