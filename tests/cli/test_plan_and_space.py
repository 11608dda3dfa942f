"""``grposweep plan`` and ``grposweep space`` from the outside."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.reading.load import Options
from grposweep.cli._plan import show_fit, show_plan, show_space
from grposweep.cli.hydra_app import copy_conf
from support import PROJECT, Printed, Run, environment, sampled, unwrap
from support import grposweep as run_grposweep

MS_SWIFT = [
    "batch.num_generations=8",
    "batch.per_device_train_batch_size=8",
    "batch.gradient_accumulation_steps=2",
    "batch.num_iterations=2",
    "cluster.processes=6",
    "schedule=epochs",
]
CHANCE = "rewards of 0 and 1: differences below 0.087 can be chance"


@pytest.fixture
def grposweep(here: Path) -> Run:
    """``grposweep("plan", ...)`` from another folder."""
    return partial(run_grposweep, here)


@pytest.mark.parametrize(("prompts", "steps"), sampled([(7920, 1320), (8000, 1332)], 2))
def test_the_plan_counts_as_the_trainer_does(grposweep: Run, prompts: int, steps: int) -> None:
    """The ms-swift guide's case, and the same without its lucky divisibility."""
    ended = grposweep("plan", *MS_SWIFT, f"task.train_prompts={prompts}", "--format", "json")
    plan = json.loads(ended.out)["plan"]
    assert (plan["total_steps"], plan["prompts_per_rollout"]) == (steps, 12)
    assert plan["dropped_prompts"] == prompts - 12 * plan["rollouts_per_epoch"]


ASYNCHRONOUS = """
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
args = AsyncGRPOConfig(output_dir="o", per_device_train_batch_size=4, gradient_accumulation_steps=8)
AsyncGRPOTrainer(model="m", args=args, reward_funcs=f, train_dataset=d).train()
"""


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_an_asynchronous_recipe_has_no_plan(grposweep: Run, tmp_path: Path, command: str) -> None:
    """A rollout, and the memory of its generation, would be wrong."""
    (tmp_path / "t.py").write_text(ASYNCHRONOUS)
    ended = grposweep(
        command, str(tmp_path / "t.py"), "--processes", "2", "--framework-version", "1.16"
    )
    assert (ended.code, "it has no rollouts and no plan" in ended.err) == (2, True)


def test_the_plan_says_where_the_guides_shortcut_is_wrong(grposweep: Run) -> None:
    """1,333 by the shortcut, 1,332 in truth; nothing to say where both agree."""
    wrong = grposweep("plan", *MS_SWIFT, "task.train_prompts=8000").out
    right = grposweep("plan", *MS_SWIFT, "task.train_prompts=7920").out
    assert "1,333.3" in wrong
    assert "1,332" in wrong
    assert "shortcut" not in right
    assert CHANCE in right


def test_gpus_of_a_vllm_server_are_no_processes(grposweep: Run, here: Path) -> None:
    """8 GPUs with one for vLLM are 7 processes, and 7 completions hold no group of 8."""
    (here / "recipe.yaml").write_text(
        "per_device_train_batch_size: 1\nnum_generations: 8\nmax_steps: 10\n"
    )
    same = ("--processes", "7")
    ended = grposweep("plan", "recipe.yaml", "--gpus", "8", "--vllm-gpus", "1", *same)
    assert ended.code == 1
    assert "GB101" in ended.out
    assert "processes=8" in ended.out.replace("\n", " ")


def test_recipes_stand_side_by_side(grposweep: Run, here: Path) -> None:
    """One column a file."""
    for name, size in (("a.yaml", 8), ("b.yaml", 16)):
        (here / name).write_text(
            f"per_device_train_batch_size: {size}\nnum_generations: 8\nmax_steps: 10\n"
            "eval_strategy: steps\neval_steps: 5\n"
        )
    out = grposweep("plan", "a.yaml", "b.yaml", "--processes", "2").out
    assert re.search("completions per rollout +16 +32 ", out)
    assert re.search("steps between evaluations +5 +5 ", out)
    assert "The number of held-out prompts is unknown" in out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nope.yaml"], "nope.yaml"),
        (["lrr=3"], "lrr is not a key"),
        (["batch=16"], "batch.prompts_per_step"),
        (["a.yaml", "lr=3"], "cannot be combined"),
        (["lr=1e-3", "--gpus", "1", "--vllm-gpus", "1"], "no GPU is left"),
        (["lr=1e-3", "--processes", "4", "--gpus", "8"], "--gpus means 8 processes"),
        (["run.sh"], "only the run knows num_generations"),
        (["turns.sh"], "env.rollout.n sizes groups, so there is no plan"),
        (["rest.sh"], "n_agent sizes groups, so there is no plan"),
    ],
)
def test_bad_input_is_one_message(
    grposweep: Run, arguments: list[str], part: str, here: Path
) -> None:
    """Code 2, no traceback."""
    verl = "python -m verl.trainer.main_ppo actor_rollout_ref.actor.ppo_mini_batch_size=64"
    (here / "run.sh").write_text("swift rlhf --rlhf_type grpo --num_generations $G\n")
    (here / "turns.sh").write_text(f"{verl} +env.rollout.n=8\n")
    (here / "rest.sh").write_text(f"{verl} actor_rollout_ref.rollout.n_agent=5\n")
    ended = grposweep("plan", *arguments)
    assert ended.code == 2
    assert part in ended.err
    assert "Traceback" not in ended.err


def test_space_counts_without_running_anything(grposweep: Run, here: Path) -> None:
    """The demo's space: half of its points are valid, two sizes of a group never."""
    ended = grposweep("space", "-m", "sweeps=lr_batch")
    assert ended.code == 0
    assert ended.out.startswith("8 points, 4 valid, 4 invalid")
    assert "never valid" in ended.out
    assert CHANCE in ended.out
    assert CHANCE not in grposweep("space", "-m", "seed=1,2").out
    assert not (here / "outputs").exists()


def test_space_names_lengths_and_batches_that_are_one(grposweep: Run) -> None:
    """8 x 4 and 16 x 2 completions train alike, except where a loss averages in each micro-step."""
    words = ("batch.per_device_train_batch_size=8,16", "batch.gradient_accumulation_steps=2,4")
    out = grposweep("space", "-m", *words).out
    assert "1 of 4 trainings have the batch of another one, split otherwise" in out
    assert "each trial: 100 to 400 optimizer steps, 6,400 completions" in out
    assert "split otherwise" not in grposweep("space", "-m", *words, "loss.loss_type=bnpo").out


def test_a_space_without_a_valid_point_has_code_1(grposweep: Run) -> None:
    """And says what each would need."""
    ended = grposweep("space", "-m", "batch.num_generations=12,20")
    assert ended.code == 1
    assert "cluster.processes=3" in ended.out
    # nothing is swept
    assert grposweep("space", "lr=1e-3").code == 2


@pytest.mark.slow
def test_a_package_without_its_groups_says_what_to_install(tmp_path: Path) -> None:
    """conf/ is in the package; a copy by hand may have lost it."""
    shutil.copytree(
        PROJECT / "src" / "grposweep", tmp_path / "lib" / "src" / "grposweep", symlinks=True
    )
    command = [sys.executable, "-m", "grposweep", "plan", "batch=small"]
    bare = environment(PYTHONPATH=str(tmp_path / "lib" / "src"))
    done = subprocess.run(
        command, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Install grposweep again" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_project_s_own_copy_of_the_groups_decides(tmp_path: Path, printed: Printed) -> None:
    """grposweep init writes it, --config-dir names it; another folder is refused."""
    copy_conf(tmp_path / "conf")
    option = tmp_path / "conf" / "batch" / "small.yaml"
    option.write_text(re.sub(r"num_generations: \d+", "num_generations: 7", option.read_text()))
    assert show_space(["lr=1e-4,1e-3"]) == 0
    assert show_space(["lr=1e-4,1e-3"], tmp_path / "conf") == 1
    assert "num_generations=7" in printed()
    with pytest.raises(UserError, match=r"it has no config\.yaml"):
        show_space(["lr=1e-4,1e-3"], tmp_path)
    with pytest.raises(UserError, match="would be overwritten"):
        copy_conf(tmp_path / "conf")
    shutil.rmtree(tmp_path / "conf" / "kl")
    with pytest.raises(UserError, match="no folder kl"):
        show_space(["lr=1e-4,1e-3"], tmp_path / "conf")


@pytest.mark.parametrize(
    "entry",
    sampled(
        [
            "model.chat_template_kwargs.enable_thinking=false,true",
            "+model.chat_template_kwargs.enable_thinking=false,true",
            "cluster.environment.NCCL_DEBUG=INFO,WARN",
        ],
        3,
    ),
)
def test_entries_of_mappings_are_searched_with_and_without_a_plus(
    printed: Printed, entry: str
) -> None:
    """Whether a model thinks is a key of its chat template, which no schema lists."""
    assert show_space([entry]) == 0
    assert "2 points, 2 valid" in printed()


def test_a_space_says_what_is_dead_repeated_and_measured(printed: Printed) -> None:
    """A third of the points has no LoRA, and none reads the clip: ten trainings of 36 points. Half
    of the range is refused.
    """
    space = "model.lora.r=0,8,16 model.lora.alpha=16,32 loss.epsilon=0.1,0.2,0.3"
    assert show_space([*space.split(), "generation.temperature=0.7,1.0"], as_json=True) == 0
    found = json.loads(printed())
    assert (found["valid"], found["repeated"]) == (36, 26)
    assert found["measures"] == ["generation.temperature"]
    assert "batch.num_iterations=2" in found["dead"].pop("loss.epsilon")
    assert not found["dead"]
    show_space(["loss.epsilon=interval(-1,1)", "batch.num_iterations=2"], as_json=True)
    assert 30 < json.loads(printed())["invalid"]["GL112"] < 70


def test_space_refuses_what_the_sweep_refuses(grposweep: Run) -> None:
    """All values would train the same. A plan names such a key too."""
    ended = grposweep("space", "model.lora.alpha=4,8")
    assert ended.code == 2
    assert "Set model.lora.r above 0" in ended.err
    assert "Set model.lora.r above 0" in grposweep("plan", "model.lora.alpha=4").err


@pytest.mark.parametrize(
    ("task", "share"), [("gsm8k", 0.17), ("jsonl", 0.17), ("arithmetic", 0.62)]
)
def test_by_default_evaluation_takes_a_sixth_of_the_completions(
    printed: Printed, task: str, share: float
) -> None:
    """The tiny model's task keeps its evaluations: they take no time there."""
    show_plan([f"task={task}", "task.path=prompts.jsonl"], Options(), as_json=True)
    assert json.loads(printed())["plan"]["evaluation_share"] == pytest.approx(share, abs=0.005)


SHORT = "generation.max_completion_length=16"


def letter_model(folder: Path) -> Path:
    """The tokenizer of a model, with one token a letter and a chat template, as transformers writes
    it.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    folder.mkdir()
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (folder / "chat_template.jinja").write_text(
        "{% for turn in messages %}{{ turn.content }}{{ eos_token }}{% endfor %}"
    )
    return folder


@pytest.mark.slow
def test_a_fit_measures_prompts_if_data_and_tokenizer_are_files_here(
    tmp_path: Path, printed: Printed
) -> None:
    """Otherwise it says between which sizes the answer lies: 512 tokens were assumed for prompts of
    50.
    """
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"prompt": "{n}+1=", "answer": "1"}}\n' for n in range(9))
    )
    overrides = [
        "model=smollm2_135m",
        f"model.path={letter_model(tmp_path / 'model')}",
        "task=jsonl",
        "batch=small",
        SHORT,
    ]
    task = [f"task.path={tmp_path}/rows.jsonl", f"task.system_prompt={'Add. ' * 18}"]
    show_fit([*overrides, *task], Options(), 80.0, as_json=True)
    peak = json.loads(printed())["peak"]
    unknown = [*overrides, *task, "task.path=elsewhere.jsonl"]
    show_fit(unknown, Options(), 80.0, as_json=True, gpu_name="H100")
    found = json.loads(printed())
    assert found["gpu"] == "H100"
    assert found["low"] < peak < found["peak"] / 3
    show_fit(unknown, Options(), 80.0, as_json=False)
    said = unwrap(printed())
    assert "Assumed: prompts of 512 tokens." in said
    ends = re.search(r"With 64 tokens the peak is ([\d.]+) GiB, with 1,024 ([\d.]+) GiB", said)
    assert ends is not None
    assert float(ends[1]) < peak < float(ends[2]) < found["high"]
    show_fit([*overrides, *task], Options(), 80.0, as_json=False)
    assert "Assumed: prompts" not in printed()


SERVED = (
    "model_name_or_path: Qwen/Qwen2.5-1.5B\nper_device_train_batch_size: 4\nnum_generations: 8\n"
    "gradient_accumulation_steps: 1\nuse_vllm: true\nvllm_mode: colocate\nmax_steps: 10\n"
)


def test_a_fit_says_what_it_assumes_and_which_rule_refuses_the_point(
    tmp_path: Path, printed: Printed
) -> None:
    """The number of processes, the length of prompts, vLLM's share; each only while it is not
    known.
    """
    (tmp_path / "recipe.yaml").write_text(SERVED)
    recipe, short, all_known = str(tmp_path / "recipe.yaml"), Options(), Options(processes=2)
    assert show_fit([recipe], short, 80.0, as_json=False) == 0
    said = unwrap(printed())
    assert "Assumed: 1 training process." in said
    assert "Assumed: prompts of 512 tokens." in said
    assert "multiples of 2 work; others break GB101" in said
    show_fit([recipe], all_known, 80.0, as_json=False)
    said = printed()
    assert "1 training process" not in said
    assert "GB101" not in said
    for gib, share in ((None, True), (80.0, False)):
        show_plan([recipe], all_known, as_json=False, gpu_gib=gib)
        assert ("Not included: vLLM's share" in printed()) is share


def test_the_table_of_gpus_has_whole_headings_in_80_columns(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no verdict is broken into two lines."""
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "recipe.yaml").write_text(SERVED)
    show_fit([str(tmp_path / "recipe.yaml")], Options(processes=2), None, as_json=False)
    said = printed()
    assert "…" not in said
    assert re.search(r"^ T4 .*does not fit ", said, re.MULTILINE)
