"""Write logs in the formats of all frameworks, from one list of training steps."""

import json
import math
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

Row = dict[str, float]


# rewards without a trend
FLAT = "0.3 + 0.02 * (-1) ** step"
WORDS = {"nan": math.nan, "max": max, "min": min, "sin": math.sin}


def run(steps: int = 100, seed: int = 0, **changed: str) -> list[Row]:
    """Return a healthy training under TRL's names. ``changed`` are formulas of other values, of the
    step.
    """
    draw = Random(seed)
    rows = []
    for step in range(1, steps + 1):
        row = {
            "loss": draw.gauss(0, 0.003),
            "grad_norm": draw.uniform(0.2, 0.6),
            "learning_rate": 1e-6,
            "completions/mean_length": draw.gauss(300, 10),
            "completions/clipped_ratio": 0.05,
            "reward": 0.3 + 0.4 * step / steps + draw.gauss(0, 0.05),
            "reward_std": 0.3,
            "frac_reward_zero_std": 0.3,
            "kl": 0.02 * step / steps,
            "entropy": 0.5 - 0.2 * step / steps,
        }
        for name, formula in changed.items():
            row[name] = eval(FLAT if formula == "flat" else formula, WORDS, {"step": step})
        rows.append(row)
    return rows


VERL = {
    "loss": "actor/pg_loss",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "reward": "critic/score/mean",
    "completions/mean_length": "response_length/mean",
    "completions/clipped_ratio": "response_length/clip_ratio",
    "kl": "actor/kl_loss",
    "entropy": "actor/entropy",
}


def verl(rows: list[Row]) -> list[Row]:
    """Return the rows under verl's names."""
    return [{VERL[name]: value for name, value in row.items() if name in VERL} for row in rows]


def console(rows: list[Row]) -> str:
    """Return a Slurm log of TRL: other text, progress bars with carriage returns, dicts."""
    head = (
        "slurmstepd: info\nLoading weights: 100%|##| 427/427 [00:00<00:00, 4122.23it/s]\n  "
        "Total optimization steps = 400\n"
    )
    bars = (f"\r 1%| | {i}/400 [00:05<3:20:52,  5.02s/it]{row}\n" for i, row in enumerate(rows, 1))
    return head + "".join(bars) + "{'train_runtime': 12.5, 'train_loss': 0.01}\n"


def strings(rows: list[Row]) -> str:
    """Return the console of transformers 5, which prints numbers as text, without steps."""
    return "".join(f"{ {name: f'{value:.4g}' for name, value in row.items()} }\n" for row in rows)


def state(rows: list[Row]) -> str:
    """A trainer_state.json."""
    return json.dumps(
        {"max_steps": 400, "log_history": [{**row, "step": i} for i, row in enumerate(rows, 1)]},
        indent=2,
    )


def swift(rows: list[Row]) -> str:
    """ms-swift's logging.jsonl."""
    lines = (
        {**row, "global_step/max_steps": f"{i}/400", "elapsed_time": "1m"}
        for i, row in enumerate(rows, 1)
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def verl_console(rows: list[Row]) -> str:
    """verl's console under Ray."""
    lines = (
        " - ".join([f"step:{i}", *(f"{k}:{v!r}" for k, v in row.items())])
        for i, row in enumerate(verl(rows), 1)
    )
    return "".join(f"\x1b[36m(TaskRunner pid=7, ip=10.0.0.1)\x1b[0m {line}\n" for line in lines)


def numpy_console(rows: list[Row]) -> str:
    """Return verl's console with numpy values."""
    lines = (" - ".join(f"{k}:np.float64({v!r})" for k, v in row.items()) for row in verl(rows))
    return "".join(f"step:{i} - {line}\n" for i, line in enumerate(lines, 1))


def verl_jsonl(rows: list[Row]) -> str:
    """verl's file logger."""
    return "".join(
        json.dumps({"step": i, "data": row}) + "\n" for i, row in enumerate(verl(rows), 1)
    )


def nest(row: Row) -> dict[str, Any]:
    """Nest a row by the slashes in its names."""
    nested: dict[str, Any] = {}
    for name, value in row.items():
        first, _, rest = name.partition("/")
        nested.setdefault(first, {})[rest] = value
    return nested


def easyr1_rows(rows: list[Row]) -> list[dict[str, Any]]:
    """The rows as EasyR1 names and nests them."""
    names = {"critic/score/mean": "reward/overall", "actor/entropy": "actor/entropy_loss"}
    return [nest({names.get(name, name): v for name, v in row.items()}) for row in verl(rows)]


def easyr1_jsonl(rows: list[Row]) -> str:
    """EasyR1's experiment_log.jsonl."""
    return "".join(
        json.dumps({"step": i, **row}) + "\n" for i, row in enumerate(easyr1_rows(rows), 1)
    )


def easyr1_console(rows: list[Row]) -> str:
    """Return EasyR1's console under Ray: one block of YAML per step."""
    text = []
    for i, row in enumerate(easyr1_rows(rows), 1):
        text += [f"Step {i}"]
        for first, inner in row.items():
            text += [f"{first}:", *(f"  {name}: {value!r}" for name, value in inner.items())]
    return "".join(f"(Runner pid=12) {line}\n" for line in text)


def table(rows: list[Row]) -> str:
    """A W&B history as CSV."""
    names = list(rows[0])
    head = ",".join(["_step", *(f"train/{name}" for name in names)])
    return (
        "\n".join(
            [head, *(",".join(map(repr, [i, *row.values()])) for i, row in enumerate(rows, 1))]
        )
        + "\n"
    )


SLIME = {"loss": "loss", "kl": "kl_loss", "entropy": "entropy_loss"}
SLIME_ROLLOUT = {"reward": "raw_reward", "completions/mean_length": "response_lengths"}


def slime(rows: list[Row]) -> str:
    """Return slime's console under Ray: the rollout's metrics, then those of its step."""
    text = []
    for i, row in enumerate(rows):
        rollout = {f"rollout/{theirs}": row[name] for name, theirs in SLIME_ROLLOUT.items()}
        step = {f"train/{theirs}": row[name] for name, theirs in SLIME.items()}
        text += [f"utils.py:135 - rollout {i}: {rollout}", f"model.py:900 - step {i}: {step}"]
    return "".join(f"(MegatronTrainRayActor pid=7) {line}\n" for line in text)


TEXTS: dict[str, Callable[[list[Row]], str]] = {
    "console": console,
    "strings": strings,
    "state": state,
    "swift": swift,
    "verl_console": verl_console,
    "numpy_console": numpy_console,
    "verl_jsonl": verl_jsonl,
    "easyr1_jsonl": easyr1_jsonl,
    "easyr1_console": easyr1_console,
    "table": table,
    "slime": slime,
}


def varint(value: int) -> bytes:
    """A protocol buffer's integer."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, content: bytes) -> bytes:
    """A protocol buffer's field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def events(rows: Iterable[Row]) -> bytes:
    """TensorBoard's events as transformers writes them; checksums are left at 0."""
    said = [field(3, b"brain.Event:2")]
    for step, row in enumerate(rows, 1):
        for name, value in row.items():
            scalar = (
                field(1, f"train/{name}".encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)
            )
            said.append(varint(2 << 3) + varint(step) + field(5, field(1, scalar)))
    return b"".join(struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4) for event in said)


def wandb(rows: Iterable[Row]) -> bytes:
    """An offline run of W&B as transformers logs it: LevelDB's blocks of 32 KiB, checksums left at
    0.
    """
    data = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))

    def put(record: bytes) -> None:
        first = True
        while record or first:
            room = 32768 - len(data) % 32768 - 7
            if room <= 0:
                data.extend(bytes(room + 7))
                continue
            part = record[:room]
            record = record[room:]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            data.extend(bytes(4) + struct.pack("<HB", len(part), kind) + part)
            first = False

    for step, row in enumerate(rows, 1):
        pairs = {
            **{f"train/{name}": value for name, value in row.items()},
            "train/global_step": step,
            "padding": "x" * 900,
        }
        items = (
            field(1, field(2, name.encode()) + field(16, json.dumps(value).encode()))
            for name, value in pairs.items()
        )
        put(field(2, b"".join(items)))
    return bytes(data)


def write(folder: Path, name: str, rows: list[Row]) -> Path:
    """Write a log of this format."""
    path = folder / f"{name}.log"
    path.write_text(TEXTS[name](rows))
    return path
