"""Every YAML file that ships composes, fits the schema, and stays in one style; every sweep has a
valid point.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grposweep.config.compose import to_experiment
from grposweep.config.points import Compose, Points
from grposweep.process import PROJECT
from grposweep.schema import GROUPS, Experiment
from grposweep.search.parse import parse_space
from grposweep.search.space import Interval
from grposweep.search.validity import Validator, check_space
from support import check_experiment, sampled

# group -> option, and what they make
Composed = tuple[dict[str, str], Experiment]

CONF = PROJECT / "conf"
OPTIONS = sorted(
    path.relative_to(CONF) for group in GROUPS for path in (CONF / group).glob("*.yaml")
)
SWEEPS = sorted((PROJECT / "sweeps").glob("*.yaml"))


@pytest.fixture(scope="module")
def composed(
    compose: Compose, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], Composed]:
    """The composition that holds an option: the n-th option of every group at once, because each
    takes 0.1 s.
    """
    prompts = tmp_path_factory.mktemp("a folder") / "my prompts.jsonl"
    prompts.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    # what an option cannot do without
    needs = {
        "jsonl": f"task.path='{prompts}'",
        "command": "trainer.command='train {output}'; trainer.metrics='{output}/log'",
        "vllm_shared": "model.lora.r=16",
    }
    by_group = {
        group: [path.stem for path in OPTIONS if path.parent.name == group] for group in GROUPS
    }

    @cache
    def row(index: int, debug: str, generation: str = "transformers") -> Composed:
        fixed = {"debug": debug, "generation": generation}
        choices = {group: names[index % len(names)] for group, names in by_group.items()} | fixed
        own = [
            word for name in choices.values() if name in needs for word in needs[name].split("; ")
        ]
        config = compose([*(f"{group}={name}" for group, name in choices.items()), *own])
        return dict(config.hydra.runtime.choices), to_experiment(config)

    def of(path: Path) -> Composed:
        # its options set keys of other groups
        if path.parent.name == "debug":
            return row(0, path.stem)
        # a program of its own takes no vLLM server of ours
        if path.parent.name == "generation":
            return row(by_group["trainer"].index("trl"), "none", path.stem)
        return row(by_group[path.parent.name].index(path.stem), "none")

    return of


@pytest.mark.parametrize("path", sampled(OPTIONS, 3), ids=str)
def test_every_option_of_every_group_composes_and_fits_the_schema(
    path: Path, composed: Callable[[Path], Composed]
) -> None:
    """An option that is never composed breaks for its first user; what it writes is what the
    experiment holds.
    """
    (choices, experiment), group = composed(path), path.parent.name
    assert choices[group] == path.stem
    check_experiment(experiment)
    made = asdict(experiment)
    written = OmegaConf.to_container(OmegaConf.load(CONF / path))
    assert isinstance(written, dict)
    for section, content in (written if group == "debug" else {group: written}).items():
        plain = {
            key: value
            for key, value in content.items()
            if key not in ("defaults", "path", "command", "metrics") and "${" not in str(value)
        }
        assert plain == {key: made[str(section)][key] for key in plain}


@pytest.mark.parametrize("path", [*OPTIONS, *SWEEPS], ids=str)
def test_every_file_says_in_its_first_lines_what_it_is(path: Path) -> None:
    """``--help`` lists names only; the file explains itself, a sweep with its command."""
    first = (CONF / path).read_text().splitlines()
    comments = [line for line in first[:2] if line.startswith("# ") and "@package" not in line]
    assert comments
    if path in SWEEPS:
        assert comments[0].startswith(f"# python src/run.py sweeps={path.stem}")


def test_every_group_has_an_option_in_the_defaults(compose: Compose) -> None:
    """The defaults list is the table of contents."""
    choices = compose([]).hydra.runtime.choices
    assert all(Path(group, f"{choices[group]}.yaml") in OPTIONS for group in GROUPS)
    assert {path.parent.name for path in CONF.glob("*/*.yaml")} == {*GROUPS, "sweeps"}


def test_no_option_is_named_like_a_yaml_boolean() -> None:
    """``kl=off`` would arrive as false."""
    names = {path.stem for path in OPTIONS}
    assert names.isdisjoint({"on", "off", "yes", "no", "true", "false", "null", "y", "n"})


@pytest.mark.parametrize("path", sampled(SWEEPS, 5), ids=lambda path: path.stem)
def test_every_sweep_file_composes_and_has_a_valid_point(path: Path, compose: Compose) -> None:
    """Copy, paste, running: as the sweeper plugin does it."""
    shared = [f"sweeps={path.stem}"]
    config = compose(shared)
    assert config.hydra.mode.name == "MULTIRUN"
    params = OmegaConf.to_container(config.hydra.sweeper.params)
    assert isinstance(params, dict)
    space, fixed = parse_space(shared, {str(name): content for name, content in params.items()})
    points = Points(compose, fixed)
    check_space(space, points)
    validator = Validator(space, points)
    middle = {
        one.name: one.domain.at(0.5) for one in space.parameters if isinstance(one.domain, Interval)
    }
    assert any(validator.is_valid({**point, **middle}) for point in space.finite_points())


def test_conf_sweeps_is_the_sweeps_folder() -> None:
    """Hydra reads conf/ only; users look in the top folder."""
    assert (CONF / "sweeps").resolve() == PROJECT / "sweeps"
    assert SWEEPS
