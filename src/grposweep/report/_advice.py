"""Say what to use, how sure that is, and what to try next."""

import math
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Config, Json, as_number, without
from grporecipe.redaction import redact
from grporecipe.rules.check import check, errors
from grporecipe.terminal import first_of, label_text, short, short_names
from grposweep.config.evaluation import is_of_evaluation
from grposweep.report._completions import warning
from grposweep.report._ranking import RankedPoint
from grposweep.report.trial_view import State, TrialView, grouped, name_trials
from grposweep.report.view import BEST, SweepView
from grposweep.schema import Experiment
from grposweep.schema.registries import is_external, is_opaque
from grposweep.search.replication import CHANCE
from grposweep.search.sampling import p_of_groups
from grposweep.storage.completions import read_prompt_rewards
from grposweep.storage.records import as_mapping

# share of the variance over prompts in one prompt, above which the advice warns
MOSTLY = 0.5
# share of a range, on its own scale, that counts as its edge
EDGE = 0.1
# by which a logarithmic range is widened
FACTOR = 10
# completions of trainings that differ by less are equal but for whole rollouts
ROUNDED = 1.1
LENGTHS = ("budget_completions", "epochs", "max_steps")
# files that one sentence names
NAMED = 5
# share of the finished trials after which a best one says that the search has not converged
LATE = 0.8


@dataclass(frozen=True)
class Step:
    """One thing to do, and the command that does it. ``form`` names what the command writes: hydra
    or trl.
    """

    text: str
    command: str
    form: str = ""


@dataclass(frozen=True)
class Advice:
    """What to use, in a sentence; how sure that is; commands that use it; the one command to try
    next.
    """

    sentence: str
    limits: Sequence[str]
    uses: Sequence[Step]
    step: Step


def advise(view: SweepView) -> Advice | None:
    """Return the advice that a sweep's results support.

    None without a finished trial, or in a comparison of one factor at a time, whose table of
    effects is the answer.
    """
    if not view.leaderboard or view.compares:
        return None
    best = view.leaderboard[0]
    limits = [*_measured(view), *_uncertainty(view), *_at_edges(view, best.first)]
    step = _next_step(view)
    doubt = warning(best.first)
    verdict = find_no_winner(view)
    if verdict and not doubt:
        value = best.gain.text if best.gain else best.text
        return Advice(f"{verdict} {view.metric} {value}.", limits, [], step)
    sentence = ""
    if doubt:
        sentence = (
            f"Read its completions before you use {short(best.first.point)}: {view.metric} "
            f"{best.value:.4f}, but {doubt}."
        )
    for point in view.leaderboard:
        if not warning(point.first):
            if doubt:
                sentence += " Without such a sign: "
            sentence += _sentence(view, point)
            return Advice(sentence, limits, list(_uses(view, point.first)), step)
    return Advice(sentence, limits, [], step)


def tie_sentences(view: SweepView) -> list[str]:
    """Return that there is no winner, or no significant difference on one seed; empty if one is
    clear.

    Ties on fresh seeds and effects of single factors have sentences of their own.
    """
    if not view.leaderboard or view.compares:
        return []
    sentences = _measured(view)
    verdict = find_no_winner(view)
    if verdict:
        sentences.append(verdict)
    elif _is_open_on_one_seed(view):
        sentences += _uncertainty(view)
    return sentences


def _is_open_on_one_seed(view: SweepView) -> bool:
    """Return whether one seed has tied the best point with another, or has no interval."""
    best, *others = view.leaderboard
    is_open = view.tied or (others and best.half is None)
    return best.source != "seeds" and not best.fate and bool(is_open)


def next_sentence(view: SweepView) -> str:
    """Return the command that decides a tie, or that widens the range of a parameter; empty if
    there is nothing to decide.
    """
    if not view.leaderboard or view.compares:
        return ""
    is_open = find_no_winner(view) or _is_open_on_one_seed(view)
    if not is_open and not any(_widen(view, view.leaderboard[0].first)):
        return ""
    step = _next_step(view)
    return f"{step.text}: {step.command}"


def _measured(view: SweepView) -> list[str]:
    """Return what the points' values cannot tell."""
    return [
        *_changed_nothing(view),
        *_measured_differently(view),
        *_unequal_budgets(view),
        *_shared_files(view),
    ]


def _changed_nothing(view: SweepView) -> list[str]:
    """Name parameters without any effect: trials that differ in nothing else have the same log, to
    the last digit.
    """
    lines = []
    for name in view.parameters:
        groups = _differing_in(name, view.ranked)
        if name != "seed" and groups and all(map(_is_one_log, groups)):
            what_to_do = "Check that the training reads it."
            if _has_no_gradient(groups[0][0]):
                what_to_do = NO_GRADIENT
            lines.append(
                f"{name} changed nothing: {name_trials(groups[0])} have the same rewards and "
                f"gradients at every step, to the last digit. {what_to_do}"
            )
    return lines


def _differing_in(name: str, trials: Iterable[TrialView]) -> list[list[TrialView]]:
    """Return the groups of trials that differ in this parameter and in no other."""

    def others(trial: TrialView) -> str:
        labels = without(trial.point, (name,))
        return repr((sorted(labels.items()), trial.seed, trial.files))

    groups = []
    for group in grouped(trials, others).values():
        labels = {repr(trial.point.get(name)) for trial in group}
        if len(labels) > 1:
            groups.append(group)
    return groups


NO_GRADIENT = (
    "No step had a gradient: the rewards of each group were the same. Check the "
    "rewards and the completions."
)


def _has_no_gradient(trial: TrialView) -> bool:
    """Return whether no logged step of a trial had a gradient."""
    norms = [line["grad_norm"] for line in trial.lines if "grad_norm" in line]
    return bool(norms) and not any(norms)


def _is_one_log(group: Sequence[TrialView]) -> bool:
    """Return whether trials have logged the same, apart from times."""
    first, *rest = group
    if any(trial.objective != first.objective for trial in rest) or not first.lines:
        return False
    wanted = [*map(_logged, first.lines)]
    return all([*map(_logged, trial.lines)] == wanted for trial in rest)


def _logged(line: Config) -> Json:
    """Return what a training did in a line of its log: rewards and norms of gradients, and not
    times, rates and speeds.

    The loss is left out: with some options another one is logged for the same gradients.
    """
    return {name: line[name] for name in line if re.search("reward|grad_norm|kl", name)}


def _measured_differently(view: SweepView) -> list[str]:
    """Say that a parameter changes the evaluation as well, if the points had other values before
    training.
    """
    names = list(filter(is_of_evaluation, view.parameters))
    starts = [trial.start for trial in view.ranked if trial.start is not None]
    if not names or len(set(starts)) < 2:
        return []
    plural = "s" * (len(names) == 1)
    return [
        f"{', '.join(names)} decide{plural} how a point is measured too: before training they had "
        f"{min(starts):.4f} to {max(starts):.4f}. Compare the gains, not the values."
    ]


def _unequal_budgets(view: SweepView) -> list[str]:
    """Say that points were trained on different numbers of completions, if no parameter sets the
    length. A budget is rounded to whole rollouts, which is no such difference.
    """
    # 0: unknown
    totals = [trial.result.completions or 0 for trial in view.ranked] or [0]
    if 0 in totals or max(totals) <= ROUNDED * min(totals):
        return []
    if any(name.startswith("schedule") for name in view.parameters):
        return []
    return [
        f"The points trained on {min(totals):,} to {max(totals):,} completions, so a longer "
        "training may be what leads. Set schedule.budget_completions for equal lengths."
    ]


def _shared_files(view: SweepView) -> Iterator[str]:
    """Name what trials of a command write outside of the sweep, if another trial writes the same
    file, or fails before its training, which may be because of it.
    """
    written = Counter[str]()
    is_kept_out = False
    for trial in view.trials:
        # a trial has several processes
        written.update([*dict.fromkeys(trial.written)])
        is_kept_out |= trial.state is State.FAILED and not trial.lines
    names = []
    for path, trials in written.items():
        if is_kept_out or (trials > 1 and not path.endswith("/")):
            names.append(path.removeprefix(f"{view.provenance.get('working_directory')}/"))
    if names:
        yield (
            f"Trials write outside of their folders: {first_of(names, NAMED)}. One "
            "changes the files of another, or ends because of them. Write them below "
            "args.output_dir or {output}, which each trial has of its own."
        )


def find_no_winner(view: SweepView) -> str:
    """Return why no point is better than the others, or than the model before training; empty if
    one is.
    """
    best = view.best_point
    if best is None or view.compares:
        return ""
    if best.is_untrained:
        return "No result: only the model before training was evaluated (schedule.evaluations=0)."
    gain = best.gain
    points = len(view.leaderboard)
    better = math.inf
    half = 0.0
    if gain is not None and gain.half is not None:
        better = view.sign * gain.difference
        half = gain.half
    # what early stopping left behind is told apart from the finished points
    all_tied = len(view.tied) == points - 1 > 0 and not view.count(State.PRUNED, State.PAUSED)
    if better > half and not all_tied:
        return ""
    name = f"the best point ({short(best.first.point)})" if best.first.point else "the run"
    if better < -half:
        verdict = f"{name} ended worse than the model before training."
    elif not all_tied:
        verdict = f"{name} cannot be told apart from the model before training."
    else:
        start = ", not even from the model before training" if better <= half else ""
        verdict = f"the {points} points cannot be told apart{start}."
    if len(best.values) == 2:
        verdict += " Two seeds are too few for an interval."
    return f"No winner: {verdict}" if points > 1 else f"No gain: {verdict}"


def _uses(view: SweepView, best: TrialView) -> Iterator[Step]:
    name = shlex.quote(view.name)
    if best.command:
        yield Step("Train it again", best.command)
    # 'grposweep best' writes the leaderboard's first point only
    if view.best is not best:
        return
    yield Step("Write it as a configuration", f"grposweep best {name} --export best.yaml", "hydra")
    yield Step(
        "Write it as a TRL recipe", f"grposweep best {name} --export recipe.yaml --as trl", "trl"
    )


def _sentence(view: SweepView, best: RankedPoint) -> str:
    gain = best.gain
    text = f"Use {short(best.first.point)}: {view.metric} {best.value:.4f} {best.interval}"
    if gain is not None:
        text += f", {gain.difference:+.4f} against {gain.start:.4f} before training"
    return f"{text}."


def _uncertainty(view: SweepView) -> Iterator[str]:
    best = view.leaderboard[0]
    if view.tied:
        what = "on these seeds" if best.source == "seeds" else "on one seed"
        trials = [best.first, *(point.first for point in view.tied)]
        close = "are tied" if best.half is None else "do not differ significantly"
        yield f"{name_trials(trials).capitalize()} {close} {what}: {_spread(view, trials)}."
    elif best.source != "seeds":
        yield "This is one seed. Another seed moves results by more than the interval says."
    is_single = len(best.seeds) == 1
    share = best.seeds[0].sampling.largest
    if is_single and share > MOSTLY:
        yield (
            f"One held-out prompt makes {share:.0%} of the variance, so the result is about that "
            "prompt. Bound the reward, or set a larger task.eval_prompts."
        )
    if is_single and _has_variants(best.first):
        yield (
            "Held-out prompts that differ only in digits have similar rewards (permutation "
            f"test, p < {CHANCE:g}). The interval "
            "counts each of them. Set task.family_column to a column that names their families."
        )
    if best.half is None:
        yield "Its evaluation reports no standard error, so the interval is unknown."


def _has_variants(trial: TrialView) -> bool:
    """Return whether prompts that differ only in digits have similar rewards, and are in no
    families.
    """
    rewards = read_prompt_rewards(trial.path, trial.result.evaluated)
    return not rewards.families and p_of_groups(rewards.means, rewards.alike) < CHANCE


def _spread(view: SweepView, trials: Sequence[TrialView]) -> str:
    """Return what each parameter is among the trials: a range of numbers, or choices."""
    spread = []
    for parameter, name in short_names(view.parameters).items():
        if parameter != "seed":
            labels = [trial.point[parameter] for trial in trials if parameter in trial.point]
            spread.append(f"{name} {_values(labels)}")
    return ", ".join(spread)


def _values(labels: Sequence[Any]) -> str:
    distinct = list(dict.fromkeys(labels))
    if len(distinct) > 2 and None not in map(as_number, distinct):
        return f"{label_text(min(distinct))} to {label_text(max(distinct))}"
    return " or ".join(map(label_text, distinct))


def _at_edge(view: SweepView, best: TrialView) -> Iterator[tuple[str, str, bool]]:
    """Yield each numeric parameter whose best value lies at an edge of its range: name, lower or
    upper, logarithmic.
    """
    for name, entry in view.ranges.items():
        value = as_number(best.point.get(name))
        low = float(entry["low"])
        high = float(entry["high"])
        if value is None or not low < high:
            continue
        log = bool(entry.get("log")) and low > 0
        position: Callable[[float], float] = math.log if log else float
        share = (position(value) - position(low)) / (position(high) - position(low))
        if share <= EDGE:
            yield name, "lower", log
        elif share >= 1 - EDGE:
            yield name, "upper", log


def _at_edges(view: SweepView, best: TrialView) -> Iterator[str]:
    """Yield which best values lie at an edge of their range, a sentence each."""
    for name, end, _ in _at_edge(view, best):
        yield f"{name}={label_text(best.point[name])} lies at the {end} edge of its range."


def _next_step(view: SweepView) -> Step:
    """Return the one thing to try next: a wider range, other seeds, more trials, or a longer
    training.
    """
    best = view.leaderboard[0]
    steps = [
        *_widen(view, best.first),
        *_on_seeds(view, best),
        *_more_trials(view, best.first),
        *_longer(view),
    ]
    seed = int(as_number(best.first.config.get("seed")) or 0) + 1
    name = shlex.quote(view.name)
    another_seed = Step("Repeat it on another seed", f"grposweep rerun {name} {BEST} seed={seed}")
    return next(iter(steps), another_seed)


def _widen(view: SweepView, best: TrialView) -> Iterator[Step]:
    """Yield the same search with a wider range, if the values at its edge are significantly better
    than the others.
    """
    clear = [contrast for contrast in view.importance.contrasts if contrast.is_significant]
    for name, end, log in _at_edge(view, best):
        if any(one.parameter == name and one.holds(best.point[name]) for one in clear):
            low = float(view.ranges[name]["low"])
            high = float(view.ranges[name]["high"])
            span = high - low
            if end == "lower":
                new_end = low = low / FACTOR if log else low - span
            else:
                new_end = high = high * FACTOR if log else high + span
            interval = f"interval({low:g},{high:g})"
            if log:
                interval = f"tag(log,{interval})"
            changes = {name: interval, "search.warm_start": view.name}
            values = {name: new_end}
            yield from _propose(view, f"Widen the range of {name}", changes, values=values)


def _on_seeds(view: SweepView, best: RankedPoint) -> Iterator[Step]:
    """Yield the sweep with fresh seeds, or with more of them if those that it has decide
    nothing. On other seeds, points that are one training are one training again. A training
    without evaluations gets some.
    """
    if view.tied and _is_one_log([best.first, *(point.first for point in view.tied)]):
        return
    if best.is_untrained:
        yield from _propose(view, "Evaluate what is trained", {"schedule.evaluations": "4"})
    elif best.source != "seeds" and "seed" not in view.parameters:
        reason = "Confirm the winner on fresh seeds"
        if len(view.leaderboard) == 1:
            reason = "Repeat it on fresh seeds"
        elif view.tied or find_no_winner(view):
            reason = "Decide between them on fresh seeds"
        yield from _propose(view, reason, {"search.seeds": "5"}, keeps_name=True)
    elif find_no_winner(view) and best.is_fresh:
        more = str(max(5, 2 * len(best.values)))
        changes = {"search.seeds": more}
        yield from _propose(view, "Decide on more seeds", changes, keeps_name=True)


def _more_trials(view: SweepView, best: TrialView) -> Iterator[Step]:
    """Yield the search with twice as many trials, if its best one was among the last."""
    before = sum(trial.number < best.number for trial in view.finished)
    is_late = best in view.finished and before >= LATE * len(view.finished)
    if is_late and view.ranges and view.is_over:
        text = "Continue the search: the best trial was among the last"
        changes = {"search.trials": str(2 * len(view.searched))}
        yield from _propose(view, text, changes, keeps_name=True)


def _longer(view: SweepView) -> Iterator[Step]:
    """Yield the same sweep with twice the training."""
    # the command of a sweep that began with a trial's checkpoint takes no other schedule
    # nor does a program of which nothing is known but where it writes its metrics
    if "fork_of" in view.provenance or view.trainer.get("metrics"):
        return
    for name, value in as_mapping(view.baseline.get("schedule")).items():
        length = as_number(value)
        if name in LENGTHS and length:
            key = f"schedule.{name}"
            yield from _propose(view, "Train twice as long", {key: f"{2 * length:g}"})


def _propose(
    view: SweepView,
    text: str,
    changes: Mapping[str, str],
    keeps_name: bool = False,
    values: Mapping[str, Any] | None = None,
) -> Iterator[Step]:
    """Yield a step with the sweep's command and these overrides, if they can work: ``values`` make
    no mistake in the best trial's configuration that it did not have (by default the overrides).
    """
    from grposweep.config.compose import escape, experiment_at, typed

    try:
        config = typed(escape(view.leaderboard[0].first.recorded or view.baseline))
        before = _mistakes(experiment_at(config, {}))
        after = _mistakes(experiment_at(config, values or changes))
    except UserError:
        return
    if after <= before:
        yield Step(text, _command(view, changes, keeps_name))


def _mistakes(experiment: Experiment) -> set[str]:
    """Return the mistakes of a configuration, and the rules that it breaks."""
    from grposweep.config.to_setting import read_setting
    from grposweep.config.validate import find_mistakes

    trainer = experiment.trainer
    # another program would have to be asked
    if is_external(trainer) and not is_opaque(trainer):
        return set()
    broken = {problem.code for problem in errors(check(read_setting(experiment)))}
    return broken.union(find_mistakes(experiment))


def _command(view: SweepView, changes: Mapping[str, str], keeps_name: bool = False) -> str:
    """Return the sweep's command with other overrides; a new sweep gets a name of its own from its
    space.
    """
    try:
        arguments = shlex.split(redact(str(view.provenance.get("command") or "")))
    except ValueError:
        # a command that was damaged on disk
        arguments = []
    # which must not stop the command
    if keeps_name and _is_edited(view):
        changes = {"search.changed_files": "recorded", **changes}
    dropped = set(changes) if keeps_name else {"name", *changes}
    # the one that counts
    last = {word.partition("=")[0]: n for n, word in enumerate(arguments) if "=" in word}
    kept = []
    for n, word in enumerate(arguments or ["python", "src/run.py"]):
        name = word.partition("=")[0]
        if name not in dropped and last.get(name, n) == n:
            kept.append(word)
    there = str(view.provenance.get("working_directory") or Path.cwd())
    changed = [f"{name}={value}" for name, value in changes.items()]
    command = shlex.join([*_shortened(kept), *changed])
    return command if Path(there) == Path.cwd() else f"cd {shlex.quote(there)} && {command}"


def _shortened(arguments: list[str]) -> list[str]:
    """Return a command with ``grposweep`` for ``python -m grposweep`` if this shell finds the one
    of this Python.
    """
    program = shutil.which("grposweep") if arguments[1:3] == ["-m", "grposweep"] else None
    is_ours = program is not None and Path(program).parent == Path(sys.executable).parent
    return ["grposweep", *arguments[3:]] if is_ours else arguments


def _is_edited(view: SweepView) -> bool:
    """Return whether one of the user's files has changed since the sweep copied it."""
    # only for a command on an unfinished search
    from grposweep.storage.inputs import Inputs, digest_of

    there = Path(str(view.provenance.get("working_directory") or ""))
    for name, file in Inputs.read(view.path).files.items():
        path = there / name
        if file.copied and (not path.exists() or not digest_of(path).startswith(file.digest)):
            return True
    return False
