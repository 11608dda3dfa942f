"""The TRL trainer: run one attempt with GRPOTrainer."""

import logging
import math
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import accelerate.utils
import datasets
import numpy
import torch
import transformers
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.model.planning import build_plan
from grposweep.config.precision import no_bfloat16, read_precision
from grposweep.config.to_setting import read_setting
from grposweep.config.validate import check_packages
from grposweep.schema import Model
from grposweep.schema.registries import ranks_follow
from grposweep.schema.running import KEEPS_LAST, KEEPS_MODEL
from grposweep.storage import paths
from grposweep.storage.checkpoints import (
    Checkpoint,
    best_model,
    drop_best_models,
    drop_checkpoints,
    newest_checkpoint,
    take_best_model,
)
from grposweep.storage.forks import ForkState
from grposweep.train import process as watchdog
from grposweep.train._evaluation import (
    HeldOutEvaluation,
    judge,
)
from grposweep.train._models import (
    Loaded,
    build_quantization,
    find_model_folder,
    load_model,
    name_base_model,
    widen_adapters,
)
from grposweep.train._restore import (
    WHOLE,
    allow_deepspeed_states,
    configured,
    load_reference,
    save_reference,
)
from grposweep.train._shared_engine import release_adapters, shared_engine
from grposweep.train._trl_callbacks import Stopwatch, TrialControlCallback, UpdateNormCallback
from grposweep.train._trl_config import (
    build_config,
    check_is_sharded,
    check_sharding,
    start_deepspeed_on_cpus,
    start_fsdp_loading,
)
from grposweep.train._vllm import copy_merged_weights, wait_for_server
from grposweep.train.attempt import Attempt, Outcome, check_schedule, prepared_weights
from grposweep.train.callback import broadcast_any
from grposweep.train.records import build_rollout_schedule, find_objective
from grposweep.train.rewards import Reward, load_rewards
from grposweep.train.tasks import Data, load_data

# Trainers of several ranks, never to be freed: freeing DDP's process group waits, with the
# interpreter's lock held, for a thread of gloo's that wants that lock. It was seen to hang, now and
# then. Our processes end with os._exit instead.
_alive: list[GRPOTrainer] = []


def train(attempt: Attempt) -> Outcome:
    """Train one rank of one attempt, from the newest complete checkpoint or the start, to the end
    or a stop.
    """
    calm()
    use_devices(attempt)
    # first: what is loaded after it stays off the network
    model_folder = locate_model(attempt)
    model = load_model(attempt.experiment.model, model_folder)
    data = load_data(attempt.task, model.has_template)
    check_counts(attempt, data)
    start_deepspeed_on_cpus(attempt)
    # connects the ranks
    arguments = build_config(attempt, model)
    start_fsdp_loading(attempt.experiment)
    checkpoint = choose_checkpoint(attempt)
    resumed_at, resumed_from = 0, None
    if checkpoint is not None:
        resumed_at, resumed_from = checkpoint.step, str(checkpoint.path)
    trainer = build_trainer(attempt, model, data, arguments, resumed_at)
    check_is_sharded(attempt, trainer)
    allow_deepspeed_states(attempt.experiment.trainer.sharding)
    if checkpoint is None:
        trainer.args.eval_on_start = attempt.experiment.schedule.eval_at_start
    trainer.train(resume_from_checkpoint=resumed_from)
    outcome = finish(attempt, trainer)
    release_adapters(attempt, arguments)
    # no rank leaves while another still talks to it
    trainer.accelerator.wait_for_everyone()
    return outcome


def locate_model(attempt: Attempt) -> Path:
    """Return the model's local folder. A hub model that this machine lacks is downloaded, which is
    no sign of a hang.
    """

    def feed(_what: str, _done: int, _total: int) -> None:
        watchdog.feed(attempt.experiment.cluster.stall_min)

    return find_model_folder(
        attempt.experiment.model, prepared_weights(attempt.folder, attempt.experiment), feed
    )


def choose_checkpoint(attempt: Attempt) -> Checkpoint | None:
    """Return the checkpoint to resume from, the same on every rank, or None to start from the
    beginning.

    Rank 0 chooses and tells the others: on a network file system each node may still see an older
    state of a folder.
    """
    shared: list[Checkpoint | None] = [None]
    if attempt.is_main:
        shared = [attempt.begin()]
    if attempt.ranks > 1:
        torch.distributed.broadcast_object_list(shared, src=0)
    return shared[0]


def calm() -> None:
    """Nothing on stderr but errors: progress is the controller's to show, from our own files."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    logging.getLogger("trl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    warnings.filterwarnings("ignore", category=FutureWarning)
    # ours may be a forked process
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def use_devices(attempt: Attempt) -> None:
    """Use one GPU per process, or the CPU with a fixed number of threads (another number rounds
    differently).
    """
    gpus = torch.cuda.device_count()
    if gpus > 1 and attempt.ranks == 1:
        key = "gpus_per_node" if ranks_follow(attempt.experiment.cluster.kind) else "processes"
        raise UserError(
            f"{gpus} GPUs are visible to this one process, and GRPOTrainer cannot split a batch "
            f"over them. Set cluster.{key}={gpus}, or CUDA_VISIBLE_DEVICES to one of them."
        )
    # a trial that needs more fails itself, and not the others
    if gpus and watchdog.gpu_trials() > 1:
        torch.cuda.set_per_process_memory_fraction(1 / watchdog.gpu_trials())
    if gpus == 1 and attempt.ranks > 1:
        os.environ["LOCAL_RANK"] = (
            # accelerate's index into the visible GPUs; some launchers show a rank only its own
            "0"
        )
    check_sharding(attempt.experiment)
    check_gpu_precision(attempt.experiment.model)
    refuse_mistakes(check_packages(attempt.experiment))
    threads = attempt.experiment.cluster.threads
    # or accelerate chooses for itself when there are several ranks
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def check_gpu_precision(model: Model) -> None:
    """Raise UserError if the GPU here does not compute in the types that are set: bfloat16 and TF32
    came with Ampere.
    """
    if (
        not torch.cuda.is_available()
        or torch.version.hip
        or torch.cuda.get_device_capability() >= (8, 0)
    ):
        return
    precision = read_precision(model)
    name = torch.cuda.get_device_name()
    if "bfloat16" in (precision.weights, precision.computed):
        raise UserError(no_bfloat16(name))
    if model.tf32:
        raise UserError(
            f"model.tf32=true: {name} has no TensorFloat-32, which came with Ampere. Set "
            "model.tf32=null."
        )


def check_counts(attempt: Attempt, data: Data) -> None:
    """Check the number of prompts against the plan's. Without preparation the plan is made here."""
    counts = data.counts()
    setting = attempt.setting
    if setting.train_prompts is None:
        attempt.setting = read_setting(attempt.experiment, counts)
        attempt.plan, attempt.pace = (
            build_plan(attempt.setting),
            build_rollout_schedule(attempt.setting),
        )
        check_schedule(attempt.setting, attempt.plan)
    elif (setting.train_prompts, setting.eval_prompts) != (
        counts["train_prompts"],
        counts["eval_prompts"],
    ):
        raise UserError(
            f"task: {counts['train_prompts']} training and {counts['eval_prompts']} held-out "
            f"prompts were found, but the sweep was planned for {setting.train_prompts} and "
            f"{setting.eval_prompts}: the data changed since. Restore it, or start a sweep under "
            "another name."
        )


class Trainer(GRPOTrainer):  # type: ignore[misc]  # trl is not typed
    """GRPOTrainer with evaluations that are exact and leave the training's random numbers alone,
    and with a stopwatch.
    """

    def __init__(
        self, attempt: Attempt, held_out: HeldOutEvaluation, resumed_at: int, **kwargs: Any
    ) -> None:
        self.attempt, self.held_out, self.resumed_at = attempt, held_out, resumed_at
        self.watch = Stopwatch()
        super().__init__(**kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """TRL's evaluation; its mean reward replaced by the mean over distinct prompts, with a
        standard error.
        """
        step, ranks, began = self.state.global_step, self.attempt.ranks, time.perf_counter()
        self.held_out.start()
        try:
            seed = self.args.seed * 1_000_003 + step + sampling_group(self.attempt, self.args)
            with self.watch.pause(), seed_generation(seed % 2**32):
                values = dict(super().evaluate(*args, **kwargs))
        finally:
            self.held_out.active = False
        rows = self.held_out.rows(self.attempt.rank)
        completions = self.held_out.completions(self.attempt.rank)
        if ranks > 1:
            rows = accelerate.utils.gather_object(rows)
            completions = accelerate.utils.gather_object(completions)
        names = [reward.__name__ for reward in self.reward_funcs]
        values |= judge(
            self.attempt, step, rows, completions, self.num_generations_eval, names, values, began
        )
        self.attempt.log("eval", step, values)
        if (
            self.attempt.experiment.search.at == "best"
            and self.attempt.experiment.trainer.keep != "none"
        ):
            self._keep_best(step)
        return values

    def _keep_best(self, step: int) -> None:
        """Save the model of the best evaluation so far. All ranks must call this at the same
        step.
        """
        attempt = self.attempt
        is_best = attempt.is_main and step > 0 and best_step_of(attempt) == step
        if not broadcast_any(is_best, self.args.world_size, self.args.device):
            return
        self.save_model(str(best_model(attempt.checkpoints, step)))
        self.accelerator.wait_for_everyone()
        if attempt.is_main:
            # A resume goes back to the newest checkpoint: what was the best by then may become the
            # best again.
            newest = newest_checkpoint(attempt.checkpoints, attempt.ranks)
            until = 0 if newest is None else newest.step
            before = best_step_of(attempt, until)
            drop_best_models(attempt.checkpoints, keep={step, before})

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self.watch.begin(self.state.num_input_tokens_seen)
        with self.watch.measure("generation"):
            return super()._generate(*args, **kwargs)

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch.measure("scoring"):
            return super()._generate_and_score_completions(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's line of a step, with what the step cost."""
        if "loss" in logs:
            logs = {**logs, **self.watch.read(self.state.num_input_tokens_seen)}
        super().log(logs, start_time)

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        """TRL's sampler, moved on to the epoch we resume in: it draws one permutation an epoch from
        its own generator, and on resume neither TRL nor transformers draws those of the finished
        epochs again.
        """
        sampler = super()._get_train_sampler(dataset)
        for _ in range(self.attempt.pace.epochs_at(self.resumed_at)):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the states; at the start of a continuation with the rates of its own
        configuration.
        """
        kept: AbstractContextManager[None] = nullcontext()
        if self._continues(checkpoint):
            kept = configured(self.optimizer, self.lr_scheduler)
        with kept:
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.args.sync_ref_model:
            load_reference(self.accelerator.unwrap_model(self.ref_model), Path(checkpoint))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a reference model that follows the policy, which TRL leaves out. First, so that a
        torn one has no optimizer.
        """
        if (
            self.args.sync_ref_model
            and self.args.should_save
            and self.attempt.experiment.trainer.sharding in WHOLE
        ):
            save_reference(
                self.accelerator.unwrap_model(self.ref_model),
                Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}",
            )
        super()._save_checkpoint(model, trial)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the random numbers; a branch on a fresh seed draws others, the same for all
        children of that seed.
        """
        super()._load_rng_state(checkpoint)
        state = self._continues(checkpoint)
        if state is not None and state.seed != self.args.seed:
            accelerate.utils.set_seed(self.args.seed + sampling_group(self.attempt, self.args))

    def _continues(self, checkpoint: str | None) -> ForkState | None:
        """Return the continuation whose state this checkpoint is; None for a checkpoint of the
        trial itself.
        """
        sweep = self.attempt.folder.parent.parent
        is_fork = checkpoint is not None and Path(checkpoint).parent == sweep / paths.FORK
        return ForkState.find(sweep) if is_fork else None

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: a sweep writes hundreds of checkpoints, whose cards have no
        reader.
        """


def sampling_group(attempt: Attempt, arguments: GRPOConfig) -> int:
    """Return the number of this rank's random stream. Tensor parallel ranks of vLLM share one, to
    sample the same tokens.
    """
    return attempt.rank // int(arguments.vllm_tensor_parallel_size)


@contextmanager
def seed_generation(seed: int) -> Iterator[None]:
    """Seed everything for a while, then continue as if nothing had been drawn: how often a trial is
    evaluated must not change what it learns, and trials of one seed are judged with common random
    numbers.
    """
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    accelerate.utils.set_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])
        torch.set_rng_state(before[2])
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)


def build_trainer(
    attempt: Attempt, model: Loaded, data: Data, arguments: GRPOConfig, resumed_at: int
) -> Trainer:
    """Build the trainer, with its rewards recorded during evaluations."""
    rewards = load_rewards(attempt.task)
    updates = UpdateNormCallback()
    task = attempt.experiment.task
    held_out = HeldOutEvaluation(
        list(task.reward_weights or [1.0] * len(rewards)), task.family_column
    )
    transformers.set_seed(attempt.experiment.seed)
    if arguments.use_vllm and arguments.vllm_mode == "server" and attempt.rank == 0:
        wait_for_server(str(arguments.vllm_server_base_url), arguments.vllm_server_timeout)
    with shared_engine(attempt):
        trainer = Trainer(
            attempt,
            held_out,
            resumed_at,
            model=model.path,
            reward_funcs=[
                listen(reward, number, held_out) for number, reward in enumerate(rewards)
            ],
            args=arguments,
            train_dataset=data.train,
            eval_dataset=data.held_out,
            processing_class=model.tokenizer,
            peft_config=model.peft_config,
            quantization_config=build_quantization(attempt.experiment.model),
            callbacks=[updates, TrialControlCallback(attempt, updates)],
        )
    held_out.ends = ending_tokens(trainer)
    widen_adapters(attempt.experiment.model, trainer.model)
    if attempt.ranks > 1:
        _alive.append(trainer)
    if trainer.use_vllm and trainer.vllm_mode == "colocate":
        # The engine has seeded this process with its group's number and not with our seed. It draws
        # from torch's generator.
        accelerate.utils.set_seed(attempt.experiment.seed + sampling_group(attempt, arguments))
    if trainer.use_vllm and trainer.vllm_mode == "server" and model.peft_config is not None:
        copy_merged_weights(trainer.vllm_generation)
    # prints every log if there is no progress bar
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def ending_tokens(trainer: GRPOTrainer) -> frozenset[int]:
    """Return the tokens that end a completion, as TRL counts truncated ones; empty if this TRL does
    not say.
    """
    tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
    tokens = {
        *(getattr(trainer, "eos_token_ids", None) or [tokenizer.eos_token_id]),
        tokenizer.pad_token_id,
    }
    return frozenset(int(token) for token in tokens if token is not None)


def listen(
    reward: Reward, number: int, held_out: HeldOutEvaluation
) -> Callable[..., list[float | None]]:
    """Return the same reward, with its values recorded during evaluations."""

    def heard(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        values = reward(prompts, completions, **columns)
        if number == 0:
            held_out.hear(prompts, completions, columns)
        held_out.record(number, columns["prompt_id"], values)
        return values

    # TRL's metrics are called rewards/<name>/mean
    heard.__name__ = reward.__name__
    return heard


def finish(attempt: Attempt, trainer: Trainer) -> Outcome:
    """Keep what ``trainer.keep`` says; a stopped trial always keeps the checkpoint it will resume
    from.
    """
    step = trainer.state.global_step
    keep = attempt.experiment.trainer.keep
    stopped = next(
        c.stopped for c in trainer.callback_handler.callbacks if isinstance(c, TrialControlCallback)
    )
    if not stopped and step < attempt.total:
        raise RuntimeError(f"the training ended after {step} of {attempt.total} optimizer steps")
    checkpoint = f"checkpoints/checkpoint-{step}" if stopped or keep in KEEPS_LAST else None
    if stopped:
        return Outcome(stopped=True, step=step, checkpoint=checkpoint)
    at_best = attempt.experiment.search.at == "best" and keep != "none"
    if keep in KEEPS_MODEL and not at_best:
        trainer.save_model(str(attempt.folder / "model"))
    trainer.accelerator.wait_for_everyone()
    if attempt.is_main and at_best:
        take_best_model(attempt.checkpoints, best_step_of(attempt), attempt.folder / "model")
    if attempt.is_main and (keep in KEEPS_MODEL or at_best):
        name_base_model(attempt.folder / "model", attempt.experiment.model)
    if attempt.is_main and checkpoint is None:
        drop_checkpoints(attempt.checkpoints, attempt.ranks)
    has_model = keep in KEEPS_MODEL or (at_best and (attempt.folder / "model").is_dir())
    model = "model" if has_model else None
    return Outcome(stopped=False, step=step, model=model, checkpoint=checkpoint)


def best_step_of(attempt: Attempt, until: float = math.inf) -> int | None:
    """Return the step of the best evaluation so far, or by a step; on rank 0, which writes the
    metrics.
    """
    lines = [line for line in attempt.metrics.lines() if line["step"] <= until]
    return find_objective(lines, attempt.experiment.search).best_step
