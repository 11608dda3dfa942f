"""Read W&B's offline runs and TensorBoard's event files without either package.

Both are files of framed protocol buffers. Only the few fields that hold metrics are read. Reading
stops at the first record that is damaged or incomplete.
"""

import struct
from collections.abc import Iterator
from typing import Any

from grporecipe.files import Json, parse_json

WANDB = b":W&B"
# of LevelDB's log format, which W&B uses
_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4
# bytes
_MOST_RECORD = 1 << 26


def is_events(data: bytes) -> bool:
    """Return whether a file is a TensorBoard event file. Its first record names the format's
    version.
    """
    return b"brain.Event:" in data[:64]


def wandb_lines(data: bytes) -> Iterator[Json]:
    """Yield the history of a W&B run, one line per call of ``wandb.log`` (wandb_internal.proto,
    Record.history).
    """
    for record in _leveldb(data):
        for number, content in _fields(record):
            if number == 2 and isinstance(content, bytes):
                yield dict(
                    _item(item)
                    for field, item in _fields(content)
                    if field == 1 and isinstance(item, bytes)
                )


def _item(data: bytes) -> tuple[str, Any]:
    """Return the key and the value of a history item."""
    keys = []
    value = None
    for number, content in _fields(data):
        # the key, or the parts of a nested key
        if number in (1, 2) and isinstance(content, bytes):
            keys.append(content.decode(errors="replace"))
        elif number == 16 and isinstance(content, bytes):
            try:
                value = parse_json(content)
            except ValueError:
                value = None
    return "/".join(filter(None, keys)), value


def event_lines(data: bytes) -> Iterator[Json]:
    """Yield the scalars of a TensorBoard event file, one line per value (event.proto,
    summary.proto; TFRecord frames).
    """
    position = 0
    while position + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        if length > _MOST_RECORD or position + 16 + length > len(data):
            return
        event = data[position + 12 : position + 12 + length]
        position += 16 + length
        step = 0
        summary = b""
        for number, content in _fields(event):
            if number == 2 and isinstance(content, int):
                step = content
            elif number == 5 and isinstance(content, bytes):
                summary = content
        for number, content in _fields(summary):
            if number != 1 or not isinstance(content, bytes):
                continue
            if scalar := _scalar(content):
                yield {"step": step, scalar[0]: scalar[1]}


def _scalar(data: bytes) -> tuple[str, float] | None:
    """Return the tag and the value of a summary (a float, or a tensor with one float), or None."""
    tag = ""
    value = None
    for number, content in _fields(data):
        if number == 1 and isinstance(content, bytes):
            tag = content.decode(errors="replace")
        elif number == 2 and isinstance(content, float):
            value = content
        elif number == 8 and isinstance(content, bytes):
            value = next((v for n, v in _fields(content) if n == 5 and isinstance(v, float)), None)
            packed = next(
                (v for n, v in _fields(content) if n in (4, 5) and isinstance(v, bytes)), b""
            )
            value = struct.unpack("<f", packed)[0] if value is None and len(packed) == 4 else value
    if value is not None:
        return (tag, value)
    return None


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield the number and the value of each field of a protocol buffer. Stop at the first invalid
    byte.
    """
    position = 0
    try:
        while position < len(data):
            key, position = _varint(data, position)
            kind = key & 7
            if kind == 0:
                value, position = _varint(data, position)
                yield key >> 3, value
            elif kind == 2:
                length, position = _varint(data, position)
                yield key >> 3, data[position : position + length]
                position += length
            elif kind in (1, 5):
                form, size = ("<d", 8) if kind == 1 else ("<f", 4)
                yield key >> 3, struct.unpack_from(form, data, position)[0]
                position += size
            else:
                return
    except (IndexError, struct.error):
        return


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length integer and the position after it. Raises IndexError at the end of
    the data.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError


def _leveldb(data: bytes) -> Iterator[bytes]:
    """Yield the records of LevelDB's log format. A record may be split over several blocks of 32
    KiB.
    """
    parts: list[bytes] = []
    # after W&B's own header, which is part of the first block
    position = 7
    while position + _HEADER <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        content = data[position + _HEADER : position + _HEADER + length]
        if len(content) < length:
            return
        position += _HEADER + length
        # padding of a block
        if kind == 0:
            position += _BLOCK - position % _BLOCK
            continue
        if kind in (_FULL, _FIRST):
            parts.clear()
        parts.append(content)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts.clear()
