"""The Python file that a launch starts, read from its syntax tree: its options, its trainer, and
what it never does.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from grporecipe.model.recipe import KeySpec, LaunchedCode
from grporecipe.reading.load import Options, load_recipe

SCRIPT = """\
from dataclasses import dataclass, field
from typing import Optional
from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser
from pictures.trainer import PictureTrainer, PlainTrainer

@dataclass
class OurArguments(ScriptArguments):
    max_pixels: Optional[int] = field(default=401408, metadata={"help": "of a picture"})
    reward_funcs: list[str] = field(default_factory=lambda: ["accuracy"])

if __name__ == "__main__":
    script, args, model = TrlParser((OurArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    trainer_cls = PictureTrainer if args.use_vllm else PlainTrainer
    trainer_cls(model=model.name, reward_funcs=script.reward_funcs, args=args).train()
"""
OWN = """\
from transformers import Trainer
from trl import GRPOTrainer

class PictureTrainer(Trainer):
    pass

class PlainTrainer(GRPOTrainer):
    def compute_loss(self, model, inputs):
        return 0.0
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LaunchedCode | None]:
    """``code(files, launch)`` writes a repository, and returns what the launched file declares."""

    def read(
        files: dict[str, str], launch: str = "torchrun src/pictures/grpo.py --beta 0.1"
    ) -> LaunchedCode | None:
        for name, text in {
            **files,
            "scripts/run.sh": f"#!/bin/bash\n{launch}\n",
            ".git/HEAD": "x",
        }.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        return load_recipe(Path("scripts/run.sh"), Options()).code

    return read


def test_fields_of_the_script_s_dataclasses_are_declared(code: Callable[..., LaunchedCode]) -> None:
    """With type and default; TRL's own are not among them."""
    found = code({"src/pictures/grpo.py": SCRIPT, "src/pictures/trainer.py": OWN})
    assert found.declares == {
        "max_pixels": KeySpec("int?", 401408),
        "reward_funcs": KeySpec("list", ["accuracy"]),
    }
    assert found.file.endswith("src/pictures/grpo.py")
    assert found.other_keys == "stop"


@pytest.mark.parametrize(
    ("body", "own"),
    [
        ("def compute_loss(self): pass", False),
        ("def __init__(self, *a, **k):\n        super().__init__(*a, **k)", False),
        ("def __init__(self, *a, **k):\n        self.a = a", True),
        ("def _get_train_sampler(self): pass", True),
    ],
)
def test_a_subclass_follows_trl_unless_it_makes_its_own_batches(
    body: str, own: bool, code: Callable[..., LaunchedCode]
) -> None:
    """A class of the same file; one of another file is not read, and counts as an own trainer."""
    text = (
        "from trl import GRPOTrainer\nclass Ours(GRPOTrainer):\n    "
        f"{body}\nOurs(reward_funcs=[], args=1)\n"
    )
    found = code({"src/pictures/grpo.py": text})
    assert (found.trainer, found.own_trainer) == ("Ours", own)


@pytest.mark.parametrize(
    ("text", "trainer"),
    [
        ("t = Loop(reward_funcs=[f])\nt.train()", ("Loop", True)),
        ("Check(reward_funcs=[f])", ("GRPOTrainer", False)),
        ("KINDS = {'a': OurTrainer}\nKINDS[k](reward_funcs=[f])", ("OurTrainer", True)),
        ("t = o.trainer_class(reward_funcs=[f])\nt.train()", ("o.trainer_class", True)),
    ],
)
def test_what_gets_rewards_is_a_trainer_if_it_trains(
    text: str, trainer: tuple[str, bool], code: Callable[..., LaunchedCode]
) -> None:
    """A callback is none; a class may be in a dictionary, or known to the running program only."""
    head = "from trl import GRPOTrainer\nfrom ours import Check, Loop, OurTrainer\n"
    found = code({"src/pictures/grpo.py": f"{head}GRPOTrainer(reward_funcs=[f])\n{text}\n"})
    assert (found.trainer, found.own_trainer) == trainer


def test_trl_s_trainer_is_not_an_own_one_even_in_a_repository_with_a_copy_of_trl(
    code: Callable[..., LaunchedCode],
) -> None:
    """The name decides: a copy in the tree is TRL's."""
    found = code(
        {
            "trl/__init__.py": "class GRPOTrainer: pass\n",
            "src/pictures/grpo.py": (
                "from trl import GRPOTrainer\nGRPOTrainer(args=1, train_dataset=2)\n"
            ),
        }
    )
    assert (found.trainer, found.own_trainer) == ("GRPOTrainer", False)


def test_options_of_argparse_are_declared(code: Callable[..., LaunchedCode]) -> None:
    """Dashes are underscores; a switch is false until it is given; parse_known_args drops what it
    does not know.
    """
    text = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument("--group-size", "-g", type=int, default=8)
p.add_argument("--fast", action="store_true")
p.add_argument("--names", nargs="+")
args, rest = p.parse_known_args()
"""
    found = code({"src/pictures/grpo.py": text})
    assert found.declares == {
        "group_size": KeySpec("int", 8),
        "fast": KeySpec("bool", False),
        "names": KeySpec("list", None),
    }
    assert found.other_keys == "dropped"


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("from pictures.main import main\nmain()\n", True),
        (
            "from .arguments import Own\nfrom trl import "
            "TrlParser\nTrlParser((Own,)).parse_args_and_config()\n",
            True,
        ),
        (
            "from trl import GRPOConfig, "
            "TrlParser\nTrlParser((GRPOConfig,)).parse_args_and_config()\n",
            False,
        ),
        (
            "import argparse\np = "
            "argparse.ArgumentParser()\np.add_argument('--a')\np.parse_args()\n",
            False,
        ),
    ],
)
def test_other_files_are_not_read_and_may_declare_any_option(
    text: str, more: bool, code: Callable[..., LaunchedCode]
) -> None:
    """So a key that is unknown here is no error."""
    assert code({"src/pictures/grpo.py": text}).declares_more is more


@pytest.mark.parametrize(
    "launch",
    [
        "torchrun src/pictures/grpo.py --beta 0.1",
        "cd src && torchrun ./pictures/grpo.py --beta 0.1",
        'torchrun "$HERE"/pictures/grpo.py --beta 0.1',
        "torchrun /home/me/pictures-repo/src/pictures/grpo.py --beta 0.1",
        "python -m pictures.grpo --beta 0.1",
    ],
)
def test_the_launched_file_is_found(launch: str, code: Callable[..., LaunchedCode]) -> None:
    """From the script, the root, a folder that the script enters, or as a module."""
    assert code({"src/pictures/grpo.py": "import argparse\n"}, launch).file.endswith(
        "src/pictures/grpo.py"
    )


@pytest.mark.parametrize(
    "text", ["(" * 100_000, "x = 1 +\n", "\0", "-" * 100_000 + "1", "a" + ".b" * 100_000]
)
def test_a_file_that_cannot_be_read_declares_nothing(
    text: str, code: Callable[..., LaunchedCode | None]
) -> None:
    """Broken or hostile: no crash, and nothing is run."""
    found = code({"src/pictures/grpo.py": text})
    assert found is None or found.declares == {}
