"""Classify a file before it is judged: a GRPO recipe, another framework's configuration or launch,
or neither.

Sources: the example files and command lines of each framework's own repository.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from grporecipe.errors import NotARecipe
from grporecipe.files import Config, read_own_yaml


class Signature(NamedTuple):
    """How to recognise a framework that grposweep does not read.

    Each string of ``keys`` lists keys that occur together; ``section.key`` is one level below.
    ``launch`` matches its command lines with their options.
    """

    name: str
    keys: list[str]
    launch: re.Pattern[str]


# of the kinds in signs.yaml: its recipe is another file
LAUNCHER = "an accelerate configuration"
_FILE = read_own_yaml(__file__, "signs.yaml")
SIGNATURES = [
    Signature(
        name,
        row.get("keys", []),
        re.compile("".join(row["launch"]).replace("<start>", r"(?<![\w./-])")),
    )
    for name, row in _FILE["signatures"].items()
]
KINDS: Mapping[str, list[str]] = _FILE["kinds"]
GROUPS = frozenset(_FILE["groups"])
OTHERS = {name: frozenset(keys) for name, keys in _FILE["others"].items()}
# in a program's name; grposweep's own commands do not train
NAMED = r"grpo(?!sweep)"
TRAINS = frozenset(_FILE["trains"])
BASIC = TRAINS.union(_FILE["basic"])
# keys that may be typos
MOST_OWN = 5
EXAMPLES = "num_generations, reward_funcs, rlhf_type, worker or actor_rollout_ref"


def refuse_others(config: Config) -> None:
    """Raise NotARecipe for the configuration of an unsupported framework."""
    words = _words(config)
    for signature in SIGNATURES:
        if _stand_together(signature.keys, words):
            article = "a"
            if signature.name[0].lower() in "aeo":
                article = "an"
            raise NotARecipe(
                f"this is {article} {signature.name} configuration, which grposweep does not read."
            )


def refuse_toml(text: str) -> None:
    """Raise NotARecipe for TOML, because no supported framework has recipes in it."""
    # only a TOML file needs it
    import tomllib

    # broken or too deeply nested: report only its kind
    with suppress(ValueError, RecursionError):
        refuse_others(tomllib.loads(text))
    raise NotARecipe("it is TOML, and no framework that grposweep reads has recipes in TOML.")


def refuse_without_sign(config: Config, programs: Iterable[str] = ()) -> None:
    """Raise NotARecipe if neither flat keys nor the program that reads them show a GRPO
    training.
    """
    named = list(programs)
    words = _words(config)
    is_tuned = bool(named) and "beta" in words and not any(keys & words for keys in OTHERS.values())
    if is_tuned or any(is_named(program, config) for program in named) or has_sign(config):
        return
    kinds = [kind for kind, keys in KINDS.items() if _stand_together(keys, words)]
    kinds += [kind for kind, keys in OTHERS.items() if keys & words and TRAINS & words]
    if kinds[:1] == [LAUNCHER]:
        raise NotARecipe(f"it is {LAUNCHER}, not a GRPO recipe. Name the recipe, and --processes.")
    if kinds:
        raise NotARecipe(f"it is {kinds[0]}, not a GRPO recipe.")
    for word in sorted(words):
        if word.partition(".")[2] in GROUPS and not word.startswith("*"):
            raise NotARecipe(
                f"its keys are in sections ({word}) that only the script that reads them knows."
            )
    raise NotARecipe(
        f"nothing identifies it as a GRPO recipe (such as {EXAMPLES}). "
        "Name its framework with --framework if it is one."
    )


def is_named(program: str, config: Config) -> bool:
    """Return whether a program's name says GRPO, and its keys, if there are some, are those of a
    training.

    The name is that of the file and its folder: one above them may be that of a whole repository.
    """
    name = "/".join(re.split(r"[/.]", program.lower().removesuffix(".py"))[-2:])
    return bool(re.search(NAMED, name)) and (not config or not BASIC.isdisjoint(config))


def has_sign(config: Config) -> bool:
    """Return whether flat keys include one of a GRPO training, possibly misspelled."""
    words = set(map(str, config))
    loss = config.get("loss_type")
    if isinstance(loss, list) and loss:
        loss = loss[0]
    if words & GROUPS or str(loss) in _FILE["losses"]:
        return True
    if any(words & keys for keys in OTHERS.values()):
        return False
    return _stand_together(_FILE["together"], words) or (
        bool(words & TRAINS) and _is_misspelled(words)
    )


def _is_misspelled(words: Iterable[str]) -> bool:
    # only a file without a sign needs it
    from difflib import get_close_matches

    return any(get_close_matches(word, GROUPS, 1, 0.88) for word in words)


def refuse_own_keys(config: Config, is_known: Callable[[str], bool]) -> None:
    """Raise NotARecipe if half of the keys belong to no framework, or some that are sections. It is
    for a script of its own.
    """
    own = [key for key in map(str, config) if not is_known(key)]
    has_sections = any(isinstance(config[key], dict) for key in own if key in config)
    if len(own) > max((len(config) - 1) // 2, MOST_OWN) or (has_sections and len(own) > 2):
        raise NotARecipe(
            f"many of its keys ({', '.join(own[:3])}, ...) belong to no framework; only the "
            "script that reads them knows them."
        )


def refuse_own_sections(config: Config, known: Container[str]) -> None:
    """Raise NotARecipe if many sections belong to no framework. Such a file is a profile for a
    launcher of its own.
    """
    sections = dict.fromkeys(str(key).lstrip("+~").partition(".")[0] for key in config)
    own = [name for name in sections if name not in known]
    if len(own) > MOST_OWN:
        raise NotARecipe(
            f"{len(own)} of its sections and keys ({', '.join(own[:3])}, ...) are not those of the "
            "framework that it resembles; only the program that reads it knows them."
        )


def refuse_launch(text: str) -> None:
    """Raise NotARecipe for a script or a command line that starts an unsupported framework."""
    lines = text.replace("\\\n", " ").splitlines()
    command = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    for signature in SIGNATURES:
        if signature.launch.search(command):
            raise NotARecipe(f"it launches {signature.name}, which grposweep does not read.")


def _words(config: Config) -> set[str]:
    """Return the keys of the first two levels as ``section.key`` and ``*.key``. Dotted keys and
    sections are included.
    """
    words: set[str] = set()
    for key, value in config.items():
        name = str(key).lstrip("+~")
        first, _, second = name.partition(".")
        words |= {name, first}
        if second:
            words |= {f"{first}.{second.partition('.')[0]}", f"*.{second.rpartition('.')[2]}"}
        if isinstance(value, Mapping):
            for below in value:
                words |= {f"{name}.{below}", f"*.{below}"}
    return words


def _stand_together(groups: Iterable[str], words: set[str]) -> bool:
    return any(words.issuperset(group.split()) for group in groups)
