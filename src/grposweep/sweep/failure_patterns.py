"""What torch, NCCL, gloo, the kernel, vLLM, TRL and launchers say when something fails, and which class that is.

A pattern begins where its line does (behind prefixes such as ``[rank0]:``), so that a warning, a log message or a
model's completion that quotes an error is none. The texts' origins are in tests/sweep/failures/.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from grposweep.launchers import launcher_class
from grposweep.launchers.base import EndState
from grposweep.registries import LAUNCHERS
from grposweep.storage.results import Failure

# What stands before a line: a progress bar that was not ended, a clock, the kernel's (dmesg -T), torchrun's and srun's
# ranks, vLLM's processes and errors.
_PREFIX = re.compile(
    r"^(?: *\d+%\|[^|]{0,40}\| \d+/\d+ \[[^\]]{0,60}\](?=\S))?"
    r"(?:\d\d:\d\d:\d\d[.,\d]* |\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] |\[(?:[\w.-]+ )?(?:rank)?\d+\]:? ?"
    r"|\(\S+ pid=\d+(?:, ip=[\d.]+)?\) "
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+\] |ERROR \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\] |\d+: )*"
)
# A line of training metrics: whatever stands above it was survived.
_PROGRESS = re.compile(r"^\{'(?:loss|eval_|train_)")
_EXCEPTION = re.compile(r"^[\w.]*(?:[Ee]rror|Exception|Interrupt|Timeout|Expired|Exit|BrokenProcessPool)\b(?::|$)")
# Exceptions that only pass on that another process has failed.
_PASSED_ON = re.compile(
    r"[\w.]*(?:EngineDeadError|CalledProcessError|ChildFailedError)\b|RuntimeError: Engine core init"
)
_OTHER_CRASHES = re.compile(
    r"^(?:double free or corruption|free\(\): invalid|malloc\(\): |Fatal Python error|Segmentation fault|Aborted)"
)
_BEGINS = ("Traceback (most recent call last)", "ray.exceptions.RayTaskError(")
_FRAME = re.compile(r'^ +File "([^"]+)", line \d+(?:, in (\S+))?')
# Where frameworks check what a person set: files that do nothing else, and the beginnings of everything.
_CONFIGURATION = re.compile(r"(?:_config|training_args|configuration_\w+|hf_argparser)\.py$")
_LIBRARY = re.compile(r"/(?:trl|transformers|accelerate|peft|vllm|deepspeed|verl)/")
_BEGINNING = re.compile(r"__init__|__post_init__|_?(?:check|verify|validate|parse)\w*")
_REFUSAL = re.compile(r"(?:ValueError|TypeError|KeyError|AttributeError|NotImplementedError)\b")
# A person's reward function raised what is raised below TRL's _calculate_rewards, ms-swift's _score_completions, or in
# verl's reward managers.
_REWARDS = re.compile(r":(?:_calculate_rewards|_score_completions)$|/reward_(?:manager|score)/")
_CAUSE = "The above exception was the direct cause of the following exception"
_ECHOES = (Failure.COMMUNICATION, Failure.BAD_CONFIGURATION, Failure.KILLED)  # by words that a reward may use as well

_ERROR = r"[\w.]*(?:Error|Exception): .*"
_LONGEST = 1000  # characters of a line that are looked at, so that no pattern takes long

# In the order in which they are tried on a line.
_PATTERNS: dict[Failure, tuple[str, ...]] = {
    Failure.REWARD: (
        r"(?:[\w.]+\.)?RewardError: ",
    ),
    Failure.GPU_MEMORY: (
        r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError: ",
        _ERROR + r"(?:CUDA|HIP|XPU|MPS backend) out of memory",
        r"(?:" + _ERROR + r")?(?:CUDA|HIP|Triton) [Ee]rror(?: \[CUDA\])?: out of memory",
        _ERROR + r"CU(?:BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED",
        r"(?:\S+ \[\d+\] (?:\S+ )?NCCL WARN )?Cuda failure (?:\d+ )?'out of memory'",
    ),
    Failure.HOST_MEMORY: (
        r"(?:\[ *[\d.]+\] )?(?:Memory cgroup out|Out) of memory: Killed process",
        _ERROR + r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        _ERROR + r"DataLoader worker .* is killed by signal: (?:Killed|Bus error)",
        r"(?:[\w.]+\.)?_?(?:Array)?MemoryError(?::|$)",
        r"OSError: \[Errno 12\]",
        r"ray\.exceptions\.OutOfMemoryError: ",
        r"terminate called after throwing an instance of 'std::bad_alloc'",
        r"\S+ \[\d+\] (?:\S+ )?NCCL WARN .*shared memory .*No space left",
    ),
    Failure.DISK_FULL: (
        _ERROR + r"(?:No space left on device|Disk quota exceeded|StorageFull)",
        r"(?:[\w./ -]+: )+(?:.*: )?(?:No space left on device|Disk quota exceeded)$",
        _ERROR + r"No usable temporary directory found",
        r"ray\.exceptions\.OutOfDiskError: ",
        _ERROR + r"(?:inline_container\.cc.*unexpected pos|PytorchStreamWriter failed writing)",
    ),
    Failure.COLLAPSE: (
        r"collapse: ",
    ),
    Failure.NON_FINITE: (
        _ERROR + r"probability tensor contains either",
        r".*Assertion `probability tensor contains either .* failed",
        _ERROR + r"Current loss scale already at minimum",
        r"FloatingPointError: ",
        _ERROR + r".*returned nan values in its",
        r"ValueError: Expected parameter (?:logits|probs) .* to satisfy the constraint",
        _ERROR + r".*(?:Unexpected result nan|found NaN in local grad norm)",
        r"(?:" + _ERROR + r")?[Ll]oss (?:is|was) (?:nan|inf|not finite)",
        _ERROR + r"The total norm of order .* is non-finite",
    ),
    Failure.BAD_CONFIGURATION: (
        r"bad_input: ",
        r"(?:ModuleNotFound|Import)Error: ",
        r"OSError: .*(?:is not a valid model identifier|Incorrect path_or_model_id|gated repo)",
        r"[\w.]*\.(?:HFValidation|RepositoryNotFound|RevisionNotFound|GatedRepo)Error: ",
        r"TypeError: \w*(?:Config|Arguments|Trainer)\.__init__\(\) got an unexpected keyword",
        r"ValueError: .*must (?:be divisible by|divide) ",
        r"ValueError: .*[Gg][Pp][Uu][_ ]memory[_ ]utilization",
        r"ValueError: .*(?:max seq len|max_model_len)",
        r"ValueError: GRPO requires at least",
        r"ValueError: (?:The global .*batch size .*divisible|Bfloat16 is only supported)",
        r"(?:Could not override '|Key '[^']+' is not in struct)",  # Hydra's
        r"ValueError: Target modules .* not found in the base model",
        r"KeyError: 'prompt'$",  # TRL's first look at the data
    ),
    Failure.NODE_FAILURE: (
        _ERROR + r"CUDA error: (?:uncorrectable (?:ECC|NVLink)|an? .*hardware|.*device.*unavailable)",
        r".*NVRM: Xid .*(?:fallen off the bus|uncorrectable|Double Bit ECC)",
        r".*NVRM: Xid \([^)]*\): (?:48|74|79|95|119|120|140|154)\b",  # NVIDIA: reset or replace it
        r"(?:\[ *[\d.]+\] )?(?:mce: Uncorrected hardware|.*SIGBUS .*hardware memory corruption)",
        r".*(?:GPU is lost|Unable to determine the device handle for GPU)",  # nvidia-smi's
    ),
    Failure.HANG: (
        r"Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!$",  # faulthandler's, see train/watchdog.py
        r"\[E\d+ .* ProcessGroupNCCL.*watchdog got stuck",
        r"RuntimeError: DataLoader timed out after",
        _ERROR + r"Ranks? [\d, ]+ failed to pass monitoredBarrier",
        r"Scheduler watchdog timeout",  # SGLang's
        r"ray\.exceptions\.GetTimeoutError: ",
        r"TimeoutError: RPC call to \w+ timed out",  # vLLM's engine waits for its workers
    ),
    Failure.KILLED: (
        r".*\*\*\* SIGTERM received at time=",
        r"KeyboardInterrupt\b",
        _ERROR + r"DataLoader worker .* is killed by signal: Terminated",
        r"W\d+ .*Received (?:1|2|15) death signal",
        r"(?:[\w.]+\.)?SignalException: ",
    ),
    Failure.COMMUNICATION: (
        r"(?:[\w.]+\.)?Dist(?:Backend|Network|Store)Error: ",
        _ERROR + r"(?:third_party/gloo|NCCL error|Connection (?:closed|reset) by peer)",
        _ERROR + r"(?:Timed out waiting \d+ms for|Application timeout caused pair closure)",
        r"\[E\d+ .* ProcessGroup(?:NCCL|Gloo)\.cpp:\d+\]",
        r"\S+ \[\d+\] (?:\S+ )?NCCL WARN (?:NET/|socketProgress|Net )",
        r"(?:[\w.]+\.)?ConnectionError: ",
        r"(?:[\w.]+\.)?(?:Read|Connect)Timeout(?:Error)?: ",
        _ERROR + r"Failed to connect to GCS",  # Ray's head
        r"nccl(?:Remote|System)Error: ",
    ),
}  # fmt: skip


# What a launcher or the sweep itself knows of an attempt's end.
FAILURE_OF_END: dict[str, Failure] = {
    EndState.OUT_OF_MEMORY: Failure.HOST_MEMORY, EndState.NODE_FAILED: Failure.NODE_FAILURE,
    EndState.PREEMPTED: Failure.PREEMPTED, EndState.STOPPED: Failure.PREEMPTED, EndState.TIMEOUT: Failure.TIME_LIMIT,
    EndState.CANCELLED: Failure.KILLED, EndState.HANG: Failure.HANG,
}  # fmt: skip


@cache
def _all_patterns(kinds: tuple[str, ...]) -> tuple[tuple[Failure, re.Pattern[str]], ...]:
    """Return the launchers' patterns before the general ones."""
    launchers = ((FAILURE_OF_END[state], text) for kind in kinds for state, text in launcher_class(kind).log_patterns)
    general = ((failure, text) for failure, texts in _PATTERNS.items() for text in texts)
    return tuple((failure, re.compile(text)) for failure, text in (*launchers, *general))


def read_log(lines: Iterable[str]) -> Iterator[Failure]:
    """The classes that a log's lines after its last sign of progress speak of; CRASH for an error of no known kind.

    An error of no known kind that says that a known one was its cause only passes that one on; and what ends in errors
    after a watchdog has spoken is what hung.
    """
    frames: list[tuple[str, str]] = []
    known, wraps, hung = False, False, False
    for line in _since_progress(lines):
        if line.startswith(_BEGINS):
            frames = []
        elif found := _FRAME.match(line):
            frames.append((found[1], found[2] or ""))
        elif line.startswith(_CAUSE):
            wraps = known
        elif (failure := _read_line(line, frames)) is not None:
            if not (failure is Failure.CRASH and (wraps or hung)):
                yield failure
            known, wraps, hung = failure is not Failure.CRASH, False, hung or failure is Failure.HANG


def _since_progress(lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for raw in lines:
        line = _PREFIX.sub("", raw[:_LONGEST].rstrip())
        if _PROGRESS.match(line):
            kept.clear()
        else:
            kept.append(line)
    return kept


def _read_line(line: str, frames: Sequence[tuple[str, str]]) -> Failure | None:
    """``frames`` are the files and functions of the traceback above, the place where it was raised last."""
    known = next((failure for failure, pattern in _all_patterns(tuple(LAUNCHERS)) if pattern.match(line)), None)
    is_exception = _EXCEPTION.match(line) is not None
    if is_exception and known in (None, *_ECHOES) and any(_REWARDS.search(f"{file}:{name}") for file, name in frames):
        return Failure.REWARD
    if known is not None:
        return known
    if is_exception and not _PASSED_ON.match(line):
        return Failure.BAD_CONFIGURATION if frames and _refuses(line, *frames[-1]) else Failure.CRASH
    return Failure.CRASH if _OTHER_CRASHES.match(line) else None


def _refuses(line: str, file: str, function: str) -> bool:
    """Whether an exception raised there says that what a person set cannot work."""
    if _CONFIGURATION.search(file):
        return True
    return bool(_REFUSAL.match(line) and _LIBRARY.search(file) and _BEGINNING.fullmatch(function))
