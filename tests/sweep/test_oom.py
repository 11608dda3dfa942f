"""Peaks that trials report correct the estimate, within bounds, and leave out what would not fit by
them.
"""

from pathlib import Path

import pytest

from grporecipe.files import Json, append_line
from grporecipe.memory.calibration import LARGEST, SMALLEST, VARIABLE, calibrate
from grporecipe.memory.estimate import CONTEXT, GIB, estimate
from grposweep.config.compose import to_experiment
from grposweep.config.to_setting import read_setting
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.records import AttemptEventKind, OomFix
from grposweep.sweep._oom import corrections, find_needs, known_oom, record_peak

OVERRIDES: Json = {
    "model": {
        "dtype": "bfloat16",
        "gradient_checkpointing": True,
        "shape": {
            "parameters": 494_032_768,
            "layers": 24,
            "hidden": 896,
            "intermediate": 4864,
            "heads": 14,
            "kv_heads": 2,
            "vocabulary": 151_936,
            "model_type": "qwen2",
        },
    },
    "batch": {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "per_device_eval_batch_size": 8,
    },
}


class ValidatedSpace:
    """What is asked of a verdict here: an experiment and its setting."""

    def __init__(self, gpu_memory_gib: float | None, completion: int = 256) -> None:
        from omegaconf import OmegaConf

        where = {
            "cluster": {"gpu_memory_gib": gpu_memory_gib},
            "generation": {"max_completion_length": completion},
        }
        self.experiment = to_experiment(OmegaConf.create({**OVERRIDES, **where}))
        self.setting = read_setting(self.experiment)

    @property
    def gib(self) -> float:
        """The estimate before any correction."""
        memory = estimate(self.setting)
        assert memory is not None
        return memory.peak / GIB


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    """An empty sweep."""
    (tmp_path / "trials").mkdir()
    return SweepFolder(tmp_path)


def trial_folder(sweep: SweepFolder, number: int) -> TrialFolder:
    """A trial's new folder."""
    folder = sweep.path / "trials" / f"{number:04}-abc"
    folder.mkdir()
    return TrialFolder(folder)


def finish(sweep: SweepFolder, verdict: ValidatedSpace, reserved: float, number: int = 0) -> None:
    """A trial that reserved so many GiB at its peak."""
    folder = trial_folder(sweep, number)
    for step, gib in ((1, reserved / 2), (2, reserved)):
        append_line(folder.path / "metrics.jsonl", {"step": step, "memory/peak": gib})
    record_peak(sweep, folder, verdict)  # type: ignore[arg-type]  # it has what is asked of one


def test_the_trial_that_needed_most_for_its_estimate_corrects_it(sweep: SweepFolder) -> None:
    """Not the mean: what is called safe must not fail."""
    verdict = ValidatedSpace(24.0)
    for number, ratio in enumerate((1.1, 1.3, 1.2)):
        finish(sweep, verdict, verdict.gib * ratio - CONTEXT / GIB, number)
    (found,) = corrections(sweep).values()
    assert found == (pytest.approx(1.3), 1)


@pytest.mark.parametrize(("ratio", "bounded"), [(10.0, LARGEST), (0.1, SMALLEST)])
def test_a_correction_stays_within_bounds(sweep: SweepFolder, ratio: float, bounded: float) -> None:
    """A shared GPU, or a model that is not the one of the shape, says nothing about other
    points.
    """
    verdict = ValidatedSpace(24.0)
    finish(sweep, verdict, verdict.gib * ratio)
    ((factor, _),) = corrections(sweep).values()
    assert factor == bounded


def test_a_point_that_does_not_fit_by_what_was_seen_is_left_out(sweep: SweepFolder) -> None:
    """It would have fitted by the estimate alone."""
    limit = ValidatedSpace(None).gib * 1.1
    verdict = ValidatedSpace(limit)
    assert known_oom(sweep, verdict) is None  # type: ignore[arg-type]
    finish(sweep, verdict, verdict.gib * 1.2, number=4)
    assert known_oom(sweep, verdict) == 4  # type: ignore[arg-type]


def test_without_a_known_gpu_nothing_is_noted(sweep: SweepFolder) -> None:
    """On a CPU the peak is the process's, which is no GPU's."""
    finish(sweep, ValidatedSpace(None), 3.0)
    assert corrections(sweep) == {}


def test_a_peak_corrects_the_phase_that_it_was_in(sweep: SweepFolder) -> None:
    """A trial whose peak was in one phase says nothing of a point whose peak is in another."""
    verdict = ValidatedSpace(24.0)
    finish(sweep, verdict, verdict.gib * 1.4)
    memory = estimate(verdict.setting)
    assert memory is not None
    assert list(corrections(sweep)) == [memory.peak_phase]


def test_peaks_are_shared_between_sweeps_only_if_a_file_is_named(
    sweep: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same GPU with the same versions; another GPU is not corrected."""
    verdict = ValidatedSpace(24.0)
    other = ValidatedSpace(48.0)
    finish(sweep, verdict, verdict.gib)
    assert calibrate(verdict.setting).memory_factors == ()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "peaks.jsonl"))
    finish(sweep, verdict, verdict.gib * 1.2 - CONTEXT / GIB, number=1)
    ((_, factor),) = calibrate(verdict.setting).memory_factors
    assert factor == pytest.approx(1.2)
    assert calibrate(other.setting).memory_factors == ()
    before = estimate(verdict.setting)
    after = estimate(calibrate(verdict.setting))
    assert before is not None
    assert after is not None
    assert after.peak == pytest.approx(1.2 * before.peak)


def test_a_trial_needs_the_largest_of_what_is_known(sweep: SweepFolder) -> None:
    """The lower end of the estimate, corrected by finished trials; its own peak; what it needed
    when others held it.
    """
    trial = trial_folder(sweep, 9)
    verdict = ValidatedSpace(24.0)
    memory = estimate(verdict.setting)
    assert memory is not None
    assert find_needs(trial, verdict) == (pytest.approx(memory.low / GIB), False)  # type: ignore[arg-type]
    finish(sweep, verdict, verdict.gib * 1.4 - CONTEXT / GIB)
    assert find_needs(trial, verdict) == (pytest.approx(verdict.gib * 1.4), False)  # type: ignore[arg-type]
    append_line(trial.path / "metrics.jsonl", {"step": 1, "attempt": 0, "memory/peak": 30.0})
    assert find_needs(trial, verdict) == (pytest.approx(30 + CONTEXT / GIB), False)  # type: ignore[arg-type]
    trial.note_attempt(0, AttemptEventKind.ENDED, needs_gib=33.5)
    assert find_needs(trial, verdict) == (33.5, True)  # type: ignore[arg-type]


def test_what_a_trial_needs_is_unknown_after_its_micro_batches_were_halved(
    sweep: SweepFolder,
) -> None:
    """Until an attempt with the smaller ones has said it."""
    trial = trial_folder(sweep, 9)
    verdict = ValidatedSpace(24.0)
    append_line(trial.path / "metrics.jsonl", {"step": 1, "attempt": 0, "memory/peak": 30.0})
    OomFix({"per_device_train_batch_size": 4}, "out of GPU memory", attempt=0).write(trial.path)
    assert find_needs(trial, verdict) == (None, False)  # type: ignore[arg-type]
    trial.note_attempt(1, AttemptEventKind.ENDED, needs_gib=12.5)
    assert find_needs(trial, verdict) == (12.5, True)  # type: ignore[arg-type]
