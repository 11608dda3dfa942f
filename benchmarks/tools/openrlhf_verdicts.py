"""Make tests/frameworks/openrlhf_verdicts.jsonl: command lines, and what OpenRLHF's own parser and assertions say to each.

    python benchmarks/tools/openrlhf_verdicts.py

Of each release in RELEASES and the newest one, only this is run: the parser of openrlhf/cli/train_ppo_ray.py, what follows it
up to the training, the assertions of the training, and the checks of the loss. Ray, vLLM and torch are not needed.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from tables import Package, fetch

from grporecipe.frameworks.openrlhf.recipes import DOTTED, RENAMED, releases
from grporecipe.model.releases import parse_release

VERDICTS = Path(__file__).resolve().parents[2] / "tests" / "frameworks" / "openrlhf_verdicts.jsonl"
RELEASES = ("0.6.4", "0.7.5", "0.8.5", "0.9.3", "0.10.1", "0.11.0")
SOURCE = "openrlhf/cli/train_ppo_ray.py"
CORRECTION = "algo.advantage.is_correction"
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
# Of the releases with sections, whose options the older ones do not have.
NEWER: tuple[dict[str, str | None], ...] = (
    {"algo.kl.unbiased_gradient": "", "kl_estimator": "k1"}, {"advantage_estimator": "flash_reinforce"},
    {f"{CORRECTION}_enable": ""}, {f"{CORRECTION}_enable": "", f"{CORRECTION}_type": "icepop"}, {f"{CORRECTION}_level": "seq"},
    {f"{CORRECTION}_level": "token", f"{CORRECTION}_mode": "clip"}, {f"{CORRECTION}_level": "seq", f"{CORRECTION}_mode": "clip"},
    {f"{CORRECTION}_level": "token", f"{CORRECTION}_gating": "binary_kl"}, {f"{CORRECTION}_gating": "tv"},
    {f"{CORRECTION}_level": "seq", f"{CORRECTION}_gating": "binary_kl", f"{CORRECTION}_threshold": "0.05"},
    {f"{CORRECTION}_level": "seq", f"{CORRECTION}_gating": "tv", f"{CORRECTION}_threshold": "0 0.1"},
    {f"{CORRECTION}_mode": "clip", f"{CORRECTION}_gating": "tv"}, {f"{CORRECTION}_threshold": "0.1 0.2 0.3"},
    {f"{CORRECTION}_threshold": "2"}, {f"{CORRECTION}_level": "sentence"}, {"actor.loss_agg_mode": "seq-mean-token-mean"},
    {"actor.loss_agg_mode": "seq-mean"}, {f"{CORRECTION}_type": "none"},
)  # fmt: skip


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


def program(release: Package) -> Any:
    """What a release does with a command line before it trains, as code."""
    source = release.tree(SOURCE)
    functions = {node.name: node for node in source.body if isinstance(node, ast.FunctionDef)}
    main = next(node for node in source.body if isinstance(node, ast.If))
    body = [node for node in main.body if not isinstance(node, ast.ImportFrom)]
    body = [node for node in body if "modelscope" not in ast.unparse(node) and ast.unparse(node) != "train(args)"]
    checks = functions["_validate_args"].body if "_validate_args" in functions else []
    whole = [*body, *checks, *only_assertions(functions["train"].body), *checks_of_the_loss(release)]
    if "hierarchize" in ast.unparse(main):
        whole = [*release.tree("openrlhf/utils/config.py").body, *whole]
    module = ast.Module(
        [node for node in whole if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call)], []
    )
    return compile(ast.fix_missing_locations(module), release.path.name, "exec")


def checks_of_the_loss(release: Package) -> Iterator[ast.stmt]:
    """The refusals of PolicyLoss that depend on its arguments for the correction, since 0.11.2."""
    loss = next(
        node for node in release.tree("openrlhf/models/loss.py").body if getattr(node, "name", "") == "PolicyLoss"
    )
    function = next(node for node in ast.walk(loss) if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    for statement in function.body:
        names = names_in(statement.test) if isinstance(statement, ast.If) else set()
        if (
            names
            and all(name.startswith("is_correction_") for name in names)
            and isinstance(statement.body[0], ast.Raise)
        ):
            yield from ast.parse("\n".join(f"{name} = args.algo.advantage.{name}" for name in sorted(names))).body
            yield statement


def verdict(code: Any, arguments: list[str]) -> str:
    """Why a command line is refused; empty where it is not."""
    names = {"argparse": argparse, "os": os, "datetime": datetime, "__name__": "__verdict__"}
    said, sys.argv = io.StringIO(), ["train_ppo_ray.py", *arguments]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            exec(code, names)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except (AssertionError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Write a line a command."""
    lines = []
    for release in (*RELEASES, ".".join(map(str, releases()[-1]))):
        code, is_dotted = program(fetch("openrlhf", release)), parse_release(release) >= DOTTED
        for change in (*CHANGES, *(NEWER if is_dotted else ())):
            given = {name: value for name, value in {**BASE, **change}.items() if value is not None}
            names = {name: RENAMED.get(name, name) if is_dotted else name for name in given}
            words = [word for name, value in given.items() for word in (f"--{names[name]}", *value.split(" ")) if word]
            lines.append(json.dumps({"release": release, "arguments": words, "refused": verdict(code, words)}))
    VERDICTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    refused = sum(not line.endswith('"refused": ""}') for line in lines)
    print(f"{len(lines)} verdicts, {refused} refusals: {VERDICTS}")


if __name__ == "__main__":
    main()
