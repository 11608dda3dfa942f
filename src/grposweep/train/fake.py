"""The fake trainer: a known optimum and staged faults, with the files and states of real attempts,
without torch.

The held-out reward climbs from 0.2 towards 0.8 - 0.2 |log10(lr / best_lr)|, so the best learning
rate is known.
"""

import json
import math
import os
import random
import shutil
import time
from pathlib import Path

from grporecipe.files import write_json, write_text
from grposweep.process import exists
from grposweep.schema.running import KEEPS_LAST, KEEPS_MODEL, Fake
from grposweep.storage.checkpoints import FAKE, complete_checkpoints, drop_checkpoints
from grposweep.storage.results import TrialResult, TrialStatus
from grposweep.train import process as watchdog
from grposweep.train.attempt import Attempt, Outcome
from grposweep.train.records import find_objective

# the variable with the folder that stands for a GPU
FAKE_GPU = "FAKE_GPU"
# a controller looks ten times a second
LOOK_SECONDS = 0.5
# reward before training, at the best learning rate, lost a factor of ten
START, BEST, PER_DECADE = 0.2, 0.8, 0.2


def train(attempt: Attempt) -> Outcome:
    """Walk through the steps; the other ranks wait for rank 0's word."""
    if not attempt.is_main:
        return _follow(attempt)
    fake = _fake(attempt)
    step = _resume(attempt)
    if step == 0 and attempt.experiment.schedule.eval_at_start:
        _evaluate(attempt, 0)
    while step < attempt.total:
        step += 1
        _misbehave(attempt, step)
        if gpu := os.environ.get(FAKE_GPU):
            _hold_memory(Path(gpu))
        time.sleep(fake.step_seconds)
        lr = attempt.experiment.lr
        attempt.log("train", step, {"reward": reward_at(attempt, step), "learning_rate": lr})
        if step in attempt.plan.evaluation_steps:
            _evaluate(attempt, step)
        attempt.beat(step)
        boundary = attempt.pace.is_boundary(step)
        if boundary and step < attempt.total and attempt.asks_to_stop(step):
            return Outcome(stopped=True, step=step, checkpoint=_save(attempt, step))
        if boundary and attempt.plan.save_steps and step % attempt.plan.save_steps == 0:
            _save(attempt, step)
    return _finish(attempt, step)


def _fake(attempt: Attempt) -> Fake:
    """Return what is staged."""
    return Fake(
        **{
            name: value
            for name, value in attempt.experiment.trainer.args.items()
            if hasattr(Fake, name)
        }
    )


def reward_at(attempt: Attempt, step: int) -> float:
    """Return the synthetic learning curve at a step; its noise depends on seed and step only."""
    fake = _fake(attempt)
    lr = attempt.experiment.lr
    target = max(BEST - PER_DECADE * abs(math.log10(lr / fake.best_lr)), 0.0)
    noise = random.Random(f"{attempt.experiment.seed} {lr} {step}").gauss(0.0, fake.noise)
    return START + (target - START) * (1 - math.exp(-3 * step / attempt.total)) + noise


def _evaluate(attempt: Attempt, step: int) -> None:
    reward = reward_at(attempt, step)
    noise = _fake(attempt).noise
    attempt.log(
        "eval", step, {"eval_reward": reward, "eval_reward_se": noise, "eval_reward_noise": noise}
    )
    if attempt.experiment.search.budget and 0 < step < attempt.total:
        # the controller may pause this attempt, which would otherwise end before it is judged
        until = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < until and not attempt.asks_to_stop(step):
            time.sleep(0.01)


def _misbehave(attempt: Attempt, step: int) -> None:
    """Stage the configured faults."""
    fake = _fake(attempt)
    if fake.crash_at is not None and step >= fake.crash_at:
        raise RuntimeError(f"trainer.args.crash_at={fake.crash_at}: this crash is staged")
    if fake.crash_above_lr is not None and attempt.experiment.lr > fake.crash_above_lr:
        raise RuntimeError(
            f"trainer.args.crash_above_lr={fake.crash_above_lr}: this crash is staged"
        )
    if fake.oom_above is not None and attempt.plan.per_device_train_batch_size > fake.oom_above:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB: this crash is staged")
    if fake.hang_at is not None and step >= fake.hang_at:
        # deaf to SIGTERM, as a hung collective is
        while True:
            time.sleep(3600)


def _hold_memory(gpu: Path) -> None:
    """Hold half of what a trial needs in its attempt's first step, and all of it later.

    A folder stands for the GPU: the files ``total`` and ``needs`` hold GiB, and others what the
    process of that number holds. Raises RuntimeError in torch's words if it does not fit.
    """
    # not on Windows, where nothing stages a GPU
    import fcntl

    # no driver gives the same memory to two processes
    with (gpu / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        total, needs, trials = (
            *(float((gpu / name).read_text()) for name in ("total", "needs")),
            watchdog.gpu_trials(),
        )
        files = [path for path in gpu.iterdir() if path.name.isdigit() and exists(int(path.name))]
        held = {int(path.name): float(path.read_text()) for path in files}
        own = held.pop(os.getpid(), 0.0)
        wanted = needs if own else needs / 2
        asked = wanted - own
        free = total - own - sum(held.values())
        if asked > free or wanted > total / trials:
            listed = "".join(
                f"Process {pid} has {gib:.2f} GiB memory in use. " for pid, gib in held.items()
            )
            allowed = f"{total / trials:.2f} GiB allowed; " if trials > 1 else ""
            raise RuntimeError(
                f"CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU 0 has a total "
                f"capacity of {total:.2f} GiB of which {free:.2f} GiB is free. {listed}Including "
                f"non-PyTorch memory, this process has {own:.2f} GiB memory in use. {allowed}Of "
                f"the allocated memory {own:.2f} GiB is allocated by PyTorch, and 0 bytes is "
                "reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
                "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments"
            )
        write_text(gpu / str(os.getpid()), f"{wanted}")


def _save(attempt: Attempt, step: int) -> str:
    """A checkpoint of one number; the earlier ones go unless all are kept."""
    before = (
        []
        if attempt.experiment.trainer.keep == "all"
        else complete_checkpoints(attempt.checkpoints, 1)
    )
    path = attempt.checkpoints / f"checkpoint-{step}"
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / FAKE, {"step": step})
    for checkpoint in before:
        if checkpoint.step != step:
            shutil.rmtree(checkpoint.path)
    return str(path.relative_to(attempt.folder))


def _resume(attempt: Attempt) -> int:
    """Return the step to resume from, and drop later metrics."""
    checkpoint = attempt.begin()
    return 0 if checkpoint is None else checkpoint.step


def _finish(attempt: Attempt, step: int) -> Outcome:
    keep = attempt.experiment.trainer.keep
    search = attempt.experiment.search
    best = find_objective(attempt.metrics.lines(), search).best_step
    model = (
        _save_model(attempt.folder, best or step)
        if keep in KEEPS_MODEL or (best and keep != "none")
        else None
    )
    if keep in KEEPS_LAST:
        return Outcome(stopped=False, step=step, model=model, checkpoint=_save(attempt, step))
    drop_checkpoints(attempt.checkpoints, 1)
    return Outcome(stopped=False, step=step, model=model)


def _save_model(folder: Path, step: int) -> str:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "fake.json").write_text(json.dumps({"step": step}))
    return "model"


def _follow(attempt: Attempt) -> Outcome:
    """Run a rank without work: end when rank 0 ends. If rank 0 dies, the launcher ends this
    rank.
    """
    while True:
        result = TrialResult.read(attempt.folder)
        if result.attempt == attempt.number:
            if result.status is TrialStatus.FAILED:
                raise RuntimeError("rank 0 failed")
            return Outcome(stopped=result.status is TrialStatus.STOPPED, step=result.step or 0)
        time.sleep(0.05)
