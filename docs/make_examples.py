"""Judge the example of each rule in ``rules/examples.yaml``, and write what ``grposweep rules``
shows of it to ``rules/judged_examples.yaml`` (``make docs``).

python docs/make_examples.py
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import ndiff
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml

from grporecipe import rules
from grporecipe.files import Config, Json, read_own_yaml
from grporecipe.linting.apply_fixes import fix_file, render_value
from grporecipe.linting.explain_rules import JUDGED, RuleExample
from grporecipe.linting.linter import Diagnostic, JudgedText, RuleSelection, judge_text
from grporecipe.linting.output import INDENT, Screen, show_diagnostic
from grporecipe.memory.catalog import find_model, memory_of
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import Runtime, Setting
from grporecipe.model.values import without_none
from grporecipe.reading.load import Options, shown_text
from grporecipe.rules.check import Problem, check
from grporecipe.rules.fixes import find_fixes

FLAGS = {
    "processes": "--processes",
    "framework": "--framework",
    "own_version": "--framework-version",
    "gpu": "--gpu",
    "train_prompts": "--dataset-size",
}
# Keys of a sweep whose last part is not the name of the setting's field.
FIELDS = {
    "generation.vllm_gpus": "server_gpus",
    "cluster.mem_gb": "host_memory_gib",
    "kl.enabled": "kl_enabled",
}
FACTS: Mapping[str, Callable[[Any], object]] = {
    "auto": frozenset,
    "unsolved": frozenset,
    "architecture": find_model,
    "runtime": lambda offloads: Runtime(offloads=frozenset(offloads), computes_offloaded=True),
}
EVERYTHING = RuleSelection()
HEAD = "# Generated from examples.yaml by `make docs`; do not edit.\n"
TARGET = Path(rules.__file__).with_name(JUDGED)
Problems = Sequence[Diagnostic] | Sequence[Problem]


class Example(NamedTuple):
    """An example after it was judged: what is shown of it, the codes of errors of other rules, and
    whether the change ends the problem.
    """

    shown: RuleExample
    others: frozenset[str]
    is_corrected: bool


class _Dumper(yaml.SafeDumper):
    """Write a text of several lines as lines."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def render_examples() -> str:
    """Return the file of all judged examples."""
    shown = {code: build_example(code).shown._asdict() for code in sorted(_entries())}
    text = yaml.dump(shown, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return f"{HEAD}{text}"


def _entries() -> Mapping[str, Config]:
    entries: Mapping[str, Config] = read_own_yaml(rules.__file__, "examples.yaml")
    return entries


@cache
def build_example(code: str) -> Example:
    """Judge the example of a rule."""
    entry = _entries()[code]
    return _of_sweep(code, entry) if "sweep" in entry else _of_files(code, entry)


def _of_files(code: str, entry: Config) -> Example:
    """Lint the first file in a folder with all of them. Without ``fixed`` or other ``processes``,
    --fix corrects it.
    """
    name, text = next((name, content) for name, content in entry.items() if "." in name)
    stated = entry.get("options", {})
    gpu: Json = {"gpu_gib": memory_of(stated["gpu"], "gpu")} if "gpu" in stated else {}
    options = Options(**stated, **gpu)
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        # nothing above it is part of the repository
        (path.parent / ".git").mkdir()
        for other, content in entry.items():
            if "." in other:
                (path.parent / other).parent.mkdir(exist_ok=True)
                (path.parent / other).write_text(content, encoding="utf-8")
        judged = judge_text(path, text, options, EVERYTHING)
        finding = _show(code, name, judged, shown_text(path, text).split("\n")).replace(
            f"{folder}/", ""
        )
        if "fixed" in entry:
            corrected = _replace_words(text, entry["fixed"])
        elif "processes" in entry:
            corrected = text
            options = replace(options, processes=entry["processes"])
        else:
            corrected = fix_file(
                path, options, RuleSelection((code,)), unsafe=True, write=False
            ).judged.text
        after = judge_text(path, corrected, options, EVERYTHING)
    before = _diagnostics(judged)
    command = _command(name, stated)
    change = _change(text, corrected)
    if "processes" in entry:
        change = _change(command, _command(name, {**stated, "processes": entry["processes"]}))
    language = {".yaml": "yaml", ".py": "python"}.get(path.suffix, "sh")
    shown = RuleExample(f"``{command}``", language, text, finding, _reason(before, code), change)
    return Example(shown, _others(before, code), _is_corrected(_diagnostics(after), before, code))


def _diagnostics(judged: JudgedText) -> list[Diagnostic]:
    return [diagnostic for result in judged.results for diagnostic in result.diagnostics]


def _command(name: str, options: Config) -> str:
    return " ".join(
        ["grposweep lint", name, *(f"{FLAGS[option]} {value}" for option, value in options.items())]
    )


def _show(code: str, name: str, judged: JudgedText, lines: list[str]) -> str:
    """Return what the linter prints about one rule."""
    out = StringIO()
    for result in judged.results:
        for diagnostic in result.diagnostics:
            if diagnostic.code == code:
                place = f"{name}:{diagnostic.line}:" if diagnostic.line else f"{name}:"
                show_diagnostic(_screen(out), place, diagnostic, lines, result.recipe)
    return out.getvalue().rstrip()


def _screen(out: StringIO) -> Screen:
    """Return a screen that leaves room for the indentation of an example."""
    screen = Screen(out, no_color=True)
    screen.width = 80 - len(INDENT)
    return screen


def _reason(diagnostics: list[Diagnostic], code: str) -> str:
    """Return why an example fails: the part of its message between what is set and the advice."""
    message = next((each.message for each in diagnostics if each.code == code), "")
    return message.partition(": ")[2].partition(". ")[0].rstrip(".") + "."


def _others(problems: Problems, code: str) -> frozenset[str]:
    return frozenset(
        each.code for each in problems if each.severity == "error" and each.code != code
    )


def _is_corrected(after: Problems, before: Problems, code: str) -> bool:
    """Return whether the problem of a rule is gone and no error is new."""
    return all(each.code != code for each in after) and _others(after, code) <= _others(
        before, code
    )


def _replace_words(text: str, changes: Mapping[str, str]) -> str:
    """Return a text with words replaced, each of which occurs once. A line that has nothing but
    removed words goes.
    """
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} does not occur once in {text!r}"
        text = (
            text.replace(old, new)
            if new
            else re.sub(rf"(?m)^ *{re.escape(old)}\n|{re.escape(old)}", "", text)
        )
    return text


def _change(before: str, after: str) -> str:
    """Return the lines that differ, with ``-`` and ``+``."""
    return "\n".join(
        line[0] + line[2:]
        for line in ndiff(before.splitlines(), after.splitlines())
        if line[0] in "+-"
    )


def _of_sweep(code: str, entry: Config) -> Example:
    """Judge the keys of a sweep, with the facts that preparation counts."""
    keys = entry["sweep"]
    facts = entry.get("facts", {})
    problems = check(_read_sweep(entry, keys, facts))
    corrected, finding, reason = {**keys, **entry.get("fixed", {})}, StringIO(), ""
    for problem in problems:
        if problem.code == code:
            fixes = find_fixes(problem.setting, problem)
            reason = f"{problem.broken.why}."
            advice = f"Set {', or '.join(map(str, fixes))}." if fixes else problem.broken.instead
            screen = _screen(finding)
            screen.say(f"{code} {problem.severity}")
            screen.wrap(f"{problem.message}. {advice}")
            if fixes and "fixed" not in entry:
                corrected |= dict(fixes[0].keys)
    corrected = without_none(corrected)
    after = check(_read_sweep(entry, corrected, entry.get("fixed_facts", facts)))
    about = f"Keys of a sweep; {entry['about']}." if "about" in entry else "Keys of a sweep."
    change = _change(_show_keys(keys), _show_keys(corrected))
    shown = RuleExample(about, "sh", _show_keys(keys), finding.getvalue().rstrip(), reason, change)
    return Example(shown, _others(problems, code), _is_corrected(after, problems, code))


def _read_sweep(entry: Config, keys: Config, counted: Config) -> Setting:
    names = {FIELDS.get(key, key.rpartition(".")[2]): key for key in keys}
    has_length = any(key.startswith("schedule.") for key in keys)
    fields: Json = {} if has_length else {"max_steps": 500}
    fields |= {name: keys[key] for name, key in names.items()}
    fields |= {
        name: FACTS[name](value) if name in FACTS else value for name, value in counted.items()
    }
    return Setting(framework=FRAMEWORKS[entry.get("framework", "trl")].traits, keys=names, **fields)


def _show_keys(keys: Config) -> str:
    return "".join(f"{key}={render_value(value)}\n" for key, value in keys.items())


if __name__ == "__main__":
    TARGET.write_text(render_examples(), encoding="utf-8")
