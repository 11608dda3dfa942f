"""Every YAML file that ships composes, fits the schema, and stays in one style; every sweep has a valid point."""

from collections.abc import Callable
from pathlib import Path

import pytest
from grposweep.config.checks import check_words
from grposweep.config.compose import PROJECT, to_experiment
from grposweep.config.points import Points
from grposweep.config.schema import GROUPS
from grposweep.search.parse import parse_space
from grposweep.sweep.judge import Judge, check_dials
from omegaconf import DictConfig, OmegaConf

Compose = Callable[[list[str]], DictConfig]

CONF = PROJECT / "conf"
OPTIONS = sorted(path.relative_to(CONF) for group in GROUPS for path in (CONF / group).glob("*.yaml"))
SWEEPS = sorted((PROJECT / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("path", OPTIONS, ids=str)
def test_every_option_of_every_group_composes_and_fits_the_schema(
    path: Path, compose: Compose, prompts: Path
) -> None:
    """An option that nobody composes breaks for its first user."""
    overrides = [f"{path.parent}={path.stem}"]
    if path.stem == "jsonl":
        overrides.append(f"'task.path={prompts}'" if " " not in str(prompts) else f"task.path='{prompts}'")
    config = compose(overrides)
    experiment = to_experiment(config)
    check_words(experiment)
    assert config.hydra.runtime.choices[str(path.parent)] == path.stem
    section = OmegaConf.load(CONF / path)
    assert isinstance(section, DictConfig)
    if path.parent.name != "debug":  # the one group that sets keys of others
        for key in section:
            assert hasattr(getattr(experiment, path.parent.name), str(key))


@pytest.mark.parametrize("path", [*OPTIONS, *SWEEPS], ids=str)
def test_every_file_says_in_its_first_lines_what_it_is(path: Path) -> None:
    """``--help`` lists names only; the file explains itself, a sweep with its command."""
    first = (CONF / path).read_text().splitlines()
    comments = [line for line in first[:2] if line.startswith("# ") and "@package" not in line]
    assert comments
    if path in SWEEPS:
        assert comments[0].startswith(f"# python src/run.py sweeps={path.stem}")


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_has_its_folder_and_an_option_in_the_defaults(group: str, compose: Compose) -> None:
    """The defaults list is the table of contents."""
    assert (CONF / group).is_dir()
    assert compose([]).hydra.runtime.choices[group] in {path.stem for path in (CONF / group).glob("*.yaml")}


def test_no_option_is_named_like_a_yaml_boolean() -> None:
    """``kl=off`` would arrive as false."""
    names = {path.stem for path in OPTIONS}
    assert names.isdisjoint({"on", "off", "yes", "no", "true", "false", "null", "y", "n"})


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_file_composes_and_has_a_valid_point(path: Path, compose: Compose) -> None:
    """Copy, paste, running: as the sweeper plugin does it."""
    shared = [f"sweeps={path.stem}"]
    config = compose(shared)
    assert config.hydra.mode.name == "MULTIRUN"
    params = OmegaConf.to_container(config.hydra.sweeper.params)
    assert isinstance(params, dict)
    space, fixed = parse_space(shared, params)
    points = Points(compose, fixed)
    check_words(points.base)
    check_dials(space, points)
    assert any(verdict.is_valid for verdict in Judge(space, points).finite())


def test_conf_sweeps_is_the_sweeps_folder() -> None:
    """Hydra looks under conf/ only, people look at the top."""
    assert (CONF / "sweeps").resolve() == PROJECT / "sweeps"
    assert SWEEPS
