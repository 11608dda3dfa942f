"""Measure how varied the held-out completions of one evaluation are, from their texts alone.

A policy that answers every prompt with the same text may earn more than one that solves them. No
second model is needed to see that. Distinct n-grams are those of Li et al. 2016 (arXiv:1510.03055)
within one completion, self-similarity is the Jaccard index of word triples, and `diversity` is the
Gini-Simpson index over pairs of different prompts.
"""

import operator
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import fmean
from typing import TypeVar

T = TypeVar("T")

# characters of a completion that are looked at
LONGEST = 8_000
# of a completion whose triples are compared
WORDS = 1_000
# completions that are compared with each other
COMPARED = 128
# within prompts, and as many across
PAIRS = 400
# words of an n-gram
N = 3
# share of completions from which a template is one to look at
NOTABLE = 0.2
# that decide a text's script
LETTERS = 200

# Characters of Chinese, Japanese and Korean are words; a run of more than 8 letters or digits is
# several.
_WORD = r"[぀-鿿가-힯]|[^\W぀-鿿가-힯]{1,8}|[^\w\s]"
# numbers and words, of a prompt: names among them
_KNOWN = r"\d+(?:\.\d+)?|[^\W\d_]{3,}"
# of an answer's format
_MARKER = r"</?\w+>|\\boxed|####|```|<\|"
_LITERAL = r"[^\W_]"
_END = " .!\n\t)}]>*$\"'"


@dataclass(frozen=True)
class Completion:
    """One held-out completion. ``parts`` are its rewards in the task's order (None: not judged).

    ``text`` is what is judged and measured, of several turns the last one's; ``shown`` has all of
    them. ``family`` is that of the prompt, by ``task.family_column``.
    """

    prompt_id: int
    prompt: str
    text: str
    answer: str = ""
    truncated: bool = False
    reward: float | None = None
    parts: tuple[float | None, ...] = ()
    family: str = ""

    @property
    def ends_with_answer(self) -> bool:
        """Return whether it ends with the reference answer, so that it is not an empty phrase."""
        answer = self.answer.strip()
        text = self.text.rstrip(_END)
        if not answer or not text.endswith(answer):
            return False
        before = text[: -len(answer)][-1:]
        return not (before.isalnum() and answer[0].isalnum())


@dataclass(frozen=True)
class Measured:
    """The metrics by name, each completion's template, and the most frequent one.

    It is empty if fewer than `NOTABLE` of the completions have it.
    """

    metrics: dict[str, float]
    keys: list[str]
    template: str


def template(completion: Completion) -> str:
    """Return the text with numbers and words of its prompt replaced by ``_``; the text itself if
    nothing else is left.
    """
    return _without(completion.text, _words(completion.prompt))


# each prompt has several completions
@lru_cache(maxsize=4096)
def _words(prompt: str) -> frozenset[str]:
    return frozenset(word.lower() for word in re.findall(_KNOWN, prompt[:LONGEST]))


def _without(text: str, ignored: frozenset[str]) -> str:
    text = text[:LONGEST].lower()
    rest = " ".join(
        re.sub(_KNOWN, lambda word: "_" if word[0] in ignored else word[0], text).split()
    )
    return rest if re.search(_LITERAL, rest) else " ".join(text.split())


def measure(completions: Sequence[Completion]) -> Measured:
    """Return the metrics of one evaluation's completions.

    ``diversity`` is the chance that completions of two different prompts are different templates,
    ``template_share`` the share of completions that are the most frequent template (those that end
    with the reference answer are not counted).
    """
    keys = list(map(template, completions))
    top, number = _most_frequent(completions, keys)
    similar = [c for c in _spread(completions, COMPARED) if c.text.strip()]
    grams = [_triples(completion.text) for completion in similar]
    total = max(len(completions), 1)
    if number < NOTABLE * total:
        top = ""
    marked = [c for c in completions if re.search(_MARKER, c.text[:LONGEST])]
    return Measured(
        {
            "samples": float(len(completions)),
            "diversity": _different(completions, keys),
            "template_share": number / total,
            "distinct_ngrams": fmean([len(set(g)) / len(g) for g in grams] or [1.0]),
            "similarity_within": _similarity(similar, grams, operator.eq),
            "similarity_across": _similarity(similar, grams, operator.ne),
            "foreign_script_share": sum(map(_is_foreign, completions)) / total,
            "marker_share": len(marked) / total,
        },
        keys,
        top,
    )


def pick_places(
    completions: Sequence[Completion], keys: Sequence[str], top: str, prompts: int, each: int
) -> list[int]:
    """Return the places of a few completions: of the same prompts at every evaluation, and one of
    the template ``top``.
    """
    wanted = _spread(sorted({completion.prompt_id for completion in completions}), prompts)
    seen: Counter[int] = Counter()
    places = []
    for index, completion in enumerate(completions):
        seen[completion.prompt_id] += 1
        if completion.prompt_id in wanted and seen[completion.prompt_id] <= each:
            places.append(index)
    if top and not any(keys[index] == top for index in places):
        places.append(keys.index(top))
    return places


def _most_frequent(completions: Sequence[Completion], keys: Sequence[str]) -> tuple[str, int]:
    """Return the template that most completions have without ending in the answer, among those that
    two prompts share.
    """
    empty = [
        (key, c.prompt_id)
        for key, c in zip(keys, completions, strict=True)
        if not c.ends_with_answer
    ]
    counts = Counter(key for key, _ in empty)
    prompts = Counter(key for key, _ in set(empty))
    return max(
        ((key, number) for key, number in counts.items() if prompts[key] > 1),
        key=lambda f: f[1],
        default=("", 0),
    )


def _different(completions: Sequence[Completion], keys: Sequence[str]) -> float:
    """Return the share of pairs of different prompts' completions with different templates; 1
    without such a pair.
    """
    prompts = [completion.prompt_id for completion in completions]

    def across(
        of: Counter[str] | Counter[int], both: Counter[tuple[str, int]] | Counter[int]
    ) -> int:
        return sum(n * n for n in of.values()) - sum(n * n for n in both.values())

    pairs = len(keys) ** 2 - sum(n * n for n in Counter(prompts).values())
    same = across(Counter(keys), Counter(zip(keys, prompts, strict=True)))
    return 1 - same / pairs if pairs else 1.0


def _similarity(
    completions: Sequence[Completion],
    grams: Sequence[Sequence[tuple[str, ...]]],
    related: Callable[[int, int], bool],
) -> float:
    """Return the mean Jaccard index of pairs whose prompts are related; 0 without such a pair."""
    ids = [completion.prompt_id for completion in completions]
    sets = list(map(set, grams))
    pairs = [(a, b) for a, b in combinations(range(len(ids)), 2) if related(ids[a], ids[b])]
    if len(pairs) > PAIRS:
        # its own generator: training draws from the global one
        pairs = random.Random(0).sample(pairs, PAIRS)
    return fmean([len(sets[a] & sets[b]) / len(sets[a] | sets[b]) for a, b in pairs] or [0.0])


def _triples(text: str) -> list[tuple[str, ...]]:
    """Return the word triples of a text; a shorter one is a single n-gram."""
    words = re.findall(_WORD, text[:LONGEST].lower())[:WORDS]
    return [tuple(words[at : at + N]) for at in range(max(len(words) - N + 1, 1))]


def _is_foreign(completion: Completion) -> bool:
    """Return whether most letters are of a script that the prompt does not use."""
    letters = Counter(map(_script, filter(str.isalpha, completion.text[:LETTERS])))
    expected = _scripts(completion.prompt) if letters else ()
    return bool(letters and expected) and letters.most_common(1)[0][0] not in expected


@lru_cache(maxsize=4096)
def _scripts(prompt: str) -> frozenset[str]:
    return frozenset(map(_script, filter(str.isalpha, prompt[:LONGEST])))


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    name = unicodedata.name(letter, "?").split()[0]
    return "CJK" if name in ("HIRAGANA", "KATAKANA") else name


def _spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` items, evenly spread, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]
