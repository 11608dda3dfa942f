"""The pre-commit hook: what it runs exists, and it looks at recipes only."""

import re

import pytest
import yaml

from support import PROJECT

HOOKS = yaml.safe_load((PROJECT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: str(hook["id"]))
def test_hooks_run_the_command_on_recipes(hook: dict[str, str]) -> None:
    """By ``re.search``, as pre-commit does."""
    assert hook["entry"].startswith("grposweep lint")
    for name in ("grpo.yaml", "configs/my_GRPO_run.yml", "recipes/Qwen/grpo/config_demo.yaml"):
        assert re.search(hook["files"], name)
    for name in (
        "docker-compose.yaml",
        "recipes/sft/config.yaml",
        "grpo.py",
        ".github/workflows/ci.yml",
    ):
        assert not re.search(hook["files"], name)
