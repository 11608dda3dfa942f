"""What torch, NCCL, gloo, Slurm, the kernel, vLLM and TRL say when something fails, and which class that is.

A pattern begins where its line does (behind prefixes such as ``[rank0]:``), so that a warning, a log message or a
model's completion that quotes an error is none. The texts' origins are in tests/sweep/failures/.
"""

import re
from collections.abc import Iterable, Iterator

from grposweep.sweep.failures.kinds import Failure

# What launchers and loggers put before a line: torchrun's and srun's ranks, vLLM's processes and errors.
_PREFIX = re.compile(
    r"^(?:\[(?:rank)?\d+\]:? ?|\(\w+ pid=\d+\) |ERROR \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\] |\d+: )+"
)
# A line of training metrics: whatever stands above it was survived.
_PROGRESS = re.compile(r"^\{'(?:loss|eval_|train_)")
_EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Timeout|Expired|Exit)\b(?::|$)")
_OTHER_CRASHES = re.compile(r"^(?:Fatal Python error|Segmentation fault|Aborted)")
_FRAME = re.compile(r'^ +File "([^"]+)", line \d+')
# Where frameworks check what a person set.
_CONFIGURATION = re.compile(r"(?:_config|training_args|configuration_\w+)\.py$")

_ERROR = r"[\w.]*(?:Error|Exception): .*"
_LONGEST = 1000  # characters of a line that are looked at, so that no pattern takes long

# In the order in which they are tried on a line.
_PATTERNS: tuple[tuple[Failure, re.Pattern[str]], ...] = tuple(
    (failure, re.compile(pattern))
    for failure, pattern in [
        (Failure.REWARD, r"(?:[\w.]+\.)?RewardError: "),
        (Failure.GPU_MEMORY, r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError: "),
        (Failure.GPU_MEMORY, _ERROR + r"(?:CUDA|HIP|XPU|MPS backend) out of memory"),
        (Failure.GPU_MEMORY, _ERROR + r"CUDA error: out of memory"),
        (Failure.GPU_MEMORY, _ERROR + r"CU(?:BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED"),
        (Failure.GPU_MEMORY, r"(?:\S+ \[\d+\] (?:\S+ )?NCCL WARN )?Cuda failure (?:\d+ )?'out of memory'"),
        (Failure.HOST_MEMORY, r"slurmstepd: error: .*oom[-_ ]kill event"),
        (Failure.HOST_MEMORY, r"srun: error: .*: Out Of Memory"),
        (Failure.HOST_MEMORY, r"slurmstepd: error: .*[Ee]xceeded .*memory limit"),
        (Failure.HOST_MEMORY, r"(?:\[ *[\d.]+\] )?(?:Memory cgroup out|Out) of memory: Killed process"),
        (Failure.HOST_MEMORY, _ERROR + r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"),
        (Failure.HOST_MEMORY, _ERROR + r"DataLoader worker .* is killed by signal: (?:Killed|Bus error)"),
        (Failure.HOST_MEMORY, r"(?:[\w.]+\.)?_?(?:Array)?MemoryError(?::|$)"),
        (Failure.HOST_MEMORY, r"OSError: \[Errno 12\]"),
        (Failure.HOST_MEMORY, r"\S+ \[\d+\] (?:\S+ )?NCCL WARN .*shared memory .*No space left"),
        (Failure.DISK_FULL, _ERROR + r"(?:No space left on device|Disk quota exceeded|StorageFull)"),
        (Failure.DISK_FULL, _ERROR + r"(?:inline_container\.cc.*unexpected pos|PytorchStreamWriter failed writing)"),
        (Failure.COLLAPSE, r"collapse: "),
        (Failure.NON_FINITE, _ERROR + r"probability tensor contains either"),
        (Failure.NON_FINITE, r".*Assertion `probability tensor contains either .* failed"),
        (Failure.NON_FINITE, _ERROR + r"Current loss scale already at minimum"),
        (Failure.NON_FINITE, r"FloatingPointError: "),
        (Failure.NON_FINITE, _ERROR + r"[Ll]oss (?:is|was) (?:nan|inf|not finite)"),
        (Failure.BAD_CONFIGURATION, r"bad_input: "),
        (Failure.BAD_CONFIGURATION, r"(?:ModuleNotFound|Import)Error: "),
        (
            Failure.BAD_CONFIGURATION,
            r"OSError: .*(?:is not a valid model identifier|Incorrect path_or_model_id|gated repo)",
        ),
        (Failure.BAD_CONFIGURATION, r"[\w.]*\.(?:HFValidation|RepositoryNotFound|RevisionNotFound|GatedRepo)Error: "),
        (
            Failure.BAD_CONFIGURATION,
            r"TypeError: \w*(?:Config|Arguments|Trainer)\.__init__\(\) got an unexpected keyword",
        ),
        (Failure.BAD_CONFIGURATION, r"ValueError: .*must (?:be divisible by|divide) "),
        (Failure.BAD_CONFIGURATION, r"ValueError: .*[Gg][Pp][Uu][_ ]memory[_ ]utilization"),
        (Failure.BAD_CONFIGURATION, r"ValueError: .*(?:max seq len|max_model_len)"),
        (Failure.BAD_CONFIGURATION, r"ValueError: GRPO requires at least"),
        (Failure.NODE_FAILURE, _ERROR + r"CUDA error: (?:uncorrectable ECC|an? .*hardware|.*device.*unavailable)"),
        (Failure.NODE_FAILURE, r".*NVRM: Xid .*(?:fallen off the bus|uncorrectable|Double Bit ECC)"),
        (Failure.NODE_FAILURE, r"slurmstepd: error: .*DUE TO NODE FAILURE"),
        (Failure.NODE_FAILURE, r"srun: error: Node failure on "),
        (Failure.TIME_LIMIT, r"slurmstepd: error: .*DUE TO TIME LIMIT"),
        (Failure.PREEMPTED, r"slurmstepd: error: .*DUE TO (?:PREEMPTION|JOB REQUEUE)"),
        (
            Failure.KILLED,
            r"slurmstepd: error: \*\*\* JOB \d+ ON \S+ CANCELLED AT ",
        ),  # a step's is an echo of its tasks'
        (Failure.HANG, r"Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!$"),  # faulthandler's, see train/watchdog.py
        (Failure.KILLED, r"KeyboardInterrupt\b"),
        (Failure.KILLED, r"(?:[\w.]+\.)?SignalException: "),
        (Failure.COMMUNICATION, r"(?:[\w.]+\.)?Dist(?:Backend|Network|Store)Error: "),
        (Failure.COMMUNICATION, _ERROR + r"(?:third_party/gloo|NCCL error|Connection (?:closed|reset) by peer)"),
        (Failure.COMMUNICATION, _ERROR + r"(?:Timed out waiting \d+ms for|Application timeout caused pair closure)"),
        (Failure.COMMUNICATION, r"\[E\d+ .* ProcessGroup(?:NCCL|Gloo)\.cpp:\d+\]"),
        (Failure.COMMUNICATION, r"\S+ \[\d+\] (?:\S+ )?NCCL WARN (?:NET/|socketProgress|Net )"),
        (Failure.COMMUNICATION, r"(?:[\w.]+\.)?ConnectionError: "),
    ]
)


def read_log(lines: Iterable[str]) -> Iterator[Failure]:
    """The classes that a log's lines after its last sign of progress speak of; CRASH for an error of no known kind."""
    frame = ""
    for line in _since_progress(lines):
        if found := _FRAME.match(line):
            frame = found[1]
        elif (failure := _read_line(line, frame)) is not None:
            yield failure


def _since_progress(lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for raw in lines:
        line = _PREFIX.sub("", raw[:_LONGEST].rstrip())
        if _PROGRESS.match(line):
            kept.clear()
        else:
            kept.append(line)
    return kept


def _read_line(line: str, frame: str) -> Failure | None:
    """``frame`` is the file in which an exception on this line was raised."""
    for failure, pattern in _PATTERNS:
        if pattern.match(line):
            return failure
    if _EXCEPTION.match(line):
        return Failure.BAD_CONFIGURATION if _CONFIGURATION.search(frame) else Failure.CRASH
    return Failure.CRASH if _OTHER_CRASHES.match(line) else None
