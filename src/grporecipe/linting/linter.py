"""Judge a file: its recipes with their settings, every problem with fixes in the recipe's keys, and
plans.

Comments switch rules off. ``# grposweep: ignore[GB101]`` applies to its line. On a separate line it
applies to the next one, which in a script may be a command of many lines. ``# grposweep:
ignore-file[GB101]`` applies to the whole file. Several codes are separated by commas, a family
(``GB``) means all of its rules, and without brackets all rules are off.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grporecipe.errors import BadSettings, UserError
from grporecipe.fields.reading import fields_behind, values_of, with_other_values
from grporecipe.fields.recipes import read_recipe, spell_keys
from grporecipe.files import Config, Json, absolute, without
from grporecipe.linting._sources import sources_of, sources_of_keys
from grporecipe.model import planning
from grporecipe.model.framework import FRAMEWORKS, ParsedRecipe
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import text
from grporecipe.model.setting import Setting, Version
from grporecipe.model.values import Names, without_none
from grporecipe.project.repository import is_overridden
from grporecipe.project.settings import settings_for
from grporecipe.reading.load import Options, parse_recipes, shown_text
from grporecipe.rules.check import (
    RECIPE_RULES,
    REGISTRY,
    Problem,
    RecipeRule,
    check,
    errors,
    recipe_rules,
)
from grporecipe.rules.fixes import find_fixes
from grporecipe.rules.keys import (
    OF_DEFAULTS,
    accepting_releases,
    find_violations,
    release_without,
)
from grporecipe.rules.registry import Change, Severity, Violation

SIZES = {*planning.ROLLOUT_READS, "num_generations", "num_iterations"} - {
    "version",
    "processes",
    "data_processes",
}
STEP_SIZES = SIZES | {"prompts_per_step", "prompts_per_rollout"}
LENGTHS = SIZES | {"max_steps", "epochs"}
PLAN = (
    "completions_per_rollout",
    "prompts_per_rollout",
    "completions_per_step",
    "prompts_per_step",
    "steps_per_rollout",
    "rollouts_per_epoch",
    "dropped_prompts",
    "total_steps",
)


@dataclass(frozen=True)
class Fix:
    """A verified change of a recipe: native keys and values, None to remove a key.

    ``safe``: training stays unchanged. The key ``processes`` means the count of the launch command.
    """

    change: Config
    safe: bool = False


@dataclass(frozen=True)
class Diagnostic:
    """A problem under the recipe's own keys: keys, line, and verified fixes."""

    code: str
    severity: Severity
    message: str
    keys: Names = ()
    line: int | None = None
    fixes: tuple[Fix, ...] = ()
    # of an error, by native key
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_error(self) -> bool:
        """Return whether it is an error."""
        return self.severity == "error"

    @property
    def is_of_keys(self) -> bool:
        """Return whether it is about keys and their values, not about the training."""
        return self.code.startswith("GV")


@dataclass(frozen=True)
class LintResult:
    """Everything that is known about one recipe."""

    recipe: Recipe
    setting: Setting
    diagnostics: tuple[Diagnostic, ...]
    plan: Json

    def __repr__(self) -> str:
        """Return framework, file and codes, because setting and plan have a hundred fields."""
        codes = ", ".join(f"{problem.code} {problem.severity}" for problem in self.diagnostics)
        name = self.recipe.file or self.recipe.framework
        return f"<LintResult {name}: {codes or 'no problems'}>"

    @property
    def ok(self) -> bool:
        """Return whether no problem has severity error."""
        return not any(diagnostic.is_error for diagnostic in self.diagnostics)


@dataclass(frozen=True)
class RuleSelection:
    """The rules that are switched on, by full codes. An empty selection means all."""

    select: Names = ()
    ignore: Names = ()

    def has(self, code: str) -> bool:
        """Return whether a rule is on."""
        return (not self.select or code in self.select) and code not in self.ignore


def select_rules(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> RuleSelection:
    """Return rules by codes or families (``GB101``, ``GB``), comma-separated or not. An unknown one
    raises UserError.
    """
    return RuleSelection(_codes(select), _codes(ignore))


def _codes(items: Iterable[str]) -> Names:
    chosen = set[str]()
    for wanted in re.findall(SEPARATE, ",".join(items).upper()):
        meant = codes_like(wanted)
        if not meant:
            families = ", ".join(sorted({code[:2] for code in codes_like("")}))
            raise UserError(
                f"{wanted}: no rule or family of this name. Families are {families}; see "
                "grposweep rules."
            )
        chosen.update(meant)
    return tuple(sorted(chosen))


def codes_like(start: str) -> list[str]:
    """Return the codes of all rules that begin like this."""
    return [code for code in (*REGISTRY, *RECIPE_RULES) if code.startswith(start)]


EVERYTHING = RuleSelection()
OWN_BATCHES = "GV112"
# a code in a list
SEPARATE = r"[^\s,]+"
# errors of the shell and of files, before any trainer reads a key
OF_ANY_TRAINER = ("GV107", "GV116", "GV407")


def lint_recipe(
    recipe: Recipe, selection: RuleSelection = EVERYTHING, with_fixes: bool = True
) -> LintResult:
    """Return every problem of a recipe, by line, then code."""
    reading = read_recipe(recipe)
    setting = reading.setting
    framework = FRAMEWORKS[recipe.framework]
    if framework.is_asynchronous(recipe):
        only = OWN_BATCHES if selection.has(OWN_BATCHES) else "none"
        selection = RuleSelection((only,))
    diagnostics = [
        _of_setting(recipe, setting, problem, selection, with_fixes)
        for problem in _problems(reading, selection, _is_part(recipe))
        if not _is_declared(problem, recipe) and problem.code not in recipe.unchecked
    ]
    diagnostics += _not_judged(recipe, reading, selection)
    for rule in recipe_rules(recipe):
        if rule.code in recipe.unchecked:
            if find_violations(rule, recipe):
                diagnostics.append(_unchecked(recipe, rule.code))
        elif selection.has(rule.code):
            broken = [
                violation
                for violation in find_violations(rule, recipe)
                if not _is_of_unset(violation, recipe)
            ]
            if rule.severity == "error" and broken:
                broken = _certain(rule, broken, recipe)
            diagnostics += [
                _of_recipe(reading, recipe, rule, violation, with_fixes) for violation in broken
            ]
    if recipe.is_configuration and framework.is_dotted:
        diagnostics = [each for each in diagnostics if not _is_overridden(each, recipe)]
    diagnostics += _of_points(recipe, selection, {each.code for each in diagnostics})
    # no optimizer step: advice on training says nothing
    if framework.only_evaluates and values_of(recipe).flag(framework.only_evaluates):
        diagnostics = [each for each in diagnostics if each.is_error or each.is_of_keys]
    if _holds_defaults(recipe):
        diagnostics = [each for each in diagnostics if each.is_error and each.is_of_keys]
    shown = [_worded(each, recipe) for each in _without_idle_advice(diagnostics, setting)]
    shown.sort(key=lambda each: (each.line or 0, each.code))
    unknown = reading.unknown | unknown_sizes(recipe, reading)
    return LintResult(recipe, setting, tuple(shown), plan_numbers(setting, unknown))


def _of_points(recipe: Recipe, selection: RuleSelection, seen: set[str]) -> Iterator[Diagnostic]:
    """Yield the errors of combinations that an Optuna script tries, with their number, and what
    else is found in all of them. Of a range it has to hold at both ends.
    """
    found: dict[str, Diagnostic] = {}
    places: dict[str, list[Config]] = {}
    for ends in recipe.points:
        at_ends = [_at_point(recipe, selection, point) for point in ends]
        for code in set.intersection(*map(set, at_ends)) - seen:
            found.setdefault(code, at_ends[0][code])
            places.setdefault(code, []).append(ends[0])
    points = [ends[0] for ends in recipe.points if ends[0]]
    for code, first in found.items():
        in_all = len(places[code]) == len(recipe.points)
        if not first.is_error:
            if in_all:
                yield first
            continue
        keys = [key for key in points[0] if key in first.keys]
        bad = _count_different(places[code], keys)
        count = f"{bad} of {_count_different(points, keys)} combinations of {' and '.join(keys)}"
        if [{}] in recipe.points:
            count += " (a sample)"
        message = f"{count} cannot work: {code} {first.message}"
        severity: Severity = "note"
        if in_all:
            severity = "error"
        yield replace(first, severity=severity, message=message)


def _count_different(points: Sequence[Config], keys: Sequence[str]) -> int:
    """Return how many points differ in the values of these keys."""
    different = set()
    for point in points:
        different.add(str(list(map(point.get, keys))))
    return len(different)


def _at_point(recipe: Recipe, selection: RuleSelection, point: Config) -> dict[str, Diagnostic]:
    """Return by code what is found at one point because of its values."""
    rest = without(recipe.unresolved, point)
    tried = replace(recipe, config={**recipe.config, **point}, unresolved=rest, points=())
    return {
        each.code: each
        for each in lint_recipe(tried, selection, with_fixes=False).diagnostics
        if not point.keys().isdisjoint(each.keys)
    }


def _worded(problem: Diagnostic, recipe: Recipe) -> Diagnostic:
    """Return a problem without secrets. An error that rests on the code of a release is a note if
    other code runs.
    """
    if recipe.replaced and problem.is_error and problem.code not in OF_ANY_TRAINER:
        message = f"{problem.message} Not an error here, because {recipe.replaced}."
        problem = replace(problem, severity="note", message=message, fixes=())
    return replace(problem, message=recipe.without_secrets(problem.message))


def _without_idle_advice(diagnostics: list[Diagnostic], setting: Setting) -> list[Diagnostic]:
    """Leave out advice (GA) on a quantity that an error is about: its numbers mean nothing until
    that is corrected.
    """
    wrong = set[str]()
    for problem in diagnostics:
        if problem.is_error:
            wrong.update(problem.keys)
    kept = []
    for problem in diagnostics:
        rests_on = {*problem.keys}
        if problem.code in REGISTRY:
            rests_on.update(map(setting.key, REGISTRY[problem.code].reads & STEP_SIZES))
        if not problem.code.startswith("GA") or wrong.isdisjoint(rests_on):
            kept.append(problem)
    return kept


def _problems(
    reading: ParsedRecipe, selection: RuleSelection, is_part: bool = False
) -> list[Problem]:
    """Return the problems that rules find, without those that depend on an unreadable field."""
    problems = check(reading.setting, selection.ignore, selection.select)
    # one of the keys is in another file, or on a command line
    if is_part:
        given = reading.setting.given
        unset = FRAMEWORKS[reading.setting.framework.name].by_name.keys() - given
        problems = [each for each in problems if {*each.broken.fields} <= given]
        problems = [each for each in problems if each.is_error or not each.rule.reads & unset]
    return [each for each in problems if not each.rule.reads & reading.unknown]


def _not_judged(
    recipe: Recipe, reading: ParsedRecipe, selection: RuleSelection
) -> Iterator[Diagnostic]:
    """Yield a note that names the errors which rest on what the trainer's own source changes, and
    the place that shows it.
    """
    if not (recipe.assumed or recipe.unchecked):
        return
    found = errors(check(reading.setting, selection.ignore, selection.select))
    for key, place in recipe.assumed.items():
        fields = fields_behind(FRAMEWORKS[recipe.framework], recipe, {key})
        codes = [each.code for each in found if each.rule.reads & fields]
        need = "need"
        if len(codes) == 1:
            need = "needs"
        if codes:
            message = f"not judged: {', '.join(codes)} {need} {key}, but {place}."
            yield Diagnostic("GV106", "note", message, (key,))
    for each in found:
        if each.code in recipe.unchecked:
            yield _unchecked(recipe, each.code)


def _unchecked(recipe: Recipe, code: str) -> Diagnostic:
    return Diagnostic("GV106", "note", f"not judged: {code}, because {recipe.unchecked[code]}.")


def _is_overridden(problem: Diagnostic, recipe: Recipe) -> bool:
    values = {key: recipe.config[key] for key in problem.keys if key in recipe.config}
    return not problem.is_of_keys and is_overridden(Path(recipe.file), values)


def _is_declared(problem: Problem, recipe: Recipe) -> bool:
    """Return whether a problem is about unset keys for which the launched program has defaults of
    its own.
    """
    s = problem.setting
    fields = problem.broken.fields
    declares = recipe.code.declares
    return s.given.isdisjoint(fields) and not declares.keys().isdisjoint(map(s.key, fields))


def _of_setting(
    recipe: Recipe, setting: Setting, problem: Problem, selection: RuleSelection, with_fixes: bool
) -> Diagnostic:
    fixes: list[Fix] = []

    def native(change: Change) -> Json | None:
        return spell_keys(dict(change), recipe, setting)

    if with_fixes:
        solved = find_fixes(setting, problem, selection.ignore, lambda change: bool(native(change)))
        for fix in solved:
            change = native(dict(fix.change))
            # Two changes of a setting may change the same key of the recipe.
            if change and all(change != other.change for other in fixes):
                fixes.append(Fix(change, fix.safe))
    fields = problem.broken.fields
    blamed: dict[str, None] = {}
    for name in fields:
        if name in setting.given or getattr(setting, name) is not None:
            blamed[setting.key(name)] = None
    keys = tuple(blamed)
    line = _first_line(setting.lines, fields)
    message = _message(problem.broken, bool(fixes)) + _where(recipe, keys, line)
    others: Sequence[Version] = ()
    severity = problem.severity
    if severity != "note":
        others = accepting_releases(recipe, problem.rule)
    if others:
        severity = "note"
        if problem.is_error:
            severity = "warning"
        fixes = [replace(fix, safe=False) for fix in fixes]
        message += _guess(recipe, others)
    elif problem.code in OF_DEFAULTS and not recipe.version_source.known:
        severity = "note"
    sources: dict[str, str] = {}
    if problem.is_error and not others:
        sources = sources_of(recipe, setting, problem.rule.reads)
    return Diagnostic(problem.code, severity, message, keys, line, tuple(fixes), sources)


def _first_line(lines: Mapping[str, int], names: Iterable[str]) -> int | None:
    """Return the line of the first of these that has one."""
    return next((lines[name] for name in names if name in lines), None)


def _of_recipe(
    reading: ParsedRecipe, recipe: Recipe, rule: RecipeRule, broken: Violation, with_fixes: bool
) -> Diagnostic:
    fixes: list[Fix] = []
    if with_fixes:
        for change in broken.suggestions:
            is_new = all(change != fix.change for fix in fixes)
            if is_new and is_valid_fix(recipe, reading, rule, change):
                fixes.append(Fix(change, broken.without_effect >= change.keys()))
    line = _first_line(recipe.lines, broken.fields)
    if rule.code == "GV107":
        line = recipe.launch.cut_line
    message = _message(broken, bool(fixes)) + _where(recipe, broken.fields, line)
    severity = broken.severity or rule.severity
    sources: dict[str, str] = {}
    if severity == "error":
        other = release_without(recipe, rule, broken)
        if other is None:
            sources = sources_of_keys(recipe, broken.fields)
        else:
            severity = "warning"
            message += _guess(recipe, [other])
    return Diagnostic(rule.code, severity, message, broken.fields, line, tuple(fixes[:3]), sources)


def _guess(recipe: Recipe, others: Sequence[Version]) -> str:
    first = text(others[0])
    last = text(others[-1])
    which = f"{first} to {last} allow"
    if first == last:
        which = f"{first} allows"
    return f" ({text(recipe.version)} is assumed; {which} it.)"


def _is_of_unset(broken: Violation, recipe: Recipe) -> bool:
    """Return whether a problem is about keys without a value that a command line may still set."""
    if not broken.fields or not (recipe.may_have_more or _is_part(recipe)):
        return False
    stated = {str(key).lstrip("+~") for key, value in recipe.config.items() if value is not None}
    return stated.isdisjoint(broken.fields) and recipe.unresolved.keys().isdisjoint(broken.fields)


def _certain(rule: RecipeRule, broken: Sequence[Violation], recipe: Recipe) -> list[Violation]:
    """Return the findings that hold for every value of the keys that only the run knows."""
    certain = list(broken)
    for other in with_other_values(FRAMEWORKS[recipe.framework], recipe):
        violated = {each.fields for each in find_violations(rule, other)}
        certain = [each for each in certain if each.fields in violated]
    return certain


def _is_part(recipe: Recipe) -> bool:
    """Return whether a Hydra configuration completes it that is not known: a file, or a launch of a
    program of its own.
    """
    framework = FRAMEWORKS[recipe.framework]
    if recipe.launch:
        is_open = (
            not recipe.base
            or "defaults" in recipe.config
            or recipe.config.keys() <= recipe.lines.keys()
        )
        return is_open and not framework.is_composed(recipe)
    return bool(recipe.file and framework.config_defaults)


def _holds_defaults(recipe: Recipe) -> bool:
    """Return whether it is a program's own default configuration. Only its keys are judged:
    launches set the values.
    """
    pattern = FRAMEWORKS[recipe.framework].own_configs
    if not pattern or recipe.launch or not recipe.file:
        return False
    return bool(pattern.search(absolute(recipe.file).as_posix()))


def _message(broken: Violation, has_repairs: bool) -> str:
    """Return the message: the setting, the reason, and advice if no verified change exists."""
    problem = f"{broken.what}: {broken.why}."
    if has_repairs:
        return problem
    return f"{problem} {broken.instead}"


def _where(recipe: Recipe, keys: Names, line: int | None) -> str:
    """Name the file of a key that a script's own recipe sets."""
    named = recipe.launch.config
    if not named or line is not None or recipe.config.keys().isdisjoint(keys):
        return ""
    return f" (It is set in {named}.)"


def is_valid_fix(recipe: Recipe, reading: ParsedRecipe, rule: RecipeRule, change: Config) -> bool:
    """Return whether a change of keys removes its problem and breaks nothing that held before."""
    after = changed(recipe, change)
    touched = set(change)
    if any(touched & set(broken.fields) for broken in rule.judge(after)):
        return False
    new = read_recipe(after)
    if new != reading:
        codes = {problem.code for problem in errors(_problems(reading, EVERYTHING))}
        if any(problem.code not in codes for problem in errors(_problems(new, EVERYTHING))):
            return False
    return _errors_about(after, touched) <= _errors_about(recipe, touched)


def _errors_about(recipe: Recipe, keys: set[str]) -> set[str]:
    """Return the codes of the recipe rules on sizes whose errors name one of these keys."""
    codes = set()
    for rule in recipe_rules(recipe):
        if rule.code.startswith(("GB", "GT")) and rule.severity == "error":
            violations = find_violations(rule, recipe)
            if not all(keys.isdisjoint(broken.fields) for broken in violations):
                codes.add(rule.code)
    return codes


def changed(recipe: Recipe, change: Config) -> Recipe:
    """Return the recipe after a change of keys."""
    config = without(recipe.config, change)
    config |= without_none({**change, "processes": None})
    twice = tuple(item for item in recipe.duplicates if item.key not in change)
    return replace(
        recipe, config=config, processes=change.get("processes", recipe.processes), duplicates=twice
    )


# of dotted configurations: a plan needs them, and a configuration that is not known may set them
STATED_SIZES = {"prompts_per_rollout", "prompts_per_step", "num_generations"}


def unknown_sizes(recipe: Recipe, reading: ParsedRecipe) -> frozenset[str]:
    """Return the sizes that a plan needs and that only the run knows."""
    unknown = reading.unknown & STEP_SIZES
    if _is_part(recipe):
        unknown |= STATED_SIZES - reading.setting.given
    return unknown


def plan_numbers(s: Setting, unknown: frozenset[str] = frozenset()) -> Json:
    """Return the plan's numbers; None if something is unknown or the batch is invalid."""
    plan: Json = dict.fromkeys(PLAN)
    sizes = (
        s.per_device_train_batch_size,
        s.gradient_accumulation_steps,
        s.num_iterations,
        s.num_generations,
        s.steps_per_generation,
        s.generation_batch_size,
        s.processes,
    )
    if unknown & STEP_SIZES or any(size is not None and size < 1 for size in sizes):
        return plan
    rollout = planning.completions_per_rollout(s)
    prompts = planning.prompts_per_rollout(s)
    plan["completions_per_rollout"] = rollout
    plan["completions_per_step"] = planning.stated_completions_per_step(s)
    if (rollout is not None and prompts is None) or planning.micro_steps_per_generation(s) < 1:
        # groups are not whole: TRL refuses it, so further numbers are meaningless
        return plan
    plan["prompts_per_rollout"] = prompts
    if s.processes is not None:
        plan["prompts_per_step"] = _plain(plan["completions_per_step"] / s.num_generations)
    if s.processes is not None or s.generation_batch_size is None:
        plan["steps_per_rollout"] = _plain(float(planning.steps_per_rollout(s)))
    plan["rollouts_per_epoch"] = planning.rollouts_per_epoch(s)
    plan["dropped_prompts"] = planning.dropped_prompts(s)
    if not unknown & LENGTHS and (s.max_steps or s.epochs is None or s.epochs > 0):
        plan["total_steps"] = planning.total_steps(s)
    return plan


def _plain(number: float) -> float:
    """Return 7 instead of 7.0."""
    if number.is_integer():
        return int(number)
    return number


NAME = "grposweep:"
COMMENT = rf"#\s*{NAME}\s*ignore(-file)?(?![\w-])(?:\s*\[([^\]]*)\])?"


@dataclass(frozen=True)
class Comment:
    """One comment: the prefixes of the codes that it switches off, and its lines (None: the whole
    file).
    """

    line: int
    codes: Names
    reach: range | None

    def covers(self, result: LintResult, diagnostic: Diagnostic) -> bool:
        """Return whether it switches a problem off, by the line of any key that the problem
        blames.
        """
        if not diagnostic.code.startswith(self.codes):
            return False
        if self.reach is None:
            return True
        lines = [diagnostic.line, *map(result.recipe.lines.get, diagnostic.keys)]
        return any(line in self.reach for line in lines)


def read_comments(path: Path, text: str) -> tuple[Comment, ...]:
    """Return the comments of a file that switch rules off."""
    if NAME not in text:
        return ()
    lines = shown_text(path, text).replace("\r\n", "\n").split("\n")
    comments = []
    for number, line in enumerate(lines, 1):
        if match := re.search(COMMENT, line):
            # a prefix of every code
            codes = [""]
            if match[2] is not None:
                codes = re.findall(SEPARATE, match[2].upper())
            reach = None
            if not match[1]:
                reach = _reach(lines, number, not line[: match.start()].strip())
            comments.append(Comment(number, tuple(codes), reach))
    return tuple(comments)


def _reach(lines: Sequence[str], number: int, is_alone: bool) -> range:
    """Return the lines that a comment applies to: the command of its line, or of the first line
    after the comments.
    """
    if is_alone:
        while number < len(lines) and lines[number - 1].lstrip().startswith("#"):
            number += 1
    first = last = number
    while first > 1 and lines[first - 2].rstrip().endswith("\\"):
        first -= 1
    while last < len(lines) and lines[last - 1].rstrip().endswith("\\"):
        last += 1
    return range(first, last + 1)


def unknown_codes(comments: Sequence[Comment]) -> list[tuple[int, str]]:
    """Return line and text of each code that is neither a rule nor a family."""
    unknown = []
    for comment in comments:
        for code in comment.codes:
            if not codes_like(code):
                unknown.append((comment.line, code))
    return unknown


def silence(result: LintResult, comments: Sequence[Comment]) -> LintResult:
    """Return a result without the problems that comments switch off."""
    kept = list(result.diagnostics)
    for comment in comments:
        kept = [problem for problem in kept if not comment.covers(result, problem)]
    return replace(result, diagnostics=tuple(kept))


@dataclass(frozen=True)
class JudgedText:
    """The recipes of a text with their problems.

    ``silenced`` counts problems that comments switched off. ``unknown`` holds line and code of
    codes that do not exist. ``off`` are the rules that are ignored.
    """

    text: str
    results: tuple[LintResult, ...]
    silenced: int = 0
    unknown: list[tuple[int, str]] = field(default_factory=list)
    off: Names = ()


def judge_text(path: Path, text: str, options: Options, selection: RuleSelection) -> JudgedText:
    """Judge the recipes in a text that is, or will be, the content of this file."""
    selection = select_for(path, selection)
    recipes = parse_recipes(path, text, options)
    comments = read_comments(path, text)
    results = []
    silenced = 0
    for recipe in recipes:
        result = lint_recipe(recipe, selection)
        results.append(silence(result, comments))
        silenced += len(result.diagnostics) - len(results[-1].diagnostics)
    return JudgedText(text, tuple(results), silenced, unknown_codes(comments), selection.ignore)


def select_for(path: Path, selection: RuleSelection) -> RuleSelection:
    """Return the rules that are on for a file: by the command line, then by its project's settings.

    ``--select`` replaces the settings' selection, and rules that it names are on even if the
    settings ignore them. ``--ignore`` adds to the settings'.
    """
    settings = settings_for(path)
    try:
        own = select_rules(settings.select, settings.ignore)
    except UserError as error:
        raise BadSettings(f"{settings.file}: {error}") from None
    off = {*selection.ignore} | ({*own.ignore} - {*selection.select})
    return RuleSelection(selection.select or own.select, tuple(sorted(off)))
