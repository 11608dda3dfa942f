"""The loader that composes once returns what Hydra's own loader returns."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf

from grposweep.config._loader import OnceLoader
from support import sampled

MAIN = "defaults: [{size: '???'}, _self_]\nlr: 1.0\nhydra: {mode: null, run: {dir: .}}\n"


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration with a group of two options, of which none is chosen."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "size").mkdir()
    (folder / "config.yaml").write_text(MAIN)
    for name in ("small", "large"):
        (folder / "size" / f"{name}.yaml").write_text(
            f"name: {name}\nlog: ${{hydra.job.override_dirname}}\n"
        )
    return folder


@pytest.fixture
def loader(conf: Path) -> Iterator[ConfigLoader]:
    """The loader of an application with that configuration."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def ask_for(loader: ConfigLoader, overrides: list[str], mode: str) -> list[str]:
    """What a command asks of a loader: hydra.mode, the run or sweep, what the points share. YAML,
    or the refusal.
    """
    shared = [word for word in overrides if "," not in word and not word.startswith("hydra.")]
    asked = [
        (overrides, RunMode.MULTIRUN, False),
        ([*overrides, f"hydra.mode={mode}"], RunMode[mode], True),
        (shared, RunMode.RUN, True),
    ]
    answers = []
    for words, run_mode, is_checked in asked:
        try:
            config = loader.load_configuration(
                "config", words, run_mode, validate_sweep_overrides=is_checked
            )
            answers.append(OmegaConf.to_yaml(config, resolve=False))
        except HydraException as error:
            answers.append(str(error))
    return answers


@pytest.mark.parametrize("mode", sampled(["MULTIRUN", "RUN"], 2))
@pytest.mark.parametrize(
    "overrides",
    [
        "size=small lr=2",
        "size=small lr=2 hydra.verbose=true +more=1",
        "size=small lr=1,2 hydra.job.config.override_dirname.item_sep=;",
        "lr=2",
        "size=small,large lr=2",
        "size=tiny",
        "lrr=2 size=small",
        "lr=]",
        "size=small hydra.mode=MULTIRUN",
        "size=small hydra.verbose=true,false",
    ],
)
def test_one_composition_equals_what_hydra_composes(
    overrides: str, mode: str, loader: ConfigLoader
) -> None:
    """With options left open, sweeps, settings of Hydra's own, and everything that Hydra
    refuses.
    """
    assert isinstance(loader, OnceLoader)
    words = overrides.split()
    assert ask_for(loader, words, mode) == ask_for(
        ConfigLoaderImpl(loader.get_search_path()), words, mode
    )


@pytest.mark.parametrize("results", [ObjectType.CONFIG, ObjectType.GROUP])
@pytest.mark.parametrize("folders", ["", "pkg://logging"])
def test_the_groups_of_the_help_equal_hydras(
    folders: str, results: ObjectType, loader: ConfigLoader
) -> None:
    """With further folders on the command line too."""
    own = ConfigLoaderImpl(loader.get_search_path())
    more = ("config", [f"hydra.searchpath=[{folders}]"]) if folders else ()
    for group in ("", "size"):
        assert loader.get_group_options(group, results, *more) == own.get_group_options(
            group, results, *more
        )


def test_a_command_is_composed_once(conf: Path, tmp_path: Path) -> None:
    """The second composition reads no file."""
    gone = shutil.copytree(conf, tmp_path / "conf")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(gone), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        loader.load_configuration("config", ["size=small"], RunMode.MULTIRUN)
        shutil.rmtree(gone)
        for words in (["size=small", "hydra.mode=RUN"], ["size=small"]):
            assert loader.load_configuration("config", words, RunMode.RUN).size.name == "small"
