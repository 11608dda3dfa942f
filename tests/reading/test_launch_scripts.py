"""Shell scripts that launch a recipe: the last launch, what it resolves to, and what it honestly
does not know.
"""

from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import read_own_yaml
from grporecipe.model.recipe import Recipe
from grporecipe.reading.load import Options, load_recipe
from grporecipe.reading.shell._bash import parse_script
from verdicts import codes_of, lint_text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder with scripts and the files that they name."""
    return tmp_path


def load(folder: Path, script: str, name: str = "run.sh") -> Recipe:
    """The recipe of a script."""
    path = folder / name
    path.write_text(script, encoding="utf-8")
    return load_recipe(path, Options())


def words(script: str) -> list[list[str]]:
    """The commands of a script."""
    return [[word.text for word in command.words] for command in parse_script(script)]


WORDS = read_own_yaml(__file__, "words.yaml")


@pytest.mark.parametrize("name", WORDS)
def test_words_are_bash_s_own(name: str) -> None:
    """The text, and the commands in it."""
    script, expected = WORDS[name]
    assert words(script) == expected


@pytest.mark.parametrize(
    "script",
    [
        "a $N",
        "a ${N}",
        "a $(nproc)",
        "a `nproc`",
        "a $1",
        "a $((N * 2))",
        "for n in $X; do a $n; done",
        "if x; then N=1; fi\na $N",
        "N=1\nif x; then N=2; fi\na $N",
        "N=$(nproc)\na $N",
        'N=${1:-${N:-}}\nif [ -z "$N" ]; then exit 1; fi\na $N',
        'N=${1:-}\n[ -n "${N}" ] || exit 1\na $N',
    ],
)
def test_values_known_only_to_a_running_shell_are_unknown(script: str) -> None:
    """Environment, commands, branches and loops: no guess."""
    last = parse_script(script)[-1]
    assert [word.unknown for word in last.words] == [False, True]
    assert "$" in last.words[1].text or "`" in last.words[1].text


@pytest.mark.parametrize(
    "script",
    ["'", '"', "${", "$(", "((", "`", "\\", "a=(", "<<", "<<<", "$", "a <<'", "for", "for x"],
)
def test_broken_scripts_end(script: str) -> None:
    """No loop, no crash."""
    assert isinstance(parse_script(script), list)


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("$((7 / 2))", "3"),
        ("$(( -7/2 ))", "-3"),
        ("$((2*(3+4)%5))", "4"),
        *(
            (unknown, unknown)
            for unknown in (
                "$((1/0))",
                "$((2**99))",
                "$((x))",
                "$((1.5))",
                "$((08))",
                "$((__import__))",
                "$((1<<9))",
            )
        ),
    ],
)
def test_arithmetic_is_that_of_whole_numbers(script: str, value: str) -> None:
    """As bash does it; other arithmetic is not run, and stays as it is written."""
    assert words(f"a {script}") == [["a", value]]


LAUNCHES = {
    "accelerate": ("accelerate launch --num_processes 7 train_grpo.py --beta 0.1", 7, "accelerate"),
    "accelerate, equals": (
        "accelerate launch --num_processes=7 --config_file z.yaml train_grpo.py --beta=0.1",
        7,
        "accelerate",
    ),
    "accelerate, a module": (
        "accelerate launch --num_processes 4 -m trl.scripts.grpo --beta 0.1",
        4,
        "accelerate",
    ),
    "torchrun": ("torchrun --nproc_per_node 4 --nnodes=2 train_grpo.py --beta 0.1", 8, "torchrun"),
    "accelerate on CPUs": (
        "accelerate launch --cpu --num_processes 2 train_grpo.py --beta 0.1",
        1,
        "accelerate",
    ),
    "torchrun with dashes": (
        'torchrun --nproc-per-node="4" train_grpo.py --beta 0.1',
        4,
        "torchrun",
    ),
    "torch.distributed.run": (
        "python -m torch.distributed.run --nproc_per_node=3 train_grpo.py --beta 0.1",
        3,
        "torchrun",
    ),
    "deepspeed": ("deepspeed --num_gpus 4 train_grpo.py --beta 0.1", 4, "deepspeed"),
    "python": ("CUDA_VISIBLE_DEVICES=0 python train_grpo.py --beta 0.1", 1, "python"),
    "trl": ("trl grpo --beta 0.1 --num_processes 6", 6, "trl"),
    "trl with a shipped configuration": ("trl grpo --beta 0.1 --accelerate_config zero3", 8, "trl"),
    "wrapped": (
        "srun --nodes 1 nohup accelerate launch --num_processes 2 train_grpo.py --beta 0.1",
        2,
        "accelerate",
    ),
    "inside bash -c": (
        "srun bash -c 'accelerate launch --num_processes 2 train_grpo.py --beta 0.1'",
        2,
        "accelerate",
    ),
    "unstated": ("accelerate launch train_grpo.py --beta 0.1", None, "accelerate"),
    "from a variable": (
        "N=5\naccelerate launch --num_processes $N train_grpo.py --beta 0.1",
        5,
        "accelerate",
    ),
    "per node": (
        "GPUS=8\nNODES=2\naccelerate launch --num_processes $((GPUS * NODES)) grpo.py --beta 0.1",
        16,
        "accelerate",
    ),
    "in a full path": (
        "/opt/v/bin/accelerate launch --num_processes 2 train_grpo.py --beta 0.1",
        2,
        "accelerate",
    ),
    "in a slurm script": (
        "#!/bin/bash\n#SBATCH -N 2\n torchrun --nproc_per_node 8 --nnodes 2 grpo.py --beta 1",
        16,
        "torchrun",
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launchers_say_how_many_processes_train(name: str, folder: Path) -> None:
    """Each launcher by its own options."""
    script, processes, launcher = LAUNCHES[name]
    recipe = load(folder, script)
    assert (recipe.processes, recipe.launch.launcher) == (processes, launcher)
    assert recipe.config.get("beta", 0.1) in (0.1, 1)


def test_the_command_line_wins_over_the_yaml_it_names(folder: Path) -> None:
    """``--config`` is looked for next to the script, and above it."""
    (folder / "recipes").mkdir()
    (folder / "scripts").mkdir()
    (folder / "recipes" / "grpo.yaml").write_text(
        "num_generations: 16\nbeta: 0.1\n", encoding="utf-8"
    )
    script = (
        "CONFIG=recipes/grpo.yaml\naccelerate launch --num_processes 2 grpo.py --config "
        "$CONFIG --num_generations 4\n"
    )
    recipe = load(folder, script, "scripts/run.sh")
    assert recipe.config == {"num_generations": 4, "beta": 0.1}


@pytest.mark.parametrize(
    ("nodes", "use_vllm", "processes"), [(2, "true", 8), (2, "false", 16), (1, "true", None)]
)
def test_open_r1_s_slurm_script_gives_its_last_node_to_vllm(
    nodes: int, use_vllm: str, processes: int | None, folder: Path
) -> None:
    """By ``sbatch slurm/train.slurm``: 8 GPUs per node, and the recipe by model and suffix."""
    recipes = folder / "recipes" / "Qwen" / "grpo"
    recipes.mkdir(parents=True)
    (recipes / "config_demo.yaml").write_text(
        f"use_vllm: {use_vllm}\nnum_generations: 16\n", encoding="utf-8"
    )
    words = (
        f"--nodes={nodes} slurm/train.slurm --model Qwen --task grpo --config demo "
        "--accelerator zero2"
    )
    recipe = load(folder, f"sbatch {words} --args '--beta 0.1'\n")
    assert (recipe.framework, recipe.processes) == ("open-r1", processes)
    assert recipe.config == {"use_vllm": use_vllm == "true", "num_generations": 16, "beta": 0.1}


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("python grpo.py --config $1", "--config"),
        ("python grpo.py --config nowhere.yaml", "--config"),
        ("echo hello", "no launch command"),
        ("", "no launch command"),
        ("CUDA_VISIBLE_DEVICES=3 python src/vllm_serve.py --model x\n", "no GRPO training"),
        ("python -m verl.experimental.vla.main_sac data.train_batch_size=8\n", "no GRPO training"),
        ("python main.py eval --num_generations 8\n", "no GRPO training"),
        ("python -m pkg.data.grpo_build --num_generations 8\n", "no GRPO training"),
        (
            "cd /w\nN=8 bash scripts/train.sh --seed 1\n",
            r"It runs scripts/train.sh: lint that script\.",
        ),
    ],
)
def test_a_script_that_cannot_be_read_says_why(script: str, why: str, folder: Path) -> None:
    """Without its YAML nothing could be judged; a script may launch nothing, a server, another
    training or another script.
    """
    with pytest.raises(UserError, match=why):
        load(folder, script)


@pytest.mark.parametrize(
    "script",
    [
        "python grpo.py --beta 0.1 \\\n  # --epsilon 0.2 \\\n  --num_generations 4\n",
        "python grpo.py --beta 0.1 \\ \n  --num_generations 4\n",
        "python grpo.py --beta 0.1 \\\n\n  --num_generations 4\n",
    ],
)
def test_a_command_that_ends_too_early_is_noticed(script: str, folder: Path) -> None:
    """As bash does it: the options after a comment or a blank are another command."""
    recipe = load(folder, script)
    assert recipe.config == {"beta": 0.1}
    assert recipe.launch.cut_line is not None


def test_a_comment_at_the_end_cuts_nothing(folder: Path) -> None:
    """Nothing follows that was meant for the command."""
    recipe = load(folder, "python grpo.py --beta 0.1 \\\n  # --epsilon 0.2 \\\n\necho done\n")
    assert recipe.launch.cut_line is None


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (
            "CUDA_VISIBLE_DEVICES=0,1 python train_grpo.py --num_generations 8 --max_steps 9",
            {"GT105"},
        ),
        (
            "export CUDA_VISIBLE_DEVICES=0,1\npython train_grpo.py --num_generations 8 "
            "--max_steps 9",
            {"GT105"},
        ),
        ("CUDA_VISIBLE_DEVICES=1 python train_grpo.py --num_generations 8 --max_steps 9", set()),
        (
            "CUDA_VISIBLE_DEVICES=$MINE python train_grpo.py --num_generations 8 --max_steps 9",
            set(),
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 train_grpo.py "
            "--num_generations 8 --max_steps 9",
            set(),
        ),
        ("CUDA_VISIBLE_DEVICES=0,1 python spread.py --num_generations 8 --max_steps 9", set()),
        (
            "CUDA_VISIBLE_DEVICES=0,1 swift rlhf --rlhf_type grpo --model m --num_generations 8",
            {"GT504"},
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 swift rlhf --rlhf_type grpo --model m --use_vllm true "
            "--vllm_mode colocate",
            {"GT503"},
        ),
    ],
)
def test_a_single_process_that_is_shown_several_gpus_is_noticed(
    tmp_path: Path, text: str, codes: set[str]
) -> None:
    """TRL refuses DataParallel, ms-swift spreads the layers; one GPU, or a process per GPU, is as
    it should be.
    """
    (tmp_path / "spread.py").write_text("from trl import GRPOTrainer\nload(device_map='auto')\n")
    found = codes_of(lint_text(tmp_path, text).diagnostics)
    assert found & {"GT105", "GT503", "GT504"} == codes


def test_a_program_that_makes_its_configuration_has_sizes_of_its_own(folder: Path) -> None:
    """TRL's default of 8 a device was judged, though the script passes another one."""
    (folder / "grpo.py").write_text(
        "import argparse\nfrom trl import GRPOConfig, GRPOTrainer\np = argparse.ArgumentParser()\n"
        "p.add_argument('--num_generations', type=int)\na = p.parse_args()\n"
        "GRPOTrainer(args=GRPOConfig(per_device_train_batch_size=6, "
        "num_generations=a.num_generations))\n"
    )
    assert lint_text(folder, "python grpo.py --num_generations 6\n").ok


def test_a_pattern_of_many_stars_ends() -> None:
    """Each of them doubled the time."""
    (command,) = parse_script(f"x={'a' * 400}\na ${{x//{'*a' * 30}b/c}}\n")
    assert command.words[1].text == "a" * 400
