"""Analyze a trial's held-out completions: signs that a policy games its reward, and texts for
screens and the report.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import RenderableType
from rich.text import Text

from grporecipe.files import Config, Json, finite_or_none
from grporecipe.terminal import count, one_line
from grposweep.report.trial_view import TrialView, formatted
from grposweep.storage.completions import Evaluations, KeptCompletion, best_step, read_completions

# completions of one trial on a terminal
SHOWN = 3
# characters of each
TEXT = 400
# A sign needs a share of this size, and this much more of it than before training: a base model may
# have begun with it.
SHARE, MORE, WITHOUT_START = 0.25, 0.15, 0.5
SIMILAR = 0.5
MORE_SIMILAR = 0.25
# of the n-grams, and of what it was
DISTINCT, FEWER = 0.6, 0.6
LONGER = 2.0
TRUNCATED = 0.5


@dataclass(frozen=True)
class Signs:
    """The metrics of an evaluation against those before training, both by name; the latter empty
    without such a row.
    """

    now: Config
    start: Config

    @cached_property
    def texts(self) -> list[str]:
        """Each sign of a degenerate policy, in words; empty for a healthy one, and for trials
        without such metrics.
        """
        signs = (
            self._share("template_share", "are one template"),
            self._repetition(),
            self._similar(),
            self._longer(),
            self._share("foreign_script_share", "are in another script than their prompt"),
            self._lost_format(),
        )
        return [*filter(None, signs)]

    def pair(self, name: str) -> tuple[float | None, float | None]:
        """Return a metric now and before training."""
        return finite_or_none(self.now.get(name)), finite_or_none(self.start.get(name))

    def _rose(self, name: str, least: float = SHARE, more: float = MORE) -> bool:
        now, start = self.pair(name)
        if now is None:
            return False
        return now >= WITHOUT_START if start is None else now >= max(least, start + more)

    def _share(self, name: str, what: str) -> str:
        """Return a share that rose as numbers of samples that ``what`` says, with that before
        training; otherwise an empty text.
        """
        (now, start), (samples, first) = self.pair(name), self.pair("samples")
        if now is None or not self._rose(name):
            return ""
        before = ""
        if start is not None and first:
            before = f" ({start * first:.0f} of {first:.0f} before training)"
        return f"{now * (samples or 0):.0f} of {samples or 0:.0f} samples {what}{before}"

    def _similar(self) -> str:
        if self._rose("template_share") or not self._rose(
            "similarity_across", SIMILAR, MORE_SIMILAR
        ):
            return ""
        now, start = self.pair("similarity_across")
        before = formatted(" ({:.0%} before training)", start)
        return f"answers to different prompts share {now or 0:.0%} of their word triples{before}"

    def _repetition(self) -> str:
        now, start = self.pair("distinct_ngrams")
        begun = 1.0
        if start is not None:
            begun = min(start, 1.0)
        if now is None or now > DISTINCT * begun or now > FEWER:
            return ""
        before = formatted(" ({:.0%} before training)", start)
        return f"texts repeat themselves: {now:.0%} of their word triples are distinct{before}"

    def _longer(self) -> str:
        now, start = self.pair("eval_completions/mean_length")
        cut, first = self.pair("eval_completions/clipped_ratio")
        if (
            now is None
            or not start
            or cut is None
            or now < LONGER * start
            or cut < max(TRUNCATED, 2 * (first or 0))
        ):
            return ""
        return (
            f"completions are {now / start:.1f} times as long as before training, and "
            f"{cut:.0%} are cut off"
        )

    def _lost_format(self) -> str:
        now, start = self.pair("marker_share")
        if now is None or start is None or start < SHARE + MORE or now > start / 4:
            return ""
        return (
            f"the answer's format is lost: {now:.0%} of the samples have its markers "
            f"({start:.0%} before training)"
        )


def signs(trial: TrialView) -> Signs:
    """Return a trial's metrics at the evaluation that its objective comes from, and before
    training.
    """
    rows = [line for line in trial.lines if line.get("kind") == "eval" and "samples" in line]
    if not rows:
        return Signs({}, {})
    start: Config = {}
    if rows[0]["step"] == 0:
        start = rows[0]
    wanted = trial.result.best_step
    now = next((line for line in rows if line["step"] == wanted), rows[-1])
    return Signs({}, start) if now is start else Signs(now, start)


MEASURES = {
    "diversity": "diversity",
    "template_share": "one template",
    "distinct_ngrams": "distinct triples",
    "similarity_across": "similar across prompts",
    "eval_completions/mean_length": "tokens",
    "eval_completions/clipped_ratio": "cut off",
}


def measures(trial: TrialView) -> str:
    """Return diversity and length of the completions, with the values before training, and the KL
    if it was logged.
    """
    measured = signs(trial)
    texts = []
    for name, label in MEASURES.items():
        now, start = measured.pair(name)
        if now is not None:
            texts.append(f"{label} {now:.3g}" + formatted(" ({:.3g})", start))
    if not texts:
        return ""
    for line in reversed(trial.lines):
        kl = finite_or_none(line.get("kl"))
        if kl is not None and line["step"] <= measured.now["step"]:
            texts.append(f"KL to the reference {kl:.3g}")
            break
    return ", ".join(texts)


def warning(trial: TrialView) -> str:
    """Return one sentence about a degenerate policy, or one that has not changed; empty without a
    sign of either.
    """
    return "; ".join(filter(None, (trial.unmoved, *signs(trial).texts)))


def winner_warning(trial: TrialView | None) -> list[str]:
    """Return a warning about a winner with degenerate completions, with one of them and the same
    prompt's before training.
    """
    if trial is None or trial.objective is None:
        return []
    text = warning(trial)
    if not text:
        return []
    lines = [f"{trial.objective:.4g}, but {text}"]
    pairs = _pairs(trial)
    if pairs:
        start, now = next((pair for pair in pairs if pair[1].template), pairs[0])
        lines.append(f"  now:             {_line(now.completion)}")
        if start is not None:
            lines.append(f"  before training: {_line(start.completion)}")
    return [*lines, f"  see more: grposweep show {trial.number}"]


def completions_screen(trial: TrialView) -> Iterator[RenderableType]:
    """Yield three completions of a trial with those of the same prompts before training, and the
    signs above them.
    """
    pairs = _pairs(trial)
    if not pairs:
        return
    step = pairs[0][1].step
    yield Text(f"\nheld-out completions at step {step}", "bold")
    # the rest of `warning` is above it on the screen
    found = "; ".join(signs(trial).texts)
    if found:
        yield Text(found, "yellow")
    measured = measures(trial)
    if measured:
        yield Text(f"{measured} (before training in brackets)", "dim")
    for start, now in pairs[:SHOWN]:
        yield Text.assemble(("prompt   ", "dim"), _line(now.prompt))
        for title, kept in (("start", start), (f"step {step}", now)):
            if kept is not None:
                text = _line(kept.completion)
                yield Text.assemble((f"{title:8} ", "dim"), text, (_facts(kept), "dim"))


def first_difference(trial: TrialView, other: TrialView) -> Iterator[tuple[str, str, str]]:
    """Yield prompts with both trials' last completions of them where these differ."""
    ours = {kept.prompt: kept for _, kept in _pairs(trial)}
    for _, kept in _pairs(other):
        mine = ours.get(kept.prompt)
        if mine is not None and mine.completion != kept.completion:
            yield (
                _line(kept.prompt),
                _line(mine.completion) + _facts(mine),
                _line(kept.completion) + _facts(kept),
            )


def page_evaluations(trial: TrialView, most: int, maximize: bool) -> Json | None:
    """Return a trial's kept completions for the HTML report, at most ``most`` evaluations; None if
    there are none.
    """
    completions = read_completions(trial.path)
    if not completions:
        return None
    step = _objective_step(trial, completions)
    wanted = {min(completions), max(completions), step, best_step(completions, maximize)}
    others = [at for at in completions if at not in wanted]
    wanted |= set(others[:: max(1, -(-len(others) // max(most - len(wanted), 1)))])
    evaluations = []
    for at, group in completions.items():
        if at in wanted:
            said = [*map(_completion_row, group)]
            evaluations.append({"step": at, "value": group[0].value, "said": said})
    return {"at": step, "evaluations": evaluations}


def _completion_row(kept: KeptCompletion) -> Json:
    return {
        "prompt": kept.prompt,
        "text": kept.completion,
        "reward": kept.reward,
        "parts": dict(kept.rewards),
        "truncated": kept.truncated,
        "template": kept.template,
    }


def _objective_step(trial: TrialView, evaluations: Evaluations) -> int:
    wanted = trial.result.best_step
    return wanted if wanted in evaluations else max(evaluations)


def _pairs(trial: TrialView) -> Sequence[tuple[KeptCompletion | None, KeptCompletion]]:
    """Return a completion of each prompt at the objective's step, with that before training; the
    templates first.
    """
    completions = read_completions(trial.path)
    if not completions:
        return []
    # the first of each prompt
    start = {kept.prompt: kept for kept in reversed(completions.get(0, ()))}
    step = _objective_step(trial, completions)
    if step == 0:
        start = {}
    now: dict[str, KeptCompletion] = {}
    for kept in sorted(completions[step], key=lambda kept: not kept.template):
        now.setdefault(kept.prompt, kept)
    return [(start.get(prompt), kept) for prompt, kept in now.items()]


def _facts(kept: KeptCompletion) -> str:
    """Return reward and parts of a completion, and whether it was cut off, in brackets."""
    parts = [("reward", kept.reward)]
    if len(kept.rewards) > 1:
        parts += kept.rewards.items()
    facts = [f"{name} {formatted('{:.3g}', value) or 'none'}" for name, value in parts]
    if kept.truncated:
        facts.append("cut off")
    return f"  [{', '.join(facts)}]"


def _line(text: str) -> str:
    """Return one line of a text that a model wrote: nothing in it moves the cursor or changes a
    colour.
    """
    short = text if len(text) <= TEXT else f"{text[:TEXT]} ... ({count(len(text), 'character')})"
    return one_line(short) or "(nothing)"
