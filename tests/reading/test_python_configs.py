"""``GRPOConfig(...)`` in Python files and notebooks: the values that the text says, and silence
about all others.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import Json, read_own_yaml
from grporecipe.linting.linter import lint_recipe
from grporecipe.model.recipe import Recipe, VersionSource
from grporecipe.reading.load import Options, load_recipe, load_recipes
from verdicts import the_one

HEAD = "from trl import GRPOConfig, GRPOTrainer\n"


def read(folder: Path, text: str, name: str = "train.py") -> Recipe:
    """The only recipe of a Python file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    (recipe,) = load_recipes(path, Options())
    return recipe


def notebook(folder: Path, *cells: str, name: str = "train.ipynb") -> Path:
    """A notebook of code cells behind one of text, as Jupyter writes it."""
    code = [
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": cell.splitlines(keepends=True),
        }
        for cell in cells
    ]
    text = {"cell_type": "markdown", "metadata": {}, "source": ["# GRPO"]}
    path = folder / name
    path.write_text(
        json.dumps({"cells": [text, *code], "nbformat": 4, "metadata": {}}, indent=1),
        encoding="utf-8",
    )
    return path


SCRIPTS = read_own_yaml(__file__, "python_scripts.yaml")


@pytest.mark.parametrize("row", SCRIPTS["values"].values(), ids=SCRIPTS["values"])
def test_values_are_those_that_the_text_says(row: Json, tmp_path: Path) -> None:
    """Literals, and what follows from them; nothing is unresolved."""
    recipe = read(tmp_path, HEAD + row["script"])
    assert (recipe.config, recipe.unresolved) == (row["config"], {})


@pytest.mark.parametrize("text", SCRIPTS["unresolved"])
def test_what_only_a_running_program_knows_is_unresolved(text: str, tmp_path: Path) -> None:
    """Arguments, parameters, loops, branches and calls: no guess."""
    assert read(tmp_path, HEAD + text).unresolved.keys() == {"seed"}


def test_unknown_words_may_set_any_key(tmp_path: Path) -> None:
    """So nothing that rests on a default is an error, and they are named once."""
    recipe = read(
        tmp_path, HEAD + "GRPOConfig(**load(), num_generations=7, per_device_train_batch_size=8)"
    )
    found = lint_recipe(recipe).diagnostics
    assert {problem.severity for problem in found} <= {"warning", "note"}
    assert sum(problem.code == "GV106" and "load()" in problem.message for problem in found) == 1


def test_each_configuration_of_a_file_is_a_recipe_with_its_lines(tmp_path: Path) -> None:
    """In the order of the file."""
    (tmp_path / "train.py").write_text(
        HEAD + "a = GRPOConfig(beta=1,\n  seed=2)\nb = GRPOConfig(seed=3)\n"
    )
    first, second = load_recipes(tmp_path / "train.py", Options())
    assert (first.config, first.lines) == ({"beta": 1, "seed": 2}, {"beta": 2, "seed": 3})
    assert (second.config, second.lines["seed"]) == ({"seed": 3}, 4)
    assert load_recipe(tmp_path / "train.py", Options()).config == first.config


def test_trainer_lora_and_model_are_read_with_the_configuration(tmp_path: Path) -> None:
    """Under the keys that a recipe has for them."""
    recipe = read(
        tmp_path,
        HEAD
        + """\
from peft import LoraConfig
args = GRPOConfig(beta=0.0)
GRPOTrainer(model="Qwen/Qwen3-4B", args=args, reward_funcs=[a, b], peft_config=LoraConfig(r=16, lora_alpha=x))
""",
    )
    assert recipe.config == {
        "beta": 0.0,
        "model_name_or_path": "Qwen/Qwen3-4B",
        "reward_funcs": ["a", "b"],
        "use_peft": True,
        "lora_r": 16,
    }
    assert recipe.processes is None


def test_a_notebook_counts_cells_and_is_one_process(tmp_path: Path) -> None:
    """Magics are skipped line by line, cells in another language as a whole."""
    path = notebook(
        tmp_path,
        "%%capture\n!pip install trl \\\n    peft\nN = 8",
        "%%bash\nif x; then",
        "this is ( broken",
        HEAD + "if N:\n    %time\n    pass\nargs = GRPOConfig(\n    num_generations=N,\n)",
    )
    recipe = load_recipe(path, Options())
    assert (recipe.config, recipe.processes) == ({"num_generations": 8}, 1)
    assert recipe.place(recipe.lines["num_generations"]) == (5, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "no GRPOConfig here"),
        ("from areal import GRPOConfig\nGRPOConfig(a=1)\n", "no GRPOConfig(...) of TRL"),
        ("class GRPOConfig:\n    pass\nGRPOConfig()\n", "no GRPOConfig(...) of TRL"),
        (
            "from trl import GRPOConfig, TrlParser\nTrlParser((GRPOConfig,)).parse_args()\n",
            "lint the recipe or the script",
        ),
        # of a trainer's copy
        (
            'from trl import GRPOConfig\nargs = GRPOConfig(f"{name}-GRPO")\n',
            "no GRPOConfig(...) of TRL",
        ),
        ("GRPOConfig(" + "(" * 100_000, "no Python that can be read"),
        ("GRPOConfig(x=" + "-" * 100_000 + "1)", "no Python that can be read"),
        ("GRPOConfig(x=", "no Python that can be read (line 1"),
    ],
)
def test_a_file_without_a_configuration_is_refused_in_one_message(
    text: str, message: str, tmp_path: Path
) -> None:
    """Also what is nested too deeply."""
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(
        UserError, match=message.replace("(", r"\(").replace(")", r"\)").replace("...", r"\.\.\.")
    ):
        load_recipes(tmp_path / "train.py", Options())


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + '"GRPOConfig"',
        '{"cells": {}, "a": "GRPOConfig"}',
        "GRPOConfig",
        '["GRPOConfig"]',
    ],
)
def test_a_broken_notebook_is_refused_in_one_message(text: str, tmp_path: Path) -> None:
    """JSON that is cut, or has no cells."""
    (tmp_path / "train.ipynb").write_text(text)
    with pytest.raises(UserError, match="it is no notebook"):
        load_recipes(tmp_path / "train.ipynb", Options())


def test_an_unknown_key_is_a_type_error(tmp_path: Path) -> None:
    """No parser reads the call."""
    problem = the_one(
        lint_recipe(read(tmp_path, HEAD + "GRPOConfig(num_generation=8)")).diagnostics, "GV102"
    )
    assert "TypeError" in problem.message
    assert problem.line == 2


def test_keys_of_a_class_of_its_own_are_known(tmp_path: Path) -> None:
    """With their defaults."""
    recipe = read(
        tmp_path, HEAD + "class Ours(GRPOConfig):\n    margin: float = 0.5\nOurs(beta=0.0)\n"
    )
    assert recipe.config == {"margin": 0.5, "beta": 0.0}
    assert "GV102" not in [problem.code for problem in lint_recipe(recipe).diagnostics]


def test_a_class_of_another_file_is_not_read(tmp_path: Path) -> None:
    """It may be derived from TRL's class or not."""
    (tmp_path / "ours.py").write_text(HEAD + "class Ours(GRPOConfig):\n    margin: float = 0.5\n")
    with pytest.raises(UserError, match=r"no GRPOConfig\(\.\.\.\) of TRL"):
        read(tmp_path, "from ours import Ours\nOurs(beta=0.0)\n# GRPOConfig")


def test_the_release_that_a_notebook_installs_counts(tmp_path: Path) -> None:
    """Unless the command names another one."""
    path = notebook(
        tmp_path,
        "!pip install --no-deps trl==0.22.2 peft",
        HEAD + "GRPOConfig(warmup_ratio=0.1, seed=args.seed)",
    )
    recipe = load_recipe(path, Options())
    assert (recipe.version, recipe.version_source) == (
        (0, 22, 2),
        VersionSource("pinned", "cell 2", "trl==0.22.2"),
    )
    assert load_recipe(path, Options(own_version="0.18")).version == (0, 18, 0)


def test_values_that_are_not_known_do_not_decide_the_release(tmp_path: Path) -> None:
    """They fit any."""
    assert (
        read(tmp_path, HEAD + "GRPOConfig(seed=args.seed, beta=0.1)").version_source.kind == "keys"
    )


def test_unsloth_s_notebooks_are_judged_by_its_trainer(tmp_path: Path) -> None:
    """It makes the micro-batch a multiple of the group, and has keys of its own."""
    text = (
        "from unsloth import FastLanguageModel\n"
        + HEAD
        + """\
m, t = FastLanguageModel.from_pretrained(model_name="unsloth/Qwen3-4B", load_in_4bit=True)
m = FastLanguageModel.get_peft_model(m, r=8)
c = GRPOConfig(num_generations=4, per_device_train_batch_size=1, vllm_sampling_params=v)
GRPOTrainer(model=m, args=c, reward_funcs=[f])
"""
    )
    recipe = load_recipe(notebook(tmp_path, text), Options())
    assert recipe.config["lora_r"] == 8
    assert recipe.config["load_in_4bit"] is True
    assert [
        problem.code for problem in lint_recipe(recipe).diagnostics if problem.severity == "error"
    ] == []


def test_what_stands_next_to_the_call_says_nothing_of_the_release(tmp_path: Path) -> None:
    """TRL 0.14 has no ``reward_funcs`` in a recipe: its trainer takes them. An attribute that is
    set later raises no TypeError.
    """
    (tmp_path / "requirements.txt").write_text("trl==0.14.0")
    (tmp_path / "train.py").write_text(
        HEAD + "c = GRPOConfig(beta=0.1)\nc.mine = 1\nGRPOTrainer(args=c, reward_funcs=[f])\n"
    )
    recipe = load_recipe(tmp_path / "train.py", Options())
    assert (recipe.version, recipe.config) == ((0, 14, 0), {"beta": 0.1})


@pytest.mark.parametrize(
    "change",
    ["d['seed'] = 2", "d.pop('seed')", "del d['seed']", "d.update(seed=2)", "d |= {'seed': 2}"],
)
def test_a_dictionary_that_is_changed_may_set_any_key(change: str, tmp_path: Path) -> None:
    """Nothing is followed: the words are unresolved."""
    assert (
        "**d"
        in read(tmp_path, f"{HEAD}d = {{'seed': 1}}\n{change}\nGRPOConfig(**d, beta=1)").unresolved
    )


def test_a_dictionary_that_holds_itself_is_unknown(tmp_path: Path) -> None:
    """It was followed without end."""
    recipe = read(
        tmp_path, HEAD + "d = dict()\nd['a'] = d\nGRPOConfig(seed=1, model_init_kwargs=d)"
    )
    assert recipe.unresolved.keys() == {"model_init_kwargs"}


def test_dictionaries_that_double_each_other_are_not_followed_without_end(tmp_path: Path) -> None:
    """Forty lines would have 2 ** 40 entries."""
    lines = ["d0 = {'seed': 1}", *(f"d{n} = {{**d{n - 1}, **d{n - 1}}}" for n in range(1, 40))]
    text = "\n".join([*lines, "GRPOConfig(**d39)"])
    assert read(tmp_path, HEAD + text).unresolved


@pytest.mark.parametrize("row", SCRIPTS["searches"].values(), ids=SCRIPTS["searches"])
def test_each_combination_that_an_optuna_script_tries_is_judged(row: Json, tmp_path: Path) -> None:
    """Of more combinations than are tried, a sample."""
    recipe = replace(read(tmp_path, HEAD + row["script"]), processes=1)
    found = [
        f"{each.code} {each.severity}: {each.message}" for each in lint_recipe(recipe).diagnostics
    ]
    for line, beginning in zip(found, row["found"], strict=True):
        assert line.startswith(beginning)
