"""verl by release: its keys as Hydra composes them, what it does with them, and its source in a
repository.
"""

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json, read_own_yaml
from grporecipe.frameworks.verl import keys as verl
from grporecipe.frameworks.verl.keys import refusals, spec_of
from grporecipe.frameworks.verl.source import Composer, read_source
from grporecipe.linting.linter import lint_recipe
from grporecipe.linting.output import Diagnostic
from grporecipe.model.recipe import LaunchContext, Recipe, VersionSource
from grporecipe.model.releases import KeyTable, parse_release
from grporecipe.model.setting import Version
from grporecipe.model.values import flatten
from grporecipe.reading.yaml_text import parse_override
from verdicts import codes_of, lint_text

ACTOR, ROLLOUT, REF = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.ref",
)
RECIPE = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    f"{ROLLOUT}.n": 8,
    f"{ACTOR}.ppo_mini_batch_size": 32,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 4,
    f"{REF}.log_prob_micro_batch_size_per_gpu": 4,
    "trainer.n_gpus_per_node": 8,
}
MAIN = "verl.trainer.main_ppo"


def recipe_of(
    config: Json, version: Version = (0, 9, 1), program: str = MAIN, **more: Any
) -> Recipe:
    """Return a recipe of overrides on a script's line 1."""
    stated = VersionSource("asked", "--framework-version", ".".join(map(str, version)))
    return Recipe(
        "verl",
        version,
        config,
        file="run.sh",
        lines=dict.fromkeys(config, 1),
        version_source=stated,
        launch=LaunchContext("python", program),
        **more,
    )


def judge(
    config: Json, version: Version = (0, 9, 1), program: str = MAIN, **more: Any
) -> dict[str, Diagnostic]:
    """Return what is found in a recipe, by code."""
    return {
        found.code: found
        for found in lint_recipe(recipe_of(config, version, program, **more)).diagnostics
    }


def rows() -> list[Json]:
    """Return Hydra's verdicts on overrides, by release and engine
    (benchmarks/frameworks/verl_overrides.py).
    """
    return [
        json.loads(line)
        for line in Path(__file__).with_name("verl_overrides.jsonl").read_text().splitlines()
    ]


def test_hydra_takes_what_the_table_of_each_release_takes() -> None:
    """Drawn from the keys of all releases, 0.1 to 0.9.1, with every sign, below mappings and
    nulls.
    """
    seen = set()
    for row in rows():
        known = verl.known(parse_release(row["release"]), row["engine"])
        for override in (*row["taken"], *row["refused"]):
            parsed = parse_override(override)
            assert parsed is not None
            key = parsed.sign + parsed.key
            recipe = Recipe("verl", verl.VERSION, {key: parsed.value}, lines={key: 1})
            assert bool(list(refusals(recipe, known))) == (override in row["refused"]), (
                row["release"],
                row["engine"],
                override,
            )
        seen.add((row["release"], row["engine"]))
    assert len(seen) == sum(map(len, verl.spans().values()))


def test_every_release_and_engine_is_known() -> None:
    """Veomni and torchtitan have keys of their own since 0.7.1."""
    assert verl.releases()[0] == (0, 1, 0)
    assert verl.releases()[-1] == verl.VERSION
    assert f"{ACTOR}.veomni.param_offload" in verl.known(verl.VERSION, "veomni")
    assert f"{ACTOR}.fsdp_config.param_offload" not in verl.known(verl.VERSION, "veomni")
    assert verl.known((0, 2, 0), "veomni") == verl.known((0, 2, 0))


MEANINGS = read_own_yaml(__file__, "verl_releases.yaml")


@pytest.mark.parametrize("row", MEANINGS.values(), ids=MEANINGS)
def test_a_recipe_is_judged_as_the_release_does(row: Json) -> None:
    """What a release does not check trains there, and it takes words of its own."""
    config, version = {**RECIPE, **row["changes"]}, tuple(row["version"])
    s, said = read_recipe(recipe_of(config, version)).setting, judge(config, version)
    fields = row.get("fields", {})
    assert {name: getattr(s, name) for name in fields} == fields
    for code, words in row.get("says", {}).items():
        assert words in said[code].message
    assert said.keys().isdisjoint(row.get("silent", ()))


def test_a_key_below_an_empty_mapping_needs_a_plus() -> None:
    """Hydra's struct mode; the fix is safe, since the key is the same."""
    key = f"{ROLLOUT}.engine_kwargs.vllm.swap_space"
    found = judge({**RECIPE, f"{ROLLOUT}.name": "vllm", key: 4})["GV401"]
    assert [(fix.change, fix.safe) for fix in found.fixes] == [({key: None, f"+{key}": 4}, True)]
    assert "GV401" not in judge({**RECIPE, f"{ROLLOUT}.name": "vllm", f"+{key}": 4})


def test_groups_of_n_agent_are_no_lone_completions() -> None:
    """Search-R1 and its forks repeat prompts before the rollout."""
    known = KeyTable({**verl.known((0, 2, 0)), f"{ROLLOUT}.n_agent": spec_of(1)})
    config = {**RECIPE, f"{ROLLOUT}.n": 1, f"{ROLLOUT}.n_agent": 8}
    assert "GB302" not in judge(config, (0, 2, 0), vendored=known)
    assert "GB302" in judge({**config, f"{ROLLOUT}.n_agent": 1}, (0, 2, 0), vendored=known)
    setting = read_recipe(recipe_of(config, (0, 2, 0), vendored=known)).setting
    assert (setting.num_generations, setting.prompts_per_step) == (8, 4)


def test_another_trainer_is_judged_by_what_holds_for_any() -> None:
    """DAPO's own fetches more prompts than a rollout holds; its configuration has more keys."""
    config = {
        **RECIPE,
        "data.gen_batch_size": 192,
        "algorithm.own": 1,
        "algorithm.adv_estimator": "ours",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5,
    }
    assert {"GB407", "GV401", "GV305"} <= judge(config).keys()
    assert {
        code for code in judge(config, program="recipe.dapo.main_dapo") if code != "GB404"
    } == set()
    assert "GB404" in judge(config, program="recipe.dapo.main_dapo")


def test_suggestions_mean_the_same() -> None:
    """As a slip of the last word does."""
    slip = judge({**RECIPE, f"{ROLLOUT}.temprature": 1.0})["GV401"]
    assert f"{ROLLOUT}.temperature" in slip.fixes[0].change


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write the files of a small repository."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


CONFIG = "verl/trainer/config"
FORK = {
    f"{CONFIG}/ppo_trainer.yaml": "defaults:\n  - engine: dp\n  - "
    "actor@actor_rollout_ref.actor: ${engine}_actor\n  - _self_\n"
    "trainer: {nnodes: 1, own_switch: false}\nalgorithm: {adv_estimator: gae}\n",
    f"{CONFIG}/engine/dp.yaml": "# @package _global_\nengine: dp\n",
    f"{CONFIG}/engine/big.yaml": "# @package _global_\nengine: big\n",
    f"{CONFIG}/actor/actor.yaml": "use_kl_loss: false\nlimits: {}\n",
    f"{CONFIG}/actor/dp_actor.yaml": (
        "defaults:\n  - ../optim@optim: plain\n  - actor\n  - _self_\nuse_kl_loss: true\n"
    ),
    f"{CONFIG}/actor/big_actor.yaml": "defaults: [actor, _self_]\nbig: {size: 2}\n",
    f"{CONFIG}/optim/plain.yaml": "lr: 1e-6\n",
    "verl/trainer/main_ppo.py": (
        "@hydra.main(config_path='config', config_name='ppo_trainer')\ndef main(config): ...\n"
    ),
    "recipe/own/main_own.py": (
        "@hydra.main(config_path='config', config_name='own')\ndef main(config): ...\n"
    ),
    "recipe/own/config/own.yaml": "hydra:\n  searchpath: "
    "[file://verl/trainer/config]\ndefaults: [ppo_trainer, "
    "_self_]\n"
    "data: {own_size: 4}\n",
}


@pytest.mark.parametrize("overrides", [[], ["engine=big"]])
def test_a_fork_s_configuration_is_composed_as_hydra_does(
    tmp_path: Path, overrides: list[str]
) -> None:
    """Groups in packages, an option that refers to another one, parents, headers."""
    folder = write(tmp_path, FORK) / CONFIG
    with initialize_config_dir(str(folder), version_base=None):
        wanted = OmegaConf.to_container(compose("ppo_trainer", overrides=overrides), resolve=False)
    assert isinstance(wanted, dict)
    choices = dict(override.split("=") for override in overrides)
    assert Composer((folder,), choices).compose("ppo_trainer") == flatten(
        {str(key): inner for key, inner in wanted.items()}
    )


def test_the_program_s_own_configuration_counts(tmp_path: Path) -> None:
    """``hydra.main`` of the launched file names it; verl's is beneath."""
    folder = write(tmp_path, FORK)
    keys, version, *_ = read_source(folder, recipe_of({}, program="recipe.own.main_own"))
    assert keys is not None
    assert {"data.own_size", "trainer.own_switch", f"{ACTOR}.optim.lr"} <= keys.keys()
    assert version in verl.releases()
    assert read_source(folder, recipe_of({}, program="recipe.gone.main_gone"))[0] is None


@pytest.mark.parametrize(
    "defaults", ["[../../../secret]", "[ppo_trainer]", "[[[[1]]]]", "[{a: b, c: d}]", "[gone]"]
)
def test_a_hostile_configuration_has_no_keys(tmp_path: Path, defaults: str) -> None:
    """One that leads out of its folder, includes itself, or is no list of files."""
    files = {
        **FORK,
        f"{CONFIG}/ppo_trainer.yaml": f"defaults: {defaults}\n",
        "secret.yaml": "a: 1\n",
    }
    assert read_source(write(tmp_path, files), recipe_of({}))[0] is None


def test_a_file_of_verl_s_keys_may_add_keys_and_leave_the_rest_to_the_command_line(
    tmp_path: Path,
) -> None:
    """An override of the same unknown key stops, and a typo is named; a size without a value is set
    where the file is used.
    """
    mine = (
        "algorithm: {adv_estimator: grpo, own_bonus: 0.1, kl_penaltyy: kl}\n"
        "actor_rollout_ref:\n  rollout: {n: 8, log_prob_micro_batch_size_per_gpu: null}\n"
        "  actor: {policy_loss: {loss_mode: mine}}\n"
    )
    found = lint_text(tmp_path, mine, "mine.yaml", own_version="0.9.1")
    assert found.ok
    unknown = [diagnostic.message for diagnostic in found.diagnostics if diagnostic.code == "GV401"]
    assert len(unknown) == 1
    assert "kl_penaltyy" in unknown[0]
    assert "GV305" in codes_of(found.diagnostics)
    launch = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo algorithm.own_bonus=0.1\n"
    )
    assert not lint_text(tmp_path, launch, own_version="0.9.1").ok


@pytest.mark.parametrize("sign", sorted(set(string.punctuation) - set("\\'\"()[]{},$")))
def test_a_character_that_hydra_cannot_parse_is_an_error(sign: str, tmp_path: Path) -> None:
    """And no other: asked of Hydra's own parser."""
    launch = f"python3 -m verl.trainer.main_ppo 'actor_rollout_ref.model.path=a{sign}b'\n"
    found = codes_of(lint_text(tmp_path, launch).diagnostics)
    try:
        OverridesParser.create().parse_override(f"actor_rollout_ref.model.path=a{sign}b")
    except HydraException:
        assert "GV407" in found
    else:
        assert "GV407" not in found


def test_a_file_is_not_blamed_for_a_group_that_it_does_not_size(tmp_path: Path) -> None:
    """It is merged over another one; a launch that leaves the group out is complete, and has one
    completion.
    """
    part = "algorithm: {adv_estimator: grpo}\nactor_rollout_ref:\n  actor: {clip_ratio: 0.2}\n"
    for group, is_judged in (("", False), ("  rollout: {n: 1}\n", True)):
        found = lint_text(tmp_path, part + group, "part.yaml").diagnostics
        assert ("GB302" in codes_of(found)) is is_judged


def test_groups_that_prime_sizes_by_its_own_key_have_more_than_one_completion(
    tmp_path: Path,
) -> None:
    """``data.n_samples`` of its fork sizes the group, and ``rollout.n`` stays 1."""
    launch = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo "
        "data.train_batch_size=256 data.n_samples={}\n"
    )
    for count, is_judged in ((1, True), (4, False)):
        found = lint_text(tmp_path, launch.format(count)).diagnostics
        assert ("GB302" in codes_of(found)) is is_judged
