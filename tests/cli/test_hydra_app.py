"""``hydra/sweeper=grposweep`` in an application that knows nothing of grposweep: search, validator, resume, its own launcher."""

import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from grposweep.sweep.any_app import sweep_app
from support import PROJECT, environment, lines, read

APP = '''
"""Someone's application: no import of grposweep."""

import os
from pathlib import Path

import hydra
from omegaconf import DictConfig


def check(config):
    """The application's validator."""
    return [f"{config.batch} is not divisible by {config.group}"] if config.batch % config.group else None


@hydra.main(version_base="1.3", config_path=".", config_name="app")
def main(config: DictConfig) -> float | None:
    with Path("calls.txt").open("a") as file:
        file.write(f"{config.lr} {config.batch} {config.model.name}\\n")
    if os.environ.get("BREAK") == str(config.lr):
        raise ValueError("it broke")
    return None if config.silent else config.lr * config.batch


if __name__ == "__main__":
    main()
'''
CONFIG = """
defaults: [{model: small}, _self_]
lr: 1.0
batch: 8
group: 4
silent: false
"""
SWEEPER = ("-m", "hydra/sweeper=grposweep")
GRID = ("lr=1.0,2.0", "batch=6,8", "hydra.sweeper.validator=app.check")


class App:
    """The application in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "model").mkdir()
        for size in ("small", "large"):
            (folder / "model" / f"{size}.yaml").write_text(f"name: {size}\n")
        (folder / "app.py").write_text(APP)
        (folder / "app.yaml").write_text(CONFIG)

    def run(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of the user's."""
        env = environment(PYTHONPATH=str(PROJECT / "src"), **variables)
        command = [sys.executable, "app.py", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )

    @property
    def calls(self) -> list[str]:
        """What the jobs trained, in order."""
        return (self.folder / "calls.txt").read_text().splitlines()

    @property
    def sweep(self) -> Path:
        """The one sweep's folder."""
        (folder,) = (self.folder / "multirun").iterdir()
        return folder


@pytest.fixture
def app(tmp_path: Path) -> App:
    """Return a foreign application."""
    return App(tmp_path)


@pytest.mark.slow
def test_an_app_is_swept_and_the_same_command_repeats_only_what_failed(app: App) -> None:
    """The plugin is found, invalid points never start, and a job that failed runs again in its folder."""
    first = app.run(*SWEEPER, *GRID, BREAK="1.0")
    assert first.returncode == 0, first.stderr
    assert app.calls == ["1.0 8 small", "2.0 8 small"]
    assert [line["problems"] for line in lines(app.sweep / "invalid.jsonl")] == [["6 is not divisible by 4"]] * 2
    second = app.run(*SWEEPER, *GRID)
    assert second.returncode == 0, second.stderr
    assert app.calls[2:] == ["1.0 8 small"]
    assert "best_value: 16.0" in (app.sweep / "optimization_results.yaml").read_text()
    assert sorted(path.name for path in app.sweep.iterdir() if path.name.isdigit()) == ["0", "1"]
    refused = app.run(*SWEEPER, *GRID, "hydra.sweeper.validator=app.no_such")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


def test_the_plugin_costs_an_application_nothing() -> None:
    """Hydra imports it at every start."""
    code = (
        "import sys, hydra_plugins.grposweep.sweeper; print({'grposweep', 'optuna', 'yaml.cyaml'} & set(sys.modules))"
    )
    env = environment(PYTHONPATH=str(PROJECT / "src"))
    before = code.replace("hydra_plugins.grposweep.sweeper", "hydra.core.config_store, hydra.plugins.sweeper")
    with_plugin, without = (
        subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True).stdout
        for text in (code, before)
    )
    assert with_plugin == without


Sweep = Callable[..., int]


@pytest.fixture
def sweep(app: App) -> Sweep:
    """``sweep(function, "lr=1,2", sampler="tpe")``: the same in this process, without Hydra's logging."""
    quiet = [f"hydra/{kind}_logging=none" for kind in ("hydra", "job")]

    def run(
        function: Callable[[DictConfig], Any], *arguments: str, params: dict[str, Any] | None = None, **options: Any
    ) -> int:
        with initialize_config_dir(config_dir=str(app.folder), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            hydra = [*quiet, f"hydra.sweep.dir={app.folder / 'sweep'}"]
            config = loader.load_configuration("app", [*hydra, *arguments], RunMode.MULTIRUN)
            return sweep_app(
                HydraContext(loader, Callbacks()), function, config, list(arguments), params or {}, options
            )

    return run


def is_even(config: DictConfig) -> str | None:
    """A validator that answers with a text."""
    return f"{config.batch} is odd" if config.batch % 2 else None


def test_tpe_launches_valid_points_only_and_continues_where_it_ended(sweep: Sweep) -> None:
    """Half of the space is invalid; a larger n_trials adds jobs to the same sweep."""
    seen: list[tuple[float, int]] = []

    def train(config: DictConfig) -> float:
        seen.append((config.lr, config.batch))
        return -abs(float(config.lr) - 0.1)

    search = ("lr=tag(log,interval(0.001,1))", "batch=range(1,5)")
    options = {"sampler": "tpe", "validator": f"{__name__}.is_even"}
    assert sweep(train, *search, **options, n_trials=2) == 0
    assert sweep(train, *search, **options, n_trials=3) == 0
    assert len(seen) == len(set(seen)) == 3
    assert {batch for _, batch in seen} <= {2, 4}


def test_the_default_folder_has_the_same_name_in_each_run_and_release(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head of the sweep's identity. With another name or length the same command would not find its jobs."""
    monkeypatch.chdir(tmp_path)
    words = ("lr=1,2", "hydra.sweep.dir=multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}")
    assert sweep(lambda _: 0.0, *words) == 0
    assert sweep(lambda _: pytest.fail("a job ran"), *words) == 0
    (folder,) = (path.parent for path in (tmp_path / "multirun").glob("*/app_sweep.json"))
    assert folder.name == "app-91eb3963"
    assert read(folder / "app_sweep.json")["identity"].startswith("91eb3963")


def test_values_arrive_as_they_were_typed(sweep: Sweep) -> None:
    """Text that looks like a number, null, a list, a key that the configuration lacks, an option of a group."""
    seen: list[Any] = []
    typed = "lr='1e-3',null,[1,a b],\"it's\""
    sweep(lambda c: seen.append((c.lr, c.extra, c.model.name)), typed, "+extra=10", "model=choice(large)")
    assert seen == [(lr, 10, "large") for lr in ("1e-3", None, [1, "a b"], "it's")]


def test_jobs_that_ended_count_although_their_batch_died(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that raises says nothing of the other jobs; only the one without a result runs again."""
    make, seen = Plugins.instance().instantiate_launcher, list[int]()

    def dying(**arguments: Any) -> Any:
        launcher = make(**arguments)
        launch = launcher.launch

        def dies(job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Any:
            launch(job_overrides[:1], initial_job_idx)
            raise RuntimeError("job 1 was killed")

        launcher.launch = dies  # type: ignore[method-assign]
        return launcher

    def train(config: DictConfig) -> int:
        seen.append(config.batch)
        return int(config.batch)

    with monkeypatch.context() as patched:
        patched.setattr(Plugins.instance(), "instantiate_launcher", dying)
        assert sweep(train, "batch=1,2,3", n_jobs=3) == 0
    assert sweep(train, "batch=1,2,3", n_jobs=3) == 0
    assert seen == [1, 2, 3]


def test_three_jobs_that_fail_alike_stop_the_sweep(sweep: Sweep) -> None:
    """The other 97 would fail as well."""
    seen: list[int] = []

    def train(config: DictConfig) -> None:
        seen.append(config.batch)
        raise ValueError("no such file")

    assert sweep(train, "batch=range(100)") == 1
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (["lr=interval(0,1)"], {"sampler": "grid"}, "sampler=tpe"),
        (["lr=1,2"], {"sampler": "best"}, "grid, tpe, random"),
        (["lr=1,2"], {"validator": "no.such"}, "package.module.function"),
        (["lr=1,2"], {"validator": "json.nope"}, "Error loading 'json.nope'. Name"),
        (["lr=1,2"], {"n_jobs": 0}, "Set 1 or more"),
        (["lr=1,2"], {"foo": 1}, "hydra.sweeper.foo: the sweeper has no such key. Set one of params, sampler"),
    ],
)
def test_a_mistake_is_one_message(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], arguments: list[str], options: dict[str, Any], said: str
) -> None:
    """Exit code 2, before anything is launched."""
    assert sweep(lambda _: pytest.fail("a job ran"), *arguments, **options) == 2
    assert said in capsys.readouterr().err


def test_tpe_says_that_it_needs_a_number(sweep: Sweep, app: App, caplog: pytest.LogCaptureFixture) -> None:
    """An application that returns nothing can be swept by a grid; it counts as finished there."""
    assert sweep(lambda _: None, "lr=interval(0,1)", n_trials=3) == 1
    assert "sampler=tpe needs a finite number" in caplog.text
    assert sweep(lambda _: None, "lr=1,2", f"hydra.sweep.dir={app.folder / 'other'}") == 0


def test_a_folder_takes_one_sweep_only(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    """Results of another configuration would be mixed with these."""
    assert sweep(lambda _: 1, "lr=choice(1)") == 0
    assert sweep(lambda _: pytest.fail("a job ran"), "lr=choice(1)", "batch=4") == 2
    assert "Set another hydra.sweep.dir" in capsys.readouterr().err


def test_a_single_value_in_params_belongs_to_the_sweep(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    """Changed in conf, it is another configuration; its place there and a typed value that wins over it are not."""
    seen: list[int] = []

    def train(config: DictConfig) -> int:
        seen.append(config.batch)
        return 1

    assert sweep(train, "lr=choice(1)", params={"batch": 32, "group": 2}) == 0
    assert sweep(train, "lr=choice(1)", params={"group": 2, "batch": 32}) == 0
    assert sweep(train, "lr=choice(1)", params={"batch": 64, "group": 2}) == 2
    assert "Set another hydra.sweep.dir" in capsys.readouterr().err
    assert seen == [32]


def test_a_typed_value_has_one_place_in_the_identity(sweep: Sweep) -> None:
    """The value in conf that it replaces says nothing."""
    assert sweep(lambda _: 1, "lr=choice(1)", "batch=4", params={"batch": 32}) == 0
    assert sweep(lambda _: pytest.fail("a job ran"), "lr=choice(1)", "batch=4") == 0


def test_sys_exit_ends_a_job_and_not_its_sweep(sweep: Sweep, caplog: pytest.LogCaptureFixture) -> None:
    """A code other than 0 is a failure; 0 and none are a return of None."""
    caplog.set_level(logging.INFO)
    codes = {0: 3, 1: 0, 2: None, 3: "no data"}
    seen: list[int] = []

    def train(config: DictConfig) -> None:
        seen.append(config.batch)
        sys.exit(codes[config.batch])

    assert sweep(train, "batch=range(4)") == 0
    assert seen == [0, 1, 2, 3]
    assert "job 0 failed: batch=0: it called sys.exit(3)" in caplog.text
    assert "job 3 failed: batch=3: it called sys.exit('no data')" in caplog.text
    assert "2 of 4 jobs finished" in caplog.text


def test_an_invalid_point_counts_once(sweep: Sweep, app: App, caplog: pytest.LogCaptureFixture) -> None:
    """However often the sampler asks for it."""
    caplog.set_level(logging.INFO)
    options = {"sampler": "tpe", "validator": f"{__name__}.is_even", "n_trials": 5}
    assert sweep(lambda config: config.batch, "batch=range(1,5)", **options) == 0
    assert sorted(line["point"]["batch"] for line in lines(app.folder / "sweep" / "invalid.jsonl")) == [1, 3]
    assert "2 of 2 jobs finished, 2 points were invalid" in caplog.text
    assert caplog.text.count("invalid: batch=1: 1 is odd") == 1


def test_points_that_are_invalid_for_the_same_reason_are_printed_once(
    sweep: Sweep, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an interval the sampler draws many; the file has each."""
    caplog.set_level(logging.INFO)
    options = {"sampler": "random", "validator": f"{__name__}.is_even", "n_trials": 6}
    assert sweep(lambda config: config.batch, "lr=interval(0.1,1.0)", "batch=1,2", **options) == 0
    assert len(lines(app.folder / "sweep" / "invalid.jsonl")) > 1
    assert caplog.text.count("1 is odd") == 1


def test_the_best_job_is_named_as_its_folder(sweep: Sweep, app: App, caplog: pytest.LogCaptureFixture) -> None:
    """A job that was tried again has the folder of its first trial."""
    caplog.set_level(logging.INFO)
    broken = [True]

    def train(config: DictConfig) -> int:
        if config.batch == 9 and broken:
            raise ValueError(broken.pop())
        return int(config.batch)

    assert sweep(train, "batch=9,8") == 0
    assert sweep(train, "batch=9,8") == 0
    assert "job 0 failed: batch=9: ValueError: True (in " in caplog.text
    assert "job 2 (job 0 again) finished: batch=9: 9" in caplog.text
    assert f"best: job 0: batch=9: 9.0 (in {app.folder / 'sweep' / '0'})" in caplog.text
    assert "best_job: 0" in (app.folder / "sweep" / "optimization_results.yaml").read_text()
