"""Real Hydra against the linter on scripts of verl: whether the configuration in their own
repository takes the overrides.

    python benchmarks/wild/compose_verl.py REPOSITORY... [--show]

Each script's overrides are composed by Hydra over the configuration that its program names, found
in the repository. Nothing of a repository is run. Printed: scripts that Hydra accepts and refuses,
and what the linter's rules on keys say of them.
"""

import argparse
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from grporecipe.errors import UserError
from grporecipe.frameworks.verl.source import CONFIG, find_main, read_source
from grporecipe.linting.linter import lint_recipe
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import Recipe, VersionSource
from grporecipe.reading.launch import FILE_OPTIONS, LaunchParser
from grporecipe.reading.load import Options, load_recipe, load_text

KEY_RULES = ("GV401", "GV402", "GV407")


def package_of(script: Path, root: Path) -> Path | None:
    """Return the folder that holds verl's package: the nearest one above a script, or one below the
    root.
    """
    places = [
        place
        for above in script.absolute().parents
        for place in (above, above / "verl", above / "src")
    ]
    found = (
        place
        for place in places
        if (place / CONFIG / "ppo_trainer.yaml").is_file() and place.is_relative_to(root)
    )
    return next(found, None)


def overrides_of(script: Path) -> list[str]:
    """Return the overrides of a script's last launch, as bash passes them."""
    found, words = [], iter(LaunchParser(FRAMEWORKS.values()).find(load_text(script))[-1].after)
    for word in words:
        name, equals, _ = word.text.partition("=")
        if name in FILE_OPTIONS:
            _ = None if equals else next(words, None)
        elif "$(" in word.text or "`" in word.text:
            # what a command prints is not known
            continue
        elif not word.text.startswith(("$", "-")) and (equals or name.startswith("~")):
            found.append(word.text)
    return found


def ask_hydra(folder: Path, recipe: Recipe, overrides: list[str]) -> str | None:
    """Return Hydra's refusal, empty where it accepts; None where there is no configuration to ask
    about.
    """
    main = find_main(folder, recipe)
    if main is None or not (main.folder / f"{main.name}.yaml").is_file():
        return None
    search = f"hydra.searchpath=[file://{folder / CONFIG}]"
    try:
        with initialize_config_dir(str(main.folder.resolve()), version_base=None):
            compose(main.name, overrides=[search, *overrides], return_hydra_config=False)
    except (HydraException, OmegaConfBaseException) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        GlobalHydra.instance().clear()
    return ""


def answers(root: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """Yield scripts of verl with Hydra's refusal and the messages of our rules on keys."""
    for script in sorted(root.rglob("*.sh")):
        with suppress(UserError):
            recipe, folder = load_recipe(script, Options()), package_of(script, root)
            if recipe.framework != "verl" or folder is None:
                continue
            keys, version = read_source(folder, recipe)
            source = VersionSource("vendored", str(folder))
            recipe = replace(
                recipe, version=version or recipe.version, version_source=source, vendored=keys
            )
            refusal = ask_hydra(folder, recipe, overrides_of(script))
            if refusal is not None:
                found = [
                    problem
                    for problem in lint_recipe(recipe).diagnostics
                    if problem.severity == "error"
                ]
                yield (
                    script,
                    refusal,
                    [f"{it.code} {it.message}" for it in found if it.code in KEY_RULES],
                )


def main() -> None:
    """Print a line a repository: agreement where Hydra accepts, and where it refuses."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repositories", type=Path, nargs="+")
    parser.add_argument("--show", action="store_true", help="print each disagreement")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    for root in asked.repositories:
        counts: Counter[tuple[bool, bool]] = Counter()
        for script, refusal, ours in answers(root.resolve()):
            counts[bool(refusal), bool(ours)] += 1
            if asked.show and bool(refusal) != bool(ours):
                print(f"  {script.relative_to(root.resolve())}: {refusal[:160] or ours[0][:200]}")
        print(
            f"{root.name}: accepted {counts[False, False]} alike, {counts[False, True]} false "
            f"alarms; refused {counts[True, True]} alike, {counts[True, False]} missed"
        )


if __name__ == "__main__":
    main()
