"""``select`` and ``ignore`` of a project's settings, for all its files or some; the command line
wins.
"""

from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.linting.linter import lint_recipe, select_for, select_rules
from grporecipe.reading.load import Options, load_recipes
from grposweep.cli._recipes import lint
from support import Printed, Write

BAD = "num_generations: 7\nper_device_train_batch_size: 8\n"


def test_a_project_ignores_rules_for_its_files(recipe: Write, here: Path, printed: Printed) -> None:
    """All of them, or by a pattern; what is off is reported."""
    path = recipe(start=BAD)
    other = recipe(start=BAD, name="old.yaml")
    assert lint([path, other], processes=8, select=["GB"]) == 1
    (here / "pyproject.toml").write_text(
        '[tool.grposweep.per-file-overrides."old*.yaml"]\nignore = ["GB101"]\n'
    )
    printed()
    assert lint([path, other], processes=8, select=["GB1", "GA"], ignore=["GA201"]) == 1
    assert "recipe.yaml:1: GB101" in printed()
    (here / ".grposweep.toml").write_text('ignore = ["GB101"]\n')
    assert lint([path, other], processes=8) == 0
    assert "switched off: GB101\n" in printed()


def test_the_command_line_wins(here: Path) -> None:
    """--select stands for the project's, and ends its ignore of what it names; --ignore adds to the
    project's.
    """
    (here / ".grposweep.toml").write_text('select = ["GB", "GE"]\nignore = ["GB101", "GB102"]\n')
    path = here / "r.yaml"
    assert select_for(path, select_rules()) == select_rules(["GB", "GE"], ["GB101", "GB102"])
    assert select_for(path, select_rules(["GB101"])) == select_rules(["GB101"], ["GB102"])
    assert select_for(path, select_rules((), ["GE101"])) == select_rules(
        ["GB", "GE"], ["GB101", "GB102", "GE101"]
    )


def test_a_rule_that_does_not_exist_is_one_message(here: Path) -> None:
    """It names the file of the settings."""
    (here / ".grposweep.toml").write_text('ignore = ["GB999"]\n')
    with pytest.raises(UserError, match=r"\.grposweep\.toml: GB999: no rule or family"):
        select_for(here / "r.yaml", select_rules())


LAUNCHES = {
    "conf/zero3.yaml": (
        "accelerate launch --config_file {} --num_processes 8 train.py "
        "--learning_rate 1e-6 --num_generations 8"
    ),
    "conf/ds.json": (
        "torchrun --nproc_per_node 8 grpo.py --deepspeed {} --num_generations 8 "
        "--max_prompt_length 64"
    ),
    "conf/reward.py": (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
        "custom_reward_function.path={}"
    ),
    "conf/reward.py:score": (
        "python3 -m verl.trainer.main worker.rollout.n=4 worker.reward.reward_function={}"
    ),
}


def missing(script: Path) -> list[str]:
    """The messages of GV116 on the launch of a script."""
    (found,) = load_recipes(script, Options())
    return [finding.message for finding in lint_recipe(found, select_rules(["GV116"])).diagnostics]


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_file_that_the_repository_lacks_is_an_error(here: Path, name: str) -> None:
    """Its folder is there; a file of the same name elsewhere may be the one that is meant."""
    for folder in (".git", "conf", "other"):
        (here / folder).mkdir()
    script = here / "run.sh"
    script.write_text(LAUNCHES[name].format(name) + "\n")
    (message,) = missing(script)
    assert name.partition(":")[0] in message
    (here / "other" / Path(name.partition(":")[0]).name).write_text("{}")
    assert missing(script) == []


@pytest.mark.parametrize(
    "name",
    ["/conf/ds.json", "$HOME/ds.json", "../conf/ds.json", "elsewhere/ds.json", "ds.json", "conf"],
)
def test_a_path_that_may_be_elsewhere_is_no_error(here: Path, name: str) -> None:
    """Absolute, with a variable, above the folder, or in a folder that the repository does not
    have.
    """
    for folder in (".git", "conf"):
        (here / folder).mkdir()
    (here / "run.sh").write_text(LAUNCHES["conf/ds.json"].format(name) + "\n")
    assert missing(here / "run.sh") == []


def test_a_file_that_the_script_writes_is_no_error(here: Path) -> None:
    """It exists when the launch begins."""
    for folder in (".git", "conf"):
        (here / folder).mkdir()
    launch = LAUNCHES["conf/ds.json"].format("conf/ds.json")
    (here / "run.sh").write_text(f"echo '{{}}' > conf/ds.json\n{launch}\n")
    assert missing(here / "run.sh") == []
