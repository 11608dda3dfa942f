"""A script's parser is read before the start: what it would refuse in every trial is refused once."""

from pathlib import Path

import pytest

from support import run_in

ARGPARSE = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n{}\nargs = p.{}()\n"
HF = "from transformers import HfArgumentParser\nfrom trl import GRPOConfig\n"
HF += "HfArgumentParser(GRPOConfig).parse_args_into_dataclasses()\n"


@pytest.mark.parametrize(
    ("script", "takes", "said"),
    [
        (HF, "config", "train.py reads its arguments with HfArgumentParser, which takes no --config"),
        (ARGPARSE.format("", "parse_args"), "config", "train.py declares no --config"),
        (ARGPARSE.format("", "parse_args"), "flags", "train.py declares no --output_dir"),
    ],
)
def test_a_parser_that_would_refuse_its_arguments_is_named(tmp_path: Path, script: str, takes: str, said: str) -> None:
    """With the key to set, and nothing is created."""
    (tmp_path / "train.py").write_text(script)
    ended = run_in(
        tmp_path, "trainer=script", "trainer.script=train.py", f"trainer.takes={takes}", "-m", "lr=1e-4,1e-3"
    )
    assert ended.code == 2
    assert said in ended.err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("more", "parse", "takes"),
    [
        ("p.add_argument('--config')", "parse_args", "config"),
        ("p.add_argument('--output_dir')", "parse_args", "flags"),
        ("", "parse_known_args", "config"),
        ("add_common(p)\nfrom common import add_common, Parser\nParser(Own)", "parse_args", "config"),
    ],
)
def test_a_parser_that_may_take_its_arguments_is_not(tmp_path: Path, more: str, parse: str, takes: str) -> None:
    """Declared, ignored, or from a file that is not read: the script is started, and it is what fails."""
    (tmp_path / "train.py").write_text(ARGPARSE.format(more, parse) + "raise SystemExit(7)\n")
    ended = run_in(
        tmp_path, "trainer=script", "trainer.script=train.py", f"trainer.takes={takes}", "trainer.args.lr=1e-4"
    )
    assert "declares no" not in ended.err
