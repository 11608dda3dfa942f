"""Read a training log of any framework. The content shows the format. Damaged lines are skipped and
counted.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from grporecipe.diagnose import _binary
from grporecipe.diagnose._log import Log
from grporecipe.errors import UserError
from grporecipe.files import (
    Config,
    Json,
    parse_json,
    parse_yaml,
    read_json,
    read_text,
    whole_or_none,
)
from grporecipe.model.metrics import translate
from grporecipe.model.values import listed

# in the folder of a sweep's trial
METRICS, PLAN, CONFIG = "metrics.jsonl", "plan.json", "config.yaml"
MOST_BYTES = 256 << 20
MOST_LINES = 5_000_000
# characters; longer lines are skipped
LONGEST_LINE = 1 << 20
# levels of a JSON object that are flattened
MOST_NESTED = 8

Line = Json
_COLOUR = r"\x1b\[[0-9;]*[A-Za-z]"
# "(TaskRunner pid=123, ip=10.0.0.1) "
_RAY = r"^\s*\(\w[^)]{0,200}\)\s?"
_DICT = r"\{['\"][^{}]*\}"
_PAIR = r"""['"]([^'"]+)['"]\s*:\s*(?:'([^']*)'|"([^"]*)"|(?:np\.\w+\()?([-+\w.]+))"""
_PROGRESS = r"(\d{1,9})/(\d{1,9}) \[[^\]]{0,80}(?:it/s|s/it)"
_STEPS = r"Total optimization steps = ([\d,]{1,15})"
_HISTORY = r"\{[^{}]*\}"
_VERL = r"\bstep:(\d+) - "
_NUMPY = r"np\.\w+\((.*)\)"
_EASYR1 = r"Step (\d+)\s*"
_SLIME = r"\b(step|rollout|perf|eval) (\d+): (\{.*)"
# a data set's reward; "aime-truncated_ratio" and "aime-pass@1" are others
_SLIME_EVALUATION = r"eval/[^/@]+(?<!-truncated_ratio)"
# of the trainer and of the orchestrator; older releases have a colon after the name
_PRIME_RL = r"\bStep (\d+) \| (.*)"
_PRIME_RL_PAIR = r"([A-Z][\w. ]*?):?\s+([-+\d.e]+|nan|inf)(%?)[^|]*"
_YAML = r"( *)([\w@./-]+):(?: (\S+))?\s*"


class NoMetricsYet(UserError):
    """The file has no metrics: it is no log, or the training has not logged yet."""


def read_log(path: Path) -> Log:
    """Read a log file, or the log in a folder.

    Raises UserError if there is no log, if it is too large, or if it has no rewards.
    """
    file = find_log(path)
    data = _bytes(file)
    if data.startswith(_binary.WANDB):
        log = Log.build(str(file), "W&B offline run", _binary.wandb_lines(data))
    elif _binary.is_events(data):
        log = Log.build(str(file), "TensorBoard events", _binary.event_lines(data))
    else:
        log = _read_text(file, data.decode("utf-8", errors="replace"))
    if not log.rows:
        raise NoMetricsYet(f"{file}: no line has metrics of a training. Name {_READ}.")
    if not log.is_grpo:
        raise UserError(
            f"{file}: it has no reward, so it is not the log of a GRPO training. Name {_READ}."
        )
    # a trial of this project: its folder has more
    if file.name == METRICS:
        log.weights = _weights(file)
        plan = file.parent / PLAN
        log.total = (
            whole_or_none((read_json(plan) or {}).get("total_steps")) if plan.is_file() else None
        )
    return log


_READ = (
    "trainer_state.json, the output of TRL, verl, EasyR1, ms-swift, slime or prime-rl, "
    "logging.jsonl, metrics.jsonl, a W&B run or its CSV, or a file of TensorBoard events"
)
# The first pattern that matches in a folder is used; of several matches, the newest file.
_FOLDER = (
    METRICS,
    "logging.jsonl",
    "experiment_log.jsonl",
    "trainer_state.json",
    "checkpoint-*/trainer_state.json",
    "*.wandb",
    "files/*.wandb",
    "run-*/*.wandb",
    "offline-run-*/*.wandb",
    "events.out.tfevents.*",
    "runs/*/events.out.tfevents.*",
    "*/logging.jsonl",
)


def find_log(path: Path) -> Path:
    """Return the log file at a path: the file itself, or the log in a folder.

    Raises UserError if a folder has none.
    """
    if not path.is_dir():
        return path
    for pattern in _FOLDER:
        files = [file for file in path.glob(pattern) if file.is_file()]
        if files:
            return max(files, key=lambda file: file.stat().st_mtime)
    raise UserError(f"{path}: no training log in this folder. Name {_READ}.")


def _bytes(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if not file.is_file():
            raise UserError(f"{file}: it is not a file. Name {_READ}.")
        if size > MOST_BYTES:
            raise UserError(
                f"{file}: {size / 2**20:,.0f} MiB, and at most {MOST_BYTES >> 20} are read. Cut "
                "it: tail -c 200M LOG > end.log."
            )
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: it cannot be read ({error.strerror}). Name {_READ}.") from error


def _read_text(file: Path, text: str) -> Log:
    """Read a text log in the format that yields the most metrics."""
    start = text.lstrip()[:1]
    whole = _whole(text) if start in ("{", "[") else None
    if whole is not None:
        return _from_json(file, whole)
    # an incomplete checkpoint: its writer was killed
    if start == "{" and '"log_history"' in text:
        rest = text.partition('"log_history"')[2]
        histories = (_whole(match[0]) for match in re.finditer(_HISTORY, rest))
        log = Log.build(str(file), "trainer_state.json", filter(None, histories))
        log.skipped = 1
        return log
    if text.count("\n") + text.count("\r") > MOST_LINES:
        raise UserError(
            f"{file}: more than {MOST_LINES:,} lines. Cut it: tail -n {MOST_LINES // 2} LOG > "
            "end.log."
        )
    lines = [line for line in text.replace("\r", "\n").split("\n") if 0 < len(line) <= LONGEST_LINE]
    logs = [Log.build(str(file), name, read(lines)) for name, read in TEXT_FORMATS.items()]
    best = max(
        logs, key=lambda log: (log.is_grpo, not log.counted, sum(map(len, log.rows.values())))
    )
    if best.rows and best.format == "JSON lines":
        best.skipped = sum(line.startswith("{") and _whole(line) is None for line in lines)
    best.total = best.total or next((log.total for log in logs if log.total), None)
    return best


def _whole(text: str) -> Any:
    """Return a text's JSON value, or None if it is not exactly one value (such as JSON lines)."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def _from_json(file: Path, value: Any) -> Log:
    """Read trainer_state.json, a list of logged lines, or a single line."""
    if isinstance(value, dict) and isinstance(value.get("log_history"), list):
        total = value.get("max_steps")
        lines = [line for line in value["log_history"] if isinstance(line, dict)]
        planned = total if isinstance(total, int) and total > 0 else None
        return Log.build(str(file), "trainer_state.json", lines, planned)
    return Log.build(
        str(file), "JSON", [flatten(line) for line in listed(value) if isinstance(line, dict)]
    )


def flatten(line: Config, prefix: str = "", depth: int = MOST_NESTED) -> Line:
    """Flatten nested objects with keys joined by "/" (EasyR1 nests its metrics; verl puts them into
    "data").
    """
    flat: Line = {}
    for key, value in line.items():
        name = key if not prefix else f"{prefix}/{key}"
        if not isinstance(value, dict):
            flat[name] = value
        elif depth:
            inner = "" if key == "data" and not prefix else name
            flat |= flatten(value, inner, depth - 1)
    return flat


def _json_lines(lines: Iterable[str]) -> Iterator[Line]:
    for line in lines:
        if not (line.lstrip().startswith("{") and line.rstrip().endswith("}")):
            continue
        value = _whole(line)
        if isinstance(value, dict):
            yield flatten(value)


def _dicts(lines: Iterable[str]) -> Iterator[Line]:
    """Read the console of transformers: one dict per logged step, after a progress bar with the
    step.

    Progress bars go to another stream and may be late. The dicts of a finished training are then
    spread evenly over its steps.
    """
    entries: list[tuple[Line, int | None]] = []
    step = total = planned = None
    finished = False
    for line in lines:
        length = re.search(_STEPS, line) if "Total optimization" in line else None
        if length:
            planned = int(length[1].replace(",", "") or 0)
        at = 0
        dicts = re.finditer(_DICT, line) if "{" in line else ()
        for match in dicts:
            step, total = _progress(line[at : match.start()], step, total, planned)
            at = match.end()
            pairs = {p[0]: p[1] or p[2] or p[3] for p in re.findall(_PAIR, match[0])}
            finished |= "train_runtime" in pairs
            if translate(pairs):
                entries.append((pairs, step))
        step, total = _progress(line[at:], step, total, planned)
    whole = planned if finished else None
    yield from _numbered(entries, total, whole)


def _numbered(
    entries: list[tuple[Line, int | None]], total: int | None, whole: int | None
) -> Iterator[Line]:
    """Number the dicts: by the progress bars if these give each its own step, else evenly over a
    finished training.
    """
    steps = [step for pairs, step in entries if "reward" in translate(pairs)]
    numbered = [step for step in steps if step is not None]
    if total and len(numbered) == len(steps) and numbered == sorted(set(numbered)):
        yield from (
            {"global_step/max_steps": f"{step}/{total}", **pairs} for pairs, step in entries
        )
    elif whole and steps and whole % len(steps) == 0:
        done = 0
        for pairs, _ in entries:
            done += "reward" in translate(pairs)
            yield {"global_step/max_steps": f"{done * whole // len(steps)}/{whole}", **pairs}
    else:
        yield from (pairs for pairs, _ in entries)


def _progress(
    text: str, step: int | None, total: int | None, planned: int | None
) -> tuple[int | None, int | None]:
    """Return the last step and the length of the training's progress bar in a text.

    The bar is the one of the planned length. If none is planned, it is the longest one.
    """
    if "it/s" not in text and "s/it" not in text:
        return step, total
    for done, of in re.findall(_PROGRESS, text):
        if int(of) == (planned or max(total or 0, int(of))):
            step = int(done)
            total = int(of)
    return step, total


def _verl(lines: Iterable[str]) -> Iterator[Line]:
    """Read verl's console: ``step:12 - actor/pg_loss:0.01 - ...``."""
    for line in lines:
        if "step:" not in line:
            continue
        plain = re.sub(_COLOUR, "", line)
        if start := re.search(_VERL, plain):
            pairs = (part.strip().rpartition(":") for part in plain[start.end() :].split(" - "))
            yield {
                "step": int(start[1]),
                **{name: re.sub(_NUMPY, r"\1", value) for name, _, value in pairs},
            }


def _slime(lines: Iterable[str]) -> Iterator[Line]:
    """Read slime's console: ``step 12: {...}`` of the trainer, from 0 on, and before it the
    rollout's ``perf 3: {...}``.

    Source: slime/backends/megatron_utils/model.py and slime/observability of 0.3.1.
    """
    step = 0
    for line in lines:
        if match := re.search(_SLIME, line):
            pairs = {name: a or b or c for name, a, b, c in re.findall(_PAIR, match[3])}
            if match[1] == "step":
                step = int(match[2]) + 1
                yield {"step": step, **pairs}
            else:
                held_out = {
                    f"val-core/{name}/mean@1": value
                    for name, value in pairs.items()
                    if re.fullmatch(_SLIME_EVALUATION, name)
                }
                yield {"step": step + (match[1] != "eval"), **(held_out or pairs)}


def _prime_rl(lines: Iterable[str]) -> Iterator[Line]:
    """Read the console of prime-rl's trainer and orchestrator: ``Step 12 | 3s | Reward 0.5 | ...``.

    Source: src/prime_rl/trainer/rl/train.py and orchestrator/orchestrator.py, November 2025 to
    August 2026.
    """
    for line in lines:
        if "Step " not in line:
            continue
        if match := re.search(_PRIME_RL, re.sub(_COLOUR, "", line)):
            named: Line = {"step": int(match[1])}
            for part in match[2].split("|"):
                if pair := re.fullmatch(_PRIME_RL_PAIR, part.strip()):
                    named[pair[1]] = f"{pair[2]}e-2" if pair[3] else pair[2]
            yield named


def _easyr1(lines: Iterable[str]) -> Iterator[Line]:
    """Read EasyR1's console: ``Step 12``, then its metrics as nested YAML."""
    block: Line | None = None
    stack: list[tuple[int, str]] = []
    for line in lines:
        if block is None and "Step " not in line:
            continue
        plain = re.sub(_RAY, "", re.sub(_COLOUR, "", line))
        if start := re.fullmatch(_EASYR1, plain):
            if block:
                yield block
            block = {"step": int(start[1])}
            stack = []
            continue
        pair = re.fullmatch(_YAML, plain)
        if block is not None and pair:
            indent = len(pair[1])
            stack = [entry for entry in stack if entry[0] < indent]
            name = "/".join([*(key for _, key in stack), pair[2]])
            if pair[3] is not None:
                block[name] = pair[3]
            elif len(stack) < MOST_NESTED:
                stack.append((indent, pair[2]))
    if block:
        yield block


def _table(lines: Iterable[str]) -> Iterator[Line]:
    """Read a W&B history as CSV. A chart's export has columns "RUN - METRIC", and bounds, which are
    left out.
    """
    for row in _rows(lines):
        named = {name.split(" - ", 1)[-1]: value for name, value in row.items()}
        if not translate(dict.fromkeys(named, "0")):
            return
        yield {n: v for n, v in named.items() if v and not n.endswith(("__MIN", "__MAX"))}


def _rows(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    rows = csv.reader(line.replace("\0", "") for line in lines if line)
    try:
        names = next(rows, [])
        yield from (dict(zip(names, row, strict=False)) for row in rows)
    except csv.Error:
        return


def own_lines(file: Path, data: bytes) -> Iterator[Line]:
    """Yield the lines of a log under their own names: a W&B run, TensorBoard events, CSV by the
    file's name, or JSON lines.

    An incomplete last line is left out.
    """
    if data.startswith(_binary.WANDB):
        yield from _binary.wandb_lines(data)
    elif _binary.is_events(data):
        yield from _binary.event_lines(data)
    else:
        lines = data[: data.rfind(b"\n") + 1].decode("utf-8", errors="replace").splitlines()
        read = _rows if file.suffix == ".csv" else _json_lines
        yield from read(lines)


# The function that reads a file's metrics, by the name of its format.
TEXT_FORMATS: dict[str, Callable[[Iterable[str]], Iterator[Line]]] = {
    "JSON lines": _json_lines,
    "console of transformers": _dicts,
    "console of verl": _verl,
    "console of slime": _slime,
    "console of prime-rl": _prime_rl,
    "console of EasyR1": _easyr1,
    "CSV": _table,
}


def _weights(file: Path) -> str | None:
    """Return the type of the trained weights if the log belongs to a trial of this project."""
    config = file.parent / CONFIG
    if not config.is_file() or config.stat().st_size > 1 << 20:
        return None
    try:
        value = parse_yaml(read_text(config))
        dtype = value["model"]["dtype"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if isinstance(dtype, str) and dtype != "auto":
        return dtype
    return None
