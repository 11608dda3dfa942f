"""grposweep lint on damaged recipes: an answer for each, and exit code 0, 1 or 2."""

import io
import json
from pathlib import Path
from time import process_time

import pytest

from grporecipe.linting.command import LintOptions, lint_files
from grporecipe.linting.linter import select_rules
from grporecipe.reading.load import Options

from .damage import damaged, try_all

pytestmark = pytest.mark.slow

RECIPE = """\
# a comment
num_generations: 8
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
learning_rate: 5.0e-06
loss_type: "dapo"
reward_funcs: [accuracy, format]
model_init_kwargs: {attn_implementation: flash_attention_2}
max_steps: 500
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:8
export WANDB_MODE=offline
GPUS=${GPUS:-8}
ARGS=(--num_generations 8 --beta 0.04)
cat <<EOF > config
not: this
EOF
accelerate launch --num_processes $((GPUS - 1)) --config_file zero3.yaml train.py \\
  --per_device_train_batch_size 8 --gradient_accumulation_steps=4 "${ARGS[@]}" --output_dir 'a b' | tee log
"""


def lint(path: Path, text: str, fix: bool = False) -> None:
    """The file is answered, as text and as JSON that every program reads."""
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    for as_json in (False, True):
        out = io.StringIO()
        err = io.StringIO()
        code = lint_files(
            [path],
            LintOptions(
                Options(processes=8),
                select_rules(),
                format="json" if as_json else "text",
                fix=fix,
                no_color=True,
            ),
            out,
            err,
        )
        assert code in (0, 1, 2)
        assert (code == 2) == bool(err.getvalue())
        if as_json:
            json.loads(out.getvalue(), parse_constant=pytest.fail)


def test_damaged_yaml_is_answered(tmp_path: Path) -> None:
    """Bytes that are no text, tags, anchors, dates that are none, nesting."""
    try_all(lambda text: lint(tmp_path / "recipe.yaml", text), damaged(RECIPE))


def test_damaged_yaml_is_fixed_or_refused(tmp_path: Path) -> None:
    """--fix writes files: the same holds."""
    try_all(lambda text: lint(tmp_path / "recipe.yaml", text, fix=True), damaged(RECIPE))


def test_damaged_scripts_are_answered(tmp_path: Path) -> None:
    """Open quotes, brackets and here documents, variables of themselves."""
    try_all(lambda text: lint(tmp_path / "run.sh", text), damaged(SCRIPT))


ALIASES = "".join(f"b{n + 1}: &b{n + 1} [*b{n}, *b{n}]\n" for n in range(40))
MERGES = "".join(f"b{n + 1}: &b{n + 1} {{<<: [*b{n}, *b{n}]}}\n" for n in range(30))
BOMBS = {
    "aliases.yaml": "b0: &b0 [x, x]\n" + ALIASES,
    "merges.yaml": "b0: &b0 {x: 1}\n" + MERGES,
    "doubling.sh": "A=aa\n" + "A=$A$A\n" * 40 + "accelerate launch train.py --output_dir $A\n",
    "doubling-arrays.sh": "A=(a a)\n"
    + 'A=("${A[@]}" "${A[@]}")\n' * 40
    + 'accelerate launch train.py "${A[@]}"\n',
    "defaults.sh": "accelerate launch train.py --beta " + "${A:-" * 3000 + "1" + "}" * 3000 + "\n",
    "brackets.sh": "accelerate launch train.py --beta $((" + "(" * 3000 + "1" + ")" * 3000 + "))\n",
    "power.sh": "accelerate launch train.py --beta $((" + "9**" * 50 + "9))\n",
    "opening.sh": "accelerate launch train.py " + "${" * 20_000 + "\n",
    "heredocs.sh": "cat <<A\n" * 20_000,
    "commands.sh": "accelerate launch train.py --beta 0.1;" * 5_000,
    "brackets.yaml": "a: " + "[" * 90 + "]" * 90 + "\n",
    "variables.sh": "".join(f"V{n}=1\nls\n" for n in range(20_000)),
    "word.sh": "A=" + "aaaa$a$a" * 25_000 + "\n",
    "words.sh": "A=" + "a" * 9_000 + "\ntrain.py " + "$A" * 100_000 + "\n",
    "known-aliases.yaml": "b0: &b0 [x, x]\n"
    + ALIASES
    + "learning_rate: *b40\nnum_generations: *b40\nreward_weights: *b40\n",
    "itself.yaml": "learning_rate: &a [*a, *a]\nreward_weights: &b {x: *b}\n",
    "hexadecimal.yaml": "num_generations: 0x" + "f" * 100_000 + "\n",
    "keys.yaml": "".join(f"key_{n}: {n}\n" for n in range(20_000)),
    "key.yaml": "k" * 1_000_000 + ": 1\n",
    "digits.yaml": "num_generations: " + "9" * 100_000 + "\n",
    "sexagesimal.yaml": "num_generations: " + "1:" * 5_000 + "1\n",
}


# seconds; the others take hundredths
LARGE = {"variables.sh", "commands.sh", "word.sh", "words.sh"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in BOMBS]
)
def test_a_text_that_grows_when_it_is_read_is_answered_in_time(name: str, tmp_path: Path) -> None:
    """A few kilobytes that would be gigabytes, or a walk of 2**40 steps."""
    # of this process alone: other work on the machine does not count
    start = process_time()
    lint(tmp_path / name, BOMBS[name])
    # seconds; 2**40 steps would be days
    assert process_time() - start < 20
