"""A script's parser is read before the start: what it would refuse in every trial is refused once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grposweep.config.compose import open_session, to_experiment
from grposweep.config.native_keys import check_read
from grposweep.schema import Trainer
from in_process import sweeps_in
from support import run_in

Answer = Callable[..., str]
ARGPARSE = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n{}\nargs = p.{}()\n"
HF = "from transformers import HfArgumentParser\nfrom trl import GRPOConfig\n"
HF += "HfArgumentParser(GRPOConfig).parse_args_into_dataclasses()\n"


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """``refusal("trainer=script", ...)``: why a sweep of two learning rates is refused; nothing if its jobs are written."""
    sweep = sweeps_in(tmp_path, monkeypatch)

    def answer(*words: str, searched: tuple[str, ...] = ("lr=1e-4,1e-3",)) -> str:
        try:
            folder = sweep("trainer=script", "trainer.script=train.py", "cluster=dry_run", "name=s", *words, *searched)
        except UserError as error:
            assert not (tmp_path / "outputs").exists()
            return str(error)
        assert list(folder.glob("trials/*/command.sh"))
        return ""

    return answer


@pytest.mark.parametrize(
    ("script", "takes", "said"),
    [
        (HF, "config", "train.py reads its arguments with HfArgumentParser, which takes no --config"),
        (ARGPARSE.format("", "parse_args"), "config", "train.py declares no --config"),
        (ARGPARSE.format("", "parse_args"), "flags", "train.py declares no --output_dir, where"),
        (ARGPARSE.format("p.add_argument('--output_dir')", "parse_args"), "flags", "declares no --learning_rate"),
        (
            ARGPARSE.format("p.add_argument('--output_dir', '--learning-rate')", "parse_args"),
            "flags",
            "no --learning_rate",
        ),
    ],
)
def test_a_parser_that_would_refuse_its_arguments_is_named(
    tmp_path: Path, refusal: Answer, script: str, takes: str, said: str
) -> None:
    """With the key to set, and nothing is created."""
    (tmp_path / "train.py").write_text(script)
    assert said in refusal(f"trainer.takes={takes}")


@pytest.mark.parametrize(
    ("more", "parse", "takes"),
    [
        ("p.add_argument('--config')", "parse_args", "config"),
        ("p.add_argument('--output_dir')", "parse_args", "flags"),
        ("", "parse_known_args", "config"),
        ("add_common(p)\nfrom common import add_common, Parser\nParser(Own)", "parse_args", "config"),
    ],
)
def test_a_parser_that_may_take_its_arguments_is_not(
    tmp_path: Path, refusal: Answer, more: str, parse: str, takes: str
) -> None:
    """Declared, ignored, or from a file that is not read."""
    (tmp_path / "train.py").write_text(ARGPARSE.format(more, parse))
    assert "declares no" not in refusal(f"trainer.takes={takes}", searched=("trainer.args.lr=1e-4,1e-3",))


@pytest.mark.parametrize(
    ("script", "takes"),
    [
        (HF, "flags"),
        (HF.replace("HfArgumentParser", "TrlParser").replace("transformers", "trl"), "config"),
        (ARGPARSE.format("p.add_argument('--config')", "parse_args"), "config"),
        (ARGPARSE.format("", "parse_known_args"), "flags"),
        ("import mine\nmine.main()\n", "config"),
    ],
)
def test_how_a_script_takes_its_values_is_read_from_its_parser(tmp_path: Path, script: str, takes: str) -> None:
    """Unless the user says it; without a parser in sight it is ``--config``."""
    (tmp_path / "train.py").write_text(script)
    words = ("trainer=script", f"trainer.script={tmp_path}/train.py")
    with open_session() as session:
        assert to_experiment(session.compose([*words])).trainer.takes == takes
        assert to_experiment(session.compose([*words, "trainer.takes=config"])).trainer.takes == "config"


TRAINS = """from dataclasses import dataclass
from trl import GRPOConfig, GRPOTrainer, TrlParser
@dataclass
class Mine:
    penalty: float = 0.1
def main(mine, args):
    {}
    GRPOTrainer(model="x", args=args).train()
main(*TrlParser((Mine, GRPOConfig)).parse_args_and_config())
"""


@pytest.mark.parametrize(
    ("line", "key", "said"),
    [
        ("args.learning_rate = 1e-6", "lr", "line 7 of train.py sets learning_rate itself"),
        ("args = GRPOConfig(beta=0.1, seed=mine.seed)", "kl.beta", "line 7 of train.py sets beta itself"),
        ("print(mine)", "trainer.args.penalty", "declares penalty and never reads it"),
        ("args.learning_rate = args.learning_rate * 2", "lr", ""),
        ("if args.learning_rate is None: args.learning_rate = 1e-6", "lr", ""),
        ("use(mine)", "trainer.args.penalty", ""),
        ("print(mine.penalty)", "trainer.args.penalty", ""),
    ],
)
def test_a_value_that_the_script_sets_or_never_reads_is_refused(
    tmp_path: Path, line: str, key: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trials would train the same. What it may read passes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS.format(line))
    problems = [*check_read(Trainer(kind="script", script="train.py"), [key, "search.trials"])]
    assert len(problems) == bool(said)
    assert all(said in problem and "all values would train the same" in problem for problem in problems)


def test_a_flag_that_no_class_has_is_refused(tmp_path: Path, refusal: Answer) -> None:
    """HfArgumentParser raises ValueError for it, unless the script takes what remains."""
    (tmp_path / "recipe.yaml").write_text("num_generations: 8\nmax_steps: 2\nrl_gamma: 0.2\nno_flag: null\n")
    (tmp_path / "train.py").write_text(HF)
    assert "the parser of train.py stops at rl_gamma, which" in refusal("trainer.recipe=recipe.yaml")
    (tmp_path / "lax.py").write_text(HF.replace("dataclasses()", "dataclasses(return_remaining_strings=True)"))
    assert "stops at" not in refusal("trainer.recipe=recipe.yaml", "trainer.script=lax.py")


def test_keys_of_classes_that_the_script_does_not_parse_are_refused(tmp_path: Path, refusal: Answer) -> None:
    """Its parser stops at each: in the recipe, in trainer.args, and where another key's refusal names one."""
    (tmp_path / "train.py").write_text(TRAINS.format("use(mine)"))
    (tmp_path / "recipe.yaml").write_text("num_generations: 8\npenalty: 0.2\ndataset_name: sums\n")
    searched = ("lr=1e-4,1e-3", "task.path=a,b")
    said = refusal("trainer.recipe=recipe.yaml", "trainer.args.lora_r=8", searched=searched)
    assert "the parser of train.py stops at dataset_name, which no class that it parses has" in said
    assert "neither the classes that the script parses nor its recipe have such a key" in said
    (tmp_path / "recipe.yaml").write_text("num_generations: 8\n")
    said = refusal("trainer.recipe=recipe.yaml", searched=searched)
    assert "Set a key that the script reads: trainer.args.KEY." in said


def test_a_recipe_for_more_processes_is_refused_until_the_command_chooses(tmp_path: Path) -> None:
    """The trials would train on one, with other batches. Code 2, as for every refusal."""
    (tmp_path / "run.sh").write_text("accelerate launch --num_processes 8 train.py --num_generations 8 --max_steps 2\n")
    (tmp_path / "train.py").write_text("import trl\nfrom transformers import HfArgumentParser\nHfArgumentParser(Own)\n")
    script = ("trainer=script", "trainer.script=train.py", "trainer.recipe=run.sh", "trainer.takes=flags")
    sweep = (*script, "cluster=dry_run")
    refused = run_in(tmp_path, *sweep, "-m", "lr=1e-4,1e-3")
    assert (refused.code, "run.sh is for 8 processes, and cluster.processes=1" in refused.err) == (2, True)
    assert "is for 8" not in run_in(tmp_path, *sweep, "cluster.processes=1", "-m", "lr=1e-4,1e-3").err


@pytest.mark.parametrize(
    ("recipe", "line", "more", "refused"),
    [
        ('save_strategy: "no"', "", (), True),
        ("save_strategy: no", "", (), True),
        ('save_strategy: "no"', "", ("trainer.arguments=[--save_strategy,steps]",), False),
        ('save_strategy: "no"', "from grposweep.train import Callback", (), False),
        ("save_strategy: steps", "", (), False),
    ],
)
def test_a_script_that_saves_no_state_is_refused(
    tmp_path: Path, refusal: Answer, recipe: str, line: str, more: tuple[str, ...], refused: bool
) -> None:
    """Its metrics are read from that state, so all trials would train for no result."""
    (tmp_path / "train.py").write_text(TRAINS.format("use(mine)") + line)
    (tmp_path / "recipe.yaml").write_text(f"num_generations: 8\nmax_steps: 2\n{recipe}\n")
    said = refusal("trainer.recipe=recipe.yaml", "search.metric=reward", *more)
    assert ("Set save_strategy: steps in it" in said, bool(said)) == (refused, refused), said


def test_a_recipe_without_a_sign_of_grpo_is_told_a_key_of_it(tmp_path: Path, refusal: Answer) -> None:
    """``run.py`` has no ``--framework``; with the named key the recipe is read."""
    (tmp_path / "train.py").write_text(TRAINS.format("use(mine)"))
    (tmp_path / "recipe.yaml").write_text("learning_rate: 1.0e-5\nmax_steps: 2\n")
    said = refusal("trainer.recipe=recipe.yaml")
    assert "--framework" not in said
    assert "It is read as a recipe of TRL: set a key of GRPO in it, such as num_generations." in said
    with (tmp_path / "recipe.yaml").open("a") as file:
        file.write("num_generations: 8\n")
    assert refusal("trainer.recipe=recipe.yaml") == ""
