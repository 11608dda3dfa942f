"""Real Hydra against our table and rules on every release of verl: which overrides its
configuration takes.

    python benchmarks/frameworks/verl_overrides.py [--each 2000] [--keep FILE]

Overrides are drawn from the keys of all releases: as they are, with ``+``, ``++`` or ``~``, below
an empty mapping, a null and a number, and with mappings as values. ``--keep`` writes them with
Hydra's verdicts, for the tests.
"""

import argparse
import json
import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from grporecipe.frameworks.verl import keys as verl
from grporecipe.frameworks.verl.keys import refusals
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import KeyTable, parse_release, text
from grporecipe.reading.yaml_text import parse_override

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
# found through the line above
from tables import fetch

CONFIG = "verl/trainer/config/"


def draw(known: KeyTable, every: list[str], rng: random.Random) -> str:
    """Return one override of a key that some release has, or of one below it."""
    key = rng.choice(
        rng.choice(
            (
                every,
                list(known),
                [name for name, spec in known.items() if spec.default in ({}, None)],
            )
        )
    )
    above = key.rpartition(".")[0]
    key = rng.choice((key, key, key, f"{key}.extra", above if "." in above else key))
    # it may choose an option of a group
    if "." not in key:
        key = f"{key}.extra"
    sign = rng.choice(("", "", "", "+", "+", "++", "~"))
    return (
        f"{sign}{key}"
        if sign == "~"
        else f"{sign}{key}={rng.choice(('1', 'word', '{extra: 1}', '[1]', 'null'))}"
    )


def is_taken(release: str, engine: str, override: str) -> bool:
    """Return whether our rules take an override."""
    parsed = parse_override(override)
    assert parsed is not None
    version = parse_release(release)
    recipe = Recipe(
        "verl",
        version,
        {parsed.sign + parsed.key: parsed.value},
        lines={parsed.sign + parsed.key: 1},
    )
    return not list(refusals(recipe, verl.known(version, engine)))


def asked(folder: Path, engine: str, overrides: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield each override with whether Hydra takes it."""
    own = folder / f"ppo_{engine}_trainer.yaml"
    name, option = (
        (own.stem, [])
        if own.is_file()
        else ("ppo_trainer", [] if engine == "dp" else [f"model_engine={engine}"])
    )
    with initialize_config_dir(str(folder), version_base=None):
        for override in overrides:
            try:
                compose(name, overrides=[*option, override])
            except (HydraException, OmegaConfBaseException, ValueError):
                # OmegaConf: a word as the index of a list
                yield override, False
            else:
                yield override, True


def main() -> None:
    """Print the disagreements; write the verdicts where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=200, help="overrides a release and engine")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    engines = verl.spans()
    every = sorted(
        {
            key
            for release in verl.releases()
            for engine in engines
            for key in verl.known(release, engine)
        }
    )
    rows, wrong, rng = [], 0, random.Random(0)
    for release in map(text, verl.releases()):
        with TemporaryDirectory() as scratch, ZipFile(fetch("verl", release).path) as archive:
            archive.extractall(
                scratch, [name for name in archive.namelist() if name.startswith(CONFIG)]
            )
            for engine in (name for name, having in engines.items() if release in having):
                known = verl.known(parse_release(release), engine)
                drawn = [draw(known, every, rng) for _ in range(arguments.each)]
                verdicts = dict(asked(Path(scratch) / CONFIG, engine, drawn))
                for override in (
                    it for it, taken in verdicts.items() if taken != is_taken(release, engine, it)
                ):
                    wrong += 1
                    print(
                        f"verl {release} {engine} {override}: Hydra "
                        f"{'takes' if verdicts[override] else 'refuses'} it"
                    )
                taken, refused = (
                    [it for it, verdict in verdicts.items() if verdict is want]
                    for want in (True, False)
                )
                rows.append(
                    {"release": release, "engine": engine, "taken": taken, "refused": refused}
                )
    print(
        f"{sum(len(row['taken']) + len(row['refused']) for row in rows)} overrides, {wrong} "
        "disagreements"
    )
    if arguments.keep:
        arguments.keep.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
