"""The records of a screen: the request, the data, the samples of each prompt, and the pass rates.

A screen's folder is ``<outputs>/screens/<key>-<samples>``. A sweep with ``task.keep_between`` holds a copy of the pass rates.
"""

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from grporecipe.errors import UserError
from grporecipe.files import append_line, as_number, read_json, read_lines, text_or, whole_or_none, write_json
from grposweep.storage import paths

DEPTH = 3  # levels of folders below the outputs that are searched for pass rates: names of sweeps may contain slashes
ORDER = 20  # seed of the order of prompts: the first N are a random sample, and part of every larger one


@dataclass(frozen=True)
class ScreenRequest:
    """screen.json: the samples of each prompt, and the number of prompts (None: all training prompts)."""

    samples: int
    prompts: int | None = None

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the request in a folder; None if the folder is not a screen's."""
        content = read_json(folder / paths.SCREEN) or {}
        samples = whole_or_none(content.get("samples"))
        return None if samples is None else cls(samples, whole_or_none(content.get("prompts")))

    def write(self, folder: Path) -> None:
        """Write the request to a screen's folder."""
        write_json(folder / paths.SCREEN, asdict(self))


@dataclass(frozen=True)
class ScreenedData:
    """data.json: the screened data. ``duplicates`` counts repeated prompts, ``conflicts`` those with another answer.

    ``hashes`` are of all training rows (``train``) and of the weights (``model``). ``repeated`` is an example of a duplicate.
    """

    train_prompts: int
    hashes: Mapping[str, str]
    rewards: tuple[str, ...]
    weights: tuple[float, ...]
    duplicates: int = 0
    conflicts: int = 0
    repeated: str = ""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the record in a screen's folder; None if it is missing or damaged."""
        content = read_json(folder / paths.SCREENED) or {}
        try:
            return cls(
                int(content["train_prompts"]), {str(k): str(v) for k, v in content["hashes"].items()},
                tuple(map(str, content["rewards"])), tuple(map(float, content["weights"])),
                int(content["duplicates"]), int(content["conflicts"]), text_or(content.get("repeated")),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def write(self, folder: Path) -> None:
        """Write the record to a screen's folder."""
        write_json(folder / paths.SCREENED, asdict(self))


@dataclass(frozen=True)
class PromptSamples:
    """One line of rollouts.jsonl: a prompt and its samples.

    ``rewards`` has a row for each reward function, with a value for each sample (None: not judged). ``lengths`` are in
    tokens. ``mentions`` says whether a completion contains the answer. ``example`` is a completion of the lowest reward, if
    possible one that contains the answer.
    """

    prompt: int  # its prompt_id
    question: Any  # text, or the turns of a conversation
    answer: str
    rewards: tuple[tuple[float | None, ...], ...]
    lengths: tuple[int, ...]
    truncated: tuple[bool, ...]
    mentions: tuple[bool, ...]
    example: str = ""

    @classmethod
    def parse(cls, line: Mapping[str, Any]) -> Self | None:
        """Return the record of a line; None if the line is damaged."""
        try:
            rewards = tuple(tuple(map(as_number, row)) for row in line["rewards"])
            lengths, truncated, mentions = (tuple(line[name]) for name in ("lengths", "truncated", "mentions"))
        except (KeyError, TypeError):
            return None
        record = cls(
            line["prompt"], line.get("question"), text_or(line.get("answer")), rewards, lengths, truncated, mentions,
            text_or(line.get("example")),
        )  # fmt: skip
        sizes = {len(lengths), len(truncated), len(mentions), *map(len, rewards)}
        return record if len(sizes) == 1 and rewards else None

    def append(self, folder: Path) -> None:
        """Append the record to a screen's rollouts."""
        append_line(folder / paths.ROLLOUTS, asdict(self))

    def totals(self, weights: tuple[float, ...]) -> list[float]:
        """Return the weighted sum of the rewards of each sample that a reward has judged, as TRL computes it."""
        rows = zip(*self.rewards, strict=True)
        return [
            sum(weight * value for weight, value in zip(weights, row, strict=True) if value is not None)
            for row in rows
            if any(value is not None for value in row)
        ]


def read_samples(folder: Path) -> list[PromptSamples]:
    """Return the prompts screened so far, each once."""
    lines = read_lines(folder / paths.ROLLOUTS, prompt=int, rewards=list)
    samples = (record for line in lines if (record := PromptSamples.parse(line)) is not None)
    return list({record.prompt: record for record in samples}.values())


def screening_order(prompts: int) -> list[int]:
    """Return the prompt_ids in screening order, which is the same for every screen."""
    order = list(range(prompts))
    random.Random(ORDER).shuffle(order)
    return order


@dataclass(frozen=True)
class PassRatesRecord:
    """pass_rates.json: the expected pass rate of every training prompt, by prompt_id; ``digest`` names the content."""

    key: str
    samples: int
    train: str  # hash of the training rows
    rates: tuple[float, ...] = field(repr=False)

    @property
    def digest(self) -> str:
        """Return the hash that a trial's ``task.screen`` names."""
        content = json.dumps([self.key, self.samples, self.train, self.rates])
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def keep(self, low: float, high: float) -> list[int]:
        """Return the prompt_ids with an expected pass rate within these bounds."""
        return [number for number, rate in enumerate(self.rates) if low <= rate <= high]

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the record in a folder; None if it is missing or incomplete."""
        content = read_json(folder / paths.PASS_RATES) or {}
        try:
            rates = tuple(map(float, content["rates"]))
            record = cls(str(content["key"]), int(content["samples"]), str(content["train"]), rates)
        except (KeyError, TypeError, ValueError):
            return None
        return record if record.digest == content.get("digest") else None

    def write(self, folder: Path) -> None:
        """Write the record to a screen's or a sweep's folder."""
        write_json(folder / paths.PASS_RATES, {**asdict(self), "digest": self.digest})


def find_pass_rates(outputs: Path, digest: str) -> PassRatesRecord | None:
    """Find the pass rates with this digest among the screens and sweeps in an outputs folder."""
    files = (path for depth in range(1, DEPTH + 1) for path in outputs.glob(f"{'*/' * depth}{paths.PASS_RATES}"))
    records = (PassRatesRecord.read(path.parent) for path in files)
    return next((record for record in records if record is not None and record.digest == digest), None)


def hand_over(outputs: Path, digest: str, sweep: Path) -> None:
    """Copy the pass rates with this digest to a sweep's folder, for its trials.

    Raises UserError if the outputs folder does not contain them.
    """
    record = find_pass_rates(outputs, digest)
    if record is None:
        raise UserError(
            f"task.screen={digest}: no screen or sweep in {outputs} has these pass rates. Set task.screen=null to use the "
            "newest screen that matches."
        )
    record.write(sweep)


def kept_prompts(folder: Path, digest: str | None, bounds: list[float], train: str) -> list[int]:
    """Return the prompt_ids that ``task.keep_between`` keeps, by the pass rates in a sweep's folder.

    Raises UserError if the folder has other pass rates, if they are of other data, or if no prompt is left.
    """
    record = PassRatesRecord.read(folder)
    if record is None or record.digest != digest:
        raise UserError(
            f"task.keep_between={bounds} needs the pass rates of task.screen={digest}, and {folder} has "
            f"{'none' if record is None else record.digest}. Run the sweep's command again, or run 'grposweep screen' first."
        )
    if record.train != train:
        raise UserError(
            f"task.screen={digest} is a screen of other training prompts: the data changed since. Restore it, or screen it "
            "again with 'grposweep screen'."
        )
    kept = record.keep(bounds[0], bounds[1])
    if not kept:
        raise UserError(
            f"task.keep_between={bounds}: none of the {len(record.rates)} prompts has such a pass rate. 'grposweep screen' "
            "shows how they are distributed. Set wider bounds."
        )
    return kept
