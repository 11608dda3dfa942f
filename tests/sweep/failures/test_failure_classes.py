"""Failure logs, each with its evidence and the right class.

The classifier was written against ``develop`` alone. At first sight it had 41 of ``held_out``'s 42
right and 8 of the 10 in ``fresh``, both from the same hand. Then others wrote logs who had not seen
it, as hard as they could: of ``blind_first`` it had 38 of 60 right at first sight, of
``blind_second`` (Ray, SGLang, DeepSpeed, kernels, other schedulers) 22 of 50, of ``blind_third``,
the failures that users of TRL and verl on Slurm meet most often, 41 of 52. What it missed it mostly
called a crash, which is not tried again. All but a few have been fixed since, so these files only
guard what is known. Left out of the blind ones: cases of schedulers and limits that do not run our
jobs.
"""

from pathlib import Path

import pytest
import yaml

from grporecipe.files import Json
from grposweep.launchers.base import End
from grposweep.storage.results import Failure
from grposweep.sweep._failures import Evidence, classify_failure, log_sizes, policies, read_evidence

PARTS = ("develop", "held_out", "fresh", "blind_first", "blind_second", "blind_third")
FOREVER = {failure for failure, policy in policies().items() if policy.retries is None}


def cases(part: str) -> list[Json]:
    """One file of the corpus."""
    return list(yaml.safe_load((Path(__file__).parent / f"{part}.yaml").read_text()))


def found(case: Json) -> Failure:
    """The class by its evidence."""
    logs = {name: text.splitlines() for name, text in case["logs"].items()}
    evidence = {
        key: case[key] for key in ("code", "state", "error", "progress", "metrics") if key in case
    }
    return classify_failure(Evidence(logs=logs, **evidence))


def accepted(case: Json) -> list[str]:
    """The classes that are right; mostly one."""
    return [case["class"], *case.get("also", [])]


def wrong(part: str) -> list[str]:
    """Every case of a file that is taken for something else."""
    return [
        f"{c['name']}: {found(c)}, not {c['class']}"
        for c in cases(part)
        if found(c) not in accepted(c)
    ]


def test_the_corpus_covers_every_class_and_says_where_its_words_are_from() -> None:
    """At least sixty logs, each class in both halves."""
    assert sum(len(cases(part)) for part in PARTS) >= 60
    for part in PARTS[:2]:
        assert {case["class"] for case in cases(part)} == set(Failure)
    assert all(case["origin"] for part in PARTS for case in cases(part))


def test_at_least_95_percent_of_the_failures_get_their_class() -> None:
    """What is wrong is named by the assertion."""
    missed = [name for part in PARTS for name in wrong(part)]
    assert len(missed) <= 0.05 * sum(len(cases(part)) for part in PARTS), missed


@pytest.mark.parametrize("part", PARTS[:3])
def test_at_least_95_percent_of_the_first_ones_do(part: str) -> None:
    """The blind ones have some that cannot be known."""
    assert len(wrong(part)) <= 0.05 * len(cases(part)), wrong(part)


@pytest.mark.parametrize("part", PARTS)
def test_no_failure_is_wrongly_tried_again_forever_and_none_wrongly_given_up(part: str) -> None:
    """Preemption and time limits are repeated as often as they come: nothing else may be taken for
    them.
    """
    mixed = [
        case["name"]
        for case in cases(part)
        if (found(case) in FOREVER) != (case["class"] in FOREVER)
    ]
    assert not mixed


def test_an_attempt_without_evidence_is_a_crash() -> None:
    """Not something to be repeated."""
    assert classify_failure(Evidence()) is Failure.CRASH


def test_an_earlier_attempts_lines_are_not_this_ones_evidence(tmp_path: Path) -> None:
    """Logs are appended to: what stood there when the attempt began is left out."""
    log = tmp_path / "logs" / "rank-0.log"
    log.parent.mkdir()
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    before = log_sizes(tmp_path)
    with log.open("a") as file:
        file.write("AssertionError\n")
    assert classify_failure(read_evidence(tmp_path, End(1), before=before)) is Failure.CRASH
    assert classify_failure(read_evidence(tmp_path, End(1))) is Failure.GPU_MEMORY


def test_only_the_tail_of_a_long_log_is_read_and_its_first_line_is_whole(tmp_path: Path) -> None:
    """A hundred megabytes cost no more than their end."""
    log = tmp_path / "logs" / "rank-0.log"
    log.parent.mkdir()
    log.write_bytes(b"0123456789\xff\n" * 20_000 + b"MemoryError\n")
    lines = read_evidence(tmp_path, End(1)).logs["rank-0.log"]
    assert len(lines) < 6_000
    assert set(lines[:-2]) == {"0123456789\ufffd"}
    assert classify_failure(read_evidence(tmp_path, End(1))) is Failure.HOST_MEMORY


def test_what_the_attempt_said_itself_is_evidence(tmp_path: Path) -> None:
    """result.json's failure, and metrics without numbers."""
    (tmp_path / "result.json").write_text(
        '{"failure": {"kind": "RewardError", "message": "task.rewards: x raised"}}'
    )
    assert classify_failure(read_evidence(tmp_path, End(1))) is Failure.REWARD
    (tmp_path / "result.json").unlink()
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind": "train", "step": 3, "loss": null}\n{"kind": "trai'
    )
    assert classify_failure(read_evidence(tmp_path, End(1))) is Failure.NON_FINITE
