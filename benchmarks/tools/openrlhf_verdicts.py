"""Make tests/frameworks/openrlhf_verdicts.jsonl: command lines, and what OpenRLHF's own parser and assertions say to each.

    git clone --bare https://github.com/OpenRLHF/OpenRLHF openrlhf.git
    python benchmarks/tools/openrlhf_verdicts.py openrlhf.git

Of openrlhf/cli/train_ppo_ray.py at a tag only this is run: the parser, what follows it up to the training, and the assertions
of the training. Ray, vLLM and torch are not needed.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from grporecipe.frameworks.openrlhf import RENAMED

VERDICTS = Path(__file__).resolve().parents[2] / "tests" / "frameworks" / "openrlhf_verdicts.jsonl"
TAGS = ("v0.6.4", "v0.7.5", "v0.8.5", "v0.9.3", "v0.10.1.post2", "v0.11.0")
BASE = {
    "actor_num_nodes": "1", "actor_num_gpus_per_node": "8", "ref_num_nodes": "1", "ref_num_gpus_per_node": "8",
    "vllm_num_engines": "4", "vllm_tensor_parallel_size": "2", "colocate_all_models": "", "packing_samples": "",
    "advantage_estimator": "group_norm", "kl_estimator": "k3", "use_kl_loss": "", "init_kl_coef": "1e-3",
    "rollout_batch_size": "128", "n_samples_per_prompt": "8", "train_batch_size": "128", "micro_train_batch_size": "8",
    "micro_rollout_batch_size": "16", "pretrain": "a/b", "reward_pretrain": "a/b", "prompt_data": "c/d",
}  # fmt: skip
CHANGES: tuple[dict[str, str | None], ...] = (
    {}, {"vllm_num_engines": "3"}, {"vllm_num_engines": "2"}, {"vllm_tensor_parallel_size": "4", "vllm_num_engines": "2"},
    {"ref_num_gpus_per_node": "4"}, {"ref_num_gpus_per_node": "4", "init_kl_coef": "0"}, {"ref_num_nodes": "2"},
    {"colocate_all_models": None, "vllm_num_engines": "2"}, {"colocate_all_models": None, "ref_num_gpus_per_node": "4"},
    {"n_samples_per_prompt": "1"}, {"n_samples_per_prompt": "1", "advantage_estimator": "reinforce"},
    {"n_samples_per_prompt": "1", "advantage_estimator": "rloo"}, {"advantage_estimator": "grpo"},
    {"advantage_estimator": "dr_grpo"}, {"advantage_estimator": "reinforce_baseline"}, {"kl_estimator": "k4"},
    {"kl_estimator": "k1"}, {"micro_rollout_batch_size": "256"}, {"micro_rollout_batch_size": "128"},
    {"rollout_batch_size": "12"}, {"rollout_batch_size": "16", "micro_rollout_batch_size": "1"},
    {"rollout_batch_size": "many"}, {"n_samples_per_prompt": "2.5"}, {"init_kl_coef": "small"}, {"batch_size": "8"},
    {"ring_attn_size": "2"}, {"ring_attn_size": "2", "micro_rollout_batch_size": "256"}, {"temperature": "hot"},
    {"colocate_all_models": None, "packing_samples": None, "vllm_num_engines": None}, {"vllm_num_engines": "0"},
    {"num_episodes": "2", "max_epochs": "1", "save_steps": "5"}, {"actor_num_nodes": "2"},
    {"actor_num_nodes": "2", "ref_num_nodes": "2", "vllm_num_engines": "8"}, {"gamma": "1.0", "seed": "7"},
)  # fmt: skip


def show(repository: Path, tag: str, path: str) -> ast.Module:
    """The syntax tree of a file at a tag."""
    command = ["git", "--git-dir", str(repository), "show", f"{tag}:{path}"]
    return ast.parse(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def only_assertions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The assertions of a body, under their conditions."""
    for statement in body:
        if isinstance(statement, ast.Assert) and names_in(statement) <= {"args"}:
            yield statement
        elif isinstance(statement, ast.If) and names_in(statement.test) <= {"args"}:
            inside, other = list(only_assertions(statement.body)), list(only_assertions(statement.orelse))
            if inside or other:
                yield ast.If(statement.test, inside or [ast.Pass()], other)


def names_in(node: ast.AST) -> set[str]:
    """The names that a condition depends on."""
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def program(repository: Path, tag: str) -> Any:
    """What a release does with a command line before it trains, as code."""
    source = show(repository, tag, "openrlhf/cli/train_ppo_ray.py")
    functions = {node.name: node for node in source.body if isinstance(node, ast.FunctionDef)}
    main = next(node for node in source.body if isinstance(node, ast.If))
    body = [node for node in main.body if not isinstance(node, ast.ImportFrom)]
    body = [node for node in body if "modelscope" not in ast.unparse(node) and ast.unparse(node) != "train(args)"]
    checks = functions["_validate_args"].body if "_validate_args" in functions else []
    whole = [*body, *checks, *only_assertions(functions["train"].body)]
    if "hierarchize" in ast.unparse(main):
        whole = [*show(repository, tag, "openrlhf/utils/config.py").body, *whole]
    module = ast.Module(
        [node for node in whole if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call)], []
    )
    return compile(ast.fix_missing_locations(module), tag, "exec")


def verdict(code: Any, arguments: list[str]) -> str:
    """Why a command line is refused; empty where it is not."""
    names = {"argparse": argparse, "os": os, "datetime": datetime, "__name__": "__verdict__"}
    said, sys.argv = io.StringIO(), ["train_ppo_ray.py", *arguments]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            exec(code, names)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except (AssertionError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Write a line a command."""
    repository, lines = Path(sys.argv[1]), []
    for tag in TAGS:
        code = program(repository, tag)
        for change in CHANGES:
            given = {name: value for name, value in {**BASE, **change}.items() if value is not None}
            is_dotted = tag == "v0.11.0"
            names = {name: RENAMED.get(name, name) if is_dotted else name for name in given}
            words = [word for name, value in given.items() for word in (f"--{names[name]}", value) if word]
            release = ".".join(tag.removeprefix("v").split(".")[:3])
            lines.append(json.dumps({"release": release, "arguments": words, "refused": verdict(code, words)}))
    VERDICTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    refused = sum(not line.endswith('"refused": ""}') for line in lines)
    print(f"{len(lines)} verdicts, {refused} refusals: {VERDICTS}")


if __name__ == "__main__":
    main()
