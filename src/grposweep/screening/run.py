"""Run a screen as an attempt on a launcher, find a matching screen, and pass its results to rules and trials."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import write_text
from grporecipe.model.planning import completions_per_step
from grporecipe.model.setting import Setting
from grporecipe.rules.check import check, errors
from grporecipe.terminal import redraws
from grposweep.config.compose import render_experiment
from grposweep.config.identity import prepared_key, screen_key
from grposweep.config.to_setting import read_setting
from grposweep.launchers import build_launcher
from grposweep.launchers.base import End, Interrupted, Job, Launcher, LauncherBusy
from grposweep.registries import runs_trl
from grposweep.schema import Batch, Experiment, Kl, Loss, Schedule, Tracker
from grposweep.screening.summary import GROUPS, Screen
from grposweep.storage import paths
from grposweep.storage.folders import TrialFolder
from grposweep.storage.lease import Lease
from grposweep.storage.records import Action, AttemptEventKind, ControlRequest, Heartbeat
from grposweep.storage.screens import ScreenRequest

SAMPLES = 16  # of a prompt
SAMPLED_PROMPTS = 256  # of a sweep that filters no prompts: enough to estimate shares of groups
MOST_SCREENS = 8  # before one sweep
POLL_SECONDS = 0.2


def screens_folder(outputs: str) -> Path:
    """Return the folder with all screens."""
    return Path(outputs) / paths.SCREENS


def find_screen(experiment: Experiment) -> Screen | None:
    """Return the largest finished screen that matches an experiment, by prompts, then by samples. None if there is none."""
    screens = (Screen.read(path) for path in screens_folder(experiment.outputs).glob(f"{screen_key(experiment)}-*"))
    whole = [screen for screen in screens if screen is not None and len(screen.prompts) >= screen.wanted]
    return max(whole, key=lambda screen: (len(screen.prompts), screen.request.samples), default=None)


def screening_experiment(experiment: Experiment, samples: int) -> Experiment:
    """Return the experiment of a screen: the same model, data, rewards and sampling, without training.

    A batch has about as many completions as the experiment's, in whole groups of ``samples``.
    """
    setting, ranks = read_setting(experiment), experiment.cluster.processes
    unit = samples // gcd(samples, ranks)
    size = max(setting.per_device_train_batch_size, setting.per_device_eval_batch_size) // unit * unit or unit
    generation = replace(experiment.generation, vllm_importance_sampling_correction=None)
    if generation.use_vllm:
        generation.vllm_importance_sampling_correction = False  # would need a forward pass
    if generation.vllm_shared_gpus:  # a screen has no adapters, and a server of its own
        generation = replace(generation, vllm_gpus=generation.vllm_shared_gpus, vllm_shared_gpus=0)
    is_quantized = experiment.model.quantization is not None
    lora = replace(experiment.model.lora, enabled=experiment.model.lora.enabled and is_quantized)
    return replace(
        experiment,
        lr=1e-6,
        seed=0,
        name=None,
        force=False,
        model=replace(experiment.model, lora=lora, gradient_checkpointing=False),
        task=replace(experiment.task, keep_between=None, screen=None),
        batch=Batch(
            num_generations=samples, per_device_train_batch_size=size, gradient_accumulation_steps=1,
            per_device_eval_batch_size=size, num_generations_eval=samples,
        ),
        kl=Kl(),
        loss=Loss(),
        schedule=Schedule(max_steps=1, evaluations=0, eval_at_start=False, checkpoints=0),
        generation=generation,
        trainer=replace(experiment.trainer, keep="none", sharding="none", args={}, deepspeed_config=None, fsdp_config={}),
        cluster=replace(experiment.cluster, warm=False),
        tracker=Tracker(),
    )  # fmt: skip


def run_screen(
    experiment: Experiment, samples: int, prompts: int | None, console: Console, interrupts: Interrupted
) -> Screen | None:
    """Return a screen with at least these samples and prompts. Run or resume one if there is none. None if interrupted.

    Raises UserError if the screen cannot run.
    """
    if not runs_trl(experiment.trainer.kind):
        raise UserError(
            f"trainer={experiment.trainer.kind}: a screen samples with TRL's own generation and our rewards. "
            "Set trainer=trl for it, with the same model, prompts, rewards and sampling."
        )
    if samples < 2:
        raise UserError(f"--samples {samples}: a group needs two completions to differ. Give 8 or more; 16 is usual.")
    folder = (screens_folder(experiment.outputs) / f"{screen_key(experiment)}-{samples}").resolve()
    known = Screen.read(folder)
    if known is not None and len(known.prompts) >= min(prompts or known.data.train_prompts, known.data.train_prompts):
        return known
    folder.mkdir(parents=True, exist_ok=True)
    run = screening_experiment(experiment, samples)
    with Lease(folder / paths.LEASE):
        ScreenRequest(samples, prompts).write(folder)
        (folder / paths.CONTROL).unlink(missing_ok=True)
        write_text(folder / paths.CONFIG, render_experiment(run))
        launcher = build_launcher(run, folder)
        try:
            launcher.admit(run)
            end = _attempt(launcher, run, folder, console, interrupts)
        finally:
            launcher.close()
    if end.code == ExitCode.STOPPED or interrupts.count:
        return None
    if end.code != ExitCode.FINISHED:
        raise UserError(_message(folder, end))
    return Screen.read(folder)


def _attempt(launcher: Launcher, run: Experiment, folder: Path, console: Console, interrupts: Interrupted) -> End:
    """Run one attempt to its end. The first interrupt stops it after the current batch, the second at once."""
    trial, heard = TrialFolder(folder), 0
    begun = _find(launcher, run, trial) or _submit(launcher, run, trial, interrupts)
    if begun is None:
        return End(ExitCode.STOPPED)
    attempt, job_id = begun
    console.print(f"screening in {folder}", soft_wrap=True)
    with Progress(console=console, transient=True, disable=not redraws(console)) as bar:
        task = bar.add_task("prompts", total=None)
        while (end := launcher.poll(job_id)) is None:
            if interrupts.count > heard:
                heard = interrupts.count
                if heard > 1:
                    launcher.cancel(job_id)
                ControlRequest(Action.STOP, reason="interrupted").write(folder)
            beat = Heartbeat.read(folder)
            bar.update(task, completed=beat.step, total=beat.total or None)
            time.sleep(POLL_SECONDS)
    trial.note_attempt(attempt, AttemptEventKind.ENDED, code=end.code)
    return end


def _find(launcher: Launcher, run: Experiment, trial: TrialFolder) -> tuple[int, str] | None:
    """Return the attempt and the job that an earlier process left pending or running, or None."""
    begun = trial.open_attempt()
    if begun is None:
        return None
    job_id = launcher.find(Job(trial.path, begun.number, run.cluster, run.generation), begun.job_id)
    return None if job_id is None else (begun.number, job_id)


def _submit(launcher: Launcher, run: Experiment, trial: TrialFolder, interrupts: Interrupted) -> tuple[int, str] | None:
    """Submit the next attempt. Retry while the launcher refuses it. None if the user interrupts."""
    attempt = trial.next_attempt()
    trial.note_attempt(attempt, AttemptEventKind.INTENT, time=time.time())
    while not interrupts.count:
        try:
            job_id = launcher.submit(Job(trial.path, attempt, run.cluster, run.generation))
        except LauncherBusy:
            time.sleep(run.cluster.poll_seconds)
            continue
        trial.note_attempt(attempt, AttemptEventKind.STARTED, time=time.time(), job_id=job_id)
        return attempt, job_id
    return None


def _message(folder: Path, end: End) -> str:
    """Return a message with the attempt's error and the path of its log."""
    failure = TrialFolder(folder).result.failure
    if failure is not None and end.code == ExitCode.BAD_INPUT:
        return failure.message
    text = f"{failure.kind}: {failure.message}" if failure is not None else end.message or f"exit code {end.code}"
    return f"screening failed ({text}). Its whole output is in {folder / paths.LOGS}; run the same command to continue."


def prompts_by_group(experiment: Experiment, counted: Mapping[str, Any] | None = None) -> dict[int, float]:
    """Return the prompts per optimizer step for each number of generations that the batch rules allow."""
    by_size = {}
    for size in sorted({*GROUPS, experiment.batch.num_generations}):
        batch = replace(experiment.batch, num_generations=size)
        setting = read_setting(replace(experiment, batch=batch), counted)
        prompts = prompts_per_step(setting)
        if prompts is not None and not any(p.code.startswith("GB") for p in errors(check(setting))):
            by_size[size] = prompts
    return by_size


def prompts_per_step(s: Setting) -> float | None:
    """Return the prompts per optimizer step; None if sizes are unknown."""
    completions = None if s.unsolved else completions_per_step(s)
    return None if not completions or s.num_generations < 1 else completions / s.num_generations


def screen_sweep(experiments: Iterable[Experiment], console: Console, interrupts: Interrupted) -> bool:
    """Run the screens that a sweep needs and does not have yet. Return False if the user interrupted one.

    ``experiments`` differ in model, task or generation. Raises UserError if there are too many.
    """
    wanted = {screen_key(experiment): experiment for experiment in experiments}
    if len(wanted) > MOST_SCREENS:
        raise UserError(
            f"search.screen=true: the space has {len(wanted)} combinations of model, task and sampling, and each needs a screen "
            f"of its own; at most {MOST_SCREENS} are run. Set search.screen=false, or search fewer of them at once."
        )
    for experiment in wanted.values():
        prompts = SAMPLED_PROMPTS if experiment.task.keep_between is None else None
        screen = find_screen(experiment)
        if screen is not None and (prompts is not None or screen.is_whole):
            continue
        if run_screen(experiment, SAMPLES, prompts, console, interrupts) is None:
            console.print("interrupted while screening; run the same command to continue")
            return False
    return True


def choose_pass_rates(experiments: Iterable[Experiment]) -> str | None:
    """Return the hash of the pass rates by which a sweep filters prompts.

    None if it does not filter, or if its configuration names the hash.

    Raises UserError if there is no screen of all prompts, or if points of the sweep need different screens.
    """
    filtered = [experiment for experiment in experiments if experiment.task.keep_between is not None]
    wanted = {screen_key(experiment): experiment for experiment in filtered if experiment.task.screen is None}
    if not wanted:
        return None
    experiment, *others = wanted.values()
    if others:
        raise UserError(
            "task.keep_between: the points of this sweep differ in model, prompts, rewards or sampling, and each would need a "
            "screen of its own. Name one for all (task.screen=HASH), or search these in sweeps of their own."
        )
    screen = find_screen(experiment)
    record = None if screen is None else screen.pass_rates()
    if screen is None or record is None:
        some = "" if screen is None else f", only one of {len(screen.prompts)} of {screen.data.train_prompts} prompts"
        raise UserError(
            f"task.keep_between={experiment.task.keep_between}: there is no screen of this model, data, reward and sampling in "
            f"{screens_folder(experiment.outputs)}{some}. Run 'grposweep screen' with the same "
            "overrides, or set search.screen=true."
        )
    record.write(screen.folder)
    return record.digest


def with_screens(prepared: Mapping[str, Any], experiments: Iterable[Experiment]) -> dict[str, Any]:
    """Add the results of matching screens to the counts of preparation. Model, data, rewards and sampling must match."""
    entries = {key: dict(entry) for key, entry in prepared.items()}
    for experiment in experiments:
        screen, entry = find_screen(experiment), entries.get(prepared_key(experiment))
        if screen is not None and entry is not None:
            entry.setdefault("screens", {})[screen_key(experiment)] = {
                "signal_shares": screen.signal_shares(experiment.task.keep_between),
                "truncated_share": screen.truncated_share,
            }
    return entries
