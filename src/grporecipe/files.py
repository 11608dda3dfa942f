"""Read and write files safely: writes are atomic, lines are appended in one call, content is never
trusted.

`read_text`, `parse_json` and `parse_yaml` enforce limits, so callers can walk and print what they
return.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, TypeVar

# an object of JSON or YAML that is written or changed
Json = dict[str, Any]
# values by the names of their keys, only read
Config = Mapping[str, Any]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

# of write_text, and of the heartbeat
_DRAFT = r"\.(?:[\w.-]+)\.(?:[a-z0-9_]{8}|new|stale)"


# bytes of a file that is read as a whole
LARGEST = 1 << 28
# bytes up to which a file of lines is read as a whole, which is faster
WHOLE = 1 << 24
# whose square is finite
LARGEST_NUMBER = 1e150
# to read a file that is replaced meanwhile
STALE_TRIES = 5
# levels of lists and objects; a walk of 1,000 would end in a RecursionError, and our own files have
# 8
DEEPEST = 100
# counted with aliases expanded: a few lines of nested aliases can stand for 2**40 values
MOST_YAML_VALUES = 1_000_000
# characters of an integer: Python writes no longer ones
LONGEST_NUMBER = 4000
# a JSON string, and what stands between brackets
_NO_BRACKET = r'(?s)"(?:[^"\\]++|\\.)*+"?+|[^][{}"]++'
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_SURROGATE = r"\\u[dD][89a-fA-F]"


def only(content: Mapping[_Key, _Value], keys: Container[Any]) -> dict[_Key, _Value]:
    """Return the entries of a mapping with these keys."""
    return {key: value for key, value in content.items() if key in keys}


def without(content: Mapping[_Key, _Value], keys: Container[Any]) -> dict[_Key, _Value]:
    """Return the entries of a mapping without these keys."""
    return {key: value for key, value in content.items() if key not in keys}


def absolute(path: str | Path) -> Path:
    """Return a path from the root without ``..``, so that its parents are the folders above it.
    Links are resolved only in front of ``..``, which then is the folder above their target.
    """
    whole = Path(path).absolute()
    if ".." not in whole.parts:
        return whole
    if whole.name == "..":
        return whole.resolve()
    return whole.parent.resolve() / whole.name


def open_file(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a file for reading.

    Raises FileNotFoundError if it does not exist, and ValueError for a folder, a pipe or a device.
    """
    try:
        # opening a pipe without a writer would block forever
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        # below a file, a link to itself, a socket
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            raise FileNotFoundError(*error.args) from None
        raise
    try:
        is_regular = stat.S_ISREG(os.fstat(handle).st_mode)
    except OSError:
        # replaced meanwhile, see _read
        os.close(handle)
        raise
    if not is_regular:
        os.close(handle)
        raise ValueError("it is not a regular file")
    return os.fdopen(handle, "rb", buffering)


def read_bytes(path: Path) -> bytes:
    """Return a file's content. Raises as `open_file`, and ValueError for more than LARGEST
    bytes.
    """
    return _read(path, None)


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Return the time of the last change (ns) and the size (bytes) of a file; None if there is no
    such file.
    """
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size


def read_tail(path: Path, most: int) -> bytes:
    """Return the last bytes of a file, such as a log of any size; empty if there is no such
    file.
    """
    try:
        return _read(path, most)
    except (FileNotFoundError, ValueError):
        return b""


def _read(path: Path, most: int | None) -> bytes:
    """Return the last bytes of a file, or all. On NFS one that is replaced meanwhile is stale, and
    is opened again.
    """
    for left in reversed(range(STALE_TRIES)):
        try:
            # read as a whole: half the time
            with open_file(path, buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if most is None and size > LARGEST:
                    raise ValueError(f"it has {size:,} bytes, more than {LARGEST:,}")
                if most is not None:
                    file.seek(max(size - most, 0))
                return file.read()
        except OSError as error:
            if error.errno != errno.ESTALE or not left:
                raise
    raise AssertionError("the last try returns or raises")


def set_aside(path: Path) -> Path:
    """Rename an unreadable file, or what is in its place, to an unused path; return that path."""
    target = path.with_name(f"{path.name}.damaged")
    number = 1
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}.damaged.{number}")
    path.rename(target)
    return target


def read_text(path: Path, errors: str = "strict") -> str:
    """Return a file's text. Raises as `read_bytes`, and ValueError if it is not UTF-8 (``errors``
    as in `bytes.decode`).
    """
    return read_bytes(path).decode("utf-8", errors)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text of at most DEEPEST levels. A lone surrogate becomes "?",
    because no stream accepts it.

    Raises ValueError for anything else.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    if text.count("[") + text.count("{") > DEEPEST:
        brackets = re.sub(_NO_BRACKET, "", text)
        if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    value = json.loads(text)
    if re.search(_SURROGATE, text):
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def other_delimiter(header: Sequence[str]) -> str:
    """Return what separates the columns of a table that was read as one column; empty if it has
    several, or truly one.
    """
    return next((letter for letter in ";|\t" if len(header) == 1 and letter in header[0]), "")


def parse_yaml(text: str, loader_class: Any = None) -> Any:
    """Return the value of a YAML text, of safe types, by PyYAML's safe loader or one like it.

    Raises ValueError for anything else, and for more than DEEPEST levels or MOST_YAML_VALUES
    values.
    """
    # not needed for --help
    import yaml

    loader_class = loader_class or yaml_loader()
    if is_deep_yaml(text):
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    try:
        node = yaml.compose(text, loader_class)
        if "*" in text and count_yaml_values(node, {}) > MOST_YAML_VALUES:
            raise ValueError(f"it has more than {MOST_YAML_VALUES:,} values")
        if node is None:
            return None
        return loader_class("").construct_document(node)
    except (yaml.YAMLError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())) from error


@cache
def read_own_yaml(module: str, name: str) -> Any:
    """Return the content of a YAML file of ours in a module's folder (its ``__file__``)."""
    return parse_yaml(Path(module).with_name(name).read_text(encoding="utf-8"))


def is_deep_yaml(text: str) -> bool:
    """Return whether a YAML text has more than DEEPEST levels.

    libyaml's reader recurses at each level, so a text nested 100,000 levels deep would crash the
    process.
    """
    import yaml

    indent = max(map(len, re.findall(r"^ +", text, re.MULTILINE)), default=0)
    if indent + sum(map(text.count, "[{-?")) <= DEEPEST:
        return False
    depth = 0
    try:
        for event in yaml.parse(text, yaml_loader()):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if depth > DEEPEST:
                return True
    except yaml.YAMLError:
        # the parser reports the error
        return False
    return False


def count_yaml_values(node: Any, counted: dict[int, int]) -> int:
    """Count a node and those below it, with aliases expanded; ``known`` are counts by node id.

    Raises ValueError for a number that is too long, such as one of many digits in base 60.
    """
    import yaml

    if node is None:
        return 1
    if isinstance(node, yaml.ScalarNode):
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > LONGEST_NUMBER:
            raise ValueError(f"a number of {len(node.value):,} characters")
        return 1
    if id(node) not in counted:
        # a node may contain itself
        counted[id(node)] = 1
        below = node.value
        if isinstance(node, yaml.MappingNode):
            below = chain.from_iterable(node.value)
        counted[id(node)] = 1 + sum(count_yaml_values(part, counted) for part in below)
    return counted[id(node)]


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` atomically (fsync, then rename): a reader sees the old or the
    new content.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        # with the permissions that the user's umask allows
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        if isinstance(error, OSError):
            # instead of the draft's name; a failed write names no file
            error.filename = str(path)
        draft.unlink(missing_ok=True)
        raise


def delete_folder(path: Path, within: Path) -> None:
    """Delete a folder below ``within`` as far as possible, without following links."""
    if path.parent.resolve() == within.resolve() / path.parent.relative_to(within):
        shutil.rmtree(path, ignore_errors=True)


def is_draft(name: str) -> bool:
    """Return whether this is the name of a temporary file that a killed writer leaves behind."""
    return re.fullmatch(_DRAFT, name) is not None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace ``path`` by one JSON object."""
    write_text(path, json.dumps(value, indent=1, sort_keys=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in ``path``, or None if it is missing or unreadable."""
    try:
        value = parse_json(read_bytes(path))
    except (FileNotFoundError, ValueError):
        return None
    if isinstance(value, dict):
        return value
    return None


def no_link(path: str, flags: int) -> int:
    """Open a file, as the ``opener`` of ``open``. A symbolic link, which a foreign folder may hold,
    raises OSError.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append one JSON line in a single write. A torn last line is ended first."""
    data = (json.dumps(value) + "\n").encode()
    # training appends at every step, and an unbuffered write takes half the time
    with open(path, "ab+", buffering=0, opener=no_link) as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                data = b"\n" + data
        # a full disk may take only a part: then the next write raises
        while data:
            data = data[file.write(data) :]


def read_lines(path: Path, **shape: "type | UnionType") -> Iterator[dict[str, Any]]:
    """Return the JSON lines of ``path``. A torn line (its writer was killed) is skipped; a missing
    file is empty.

    ``shape`` gives required keys and their types, such as ``step=int``. Lines without them are
    skipped.
    """
    # most lines of a long file may lack a key, and reading JSON is what takes time
    names = list(map(json.dumps, shape))

    def has_names(line: str) -> bool:
        return all(name in line for name in names)

    lines = filter(has_names, _split_lines(path))
    for value in objects(lines):
        if all(isinstance(value.get(name), kind) for name, kind in shape.items()):
            yield value


def _split_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; a large one is not held in memory as a whole. A missing file has
    none.
    """
    stamp = file_stamp(path)
    try:
        if stamp is None or not WHOLE < stamp[1] <= LARGEST:
            # splitlines() would also cut at U+2028, which JSON strings may hold
            yield from read_text(path, errors="replace").split("\n")
            return
        with open_file(path) as file:
            for line in file:
                yield line.decode("utf-8-sig", "replace")
    except (FileNotFoundError, ValueError):
        return


def objects(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among these lines; skip everything else."""
    for line in lines:
        try:
            value = parse_json(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def as_number(value: object) -> float | None:
    """Return a JSON number as a float; None for anything else, and for numbers that no float can
    hold.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def text_or(value: Any) -> str:
    """Return a JSON string; empty for any other value."""
    if isinstance(value, str):
        return value
    return ""


def whole_or_none(value: Any) -> int | None:
    """Return a JSON integer; None for any other value."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def count_or_none(value: Any) -> int | None:
    """Return a finite JSON number as an integer; None for any other value."""
    number = finite_or_none(value)
    if number is None:
        return None
    return int(number)


def finite_or_none(value: Any) -> float | None:
    """Return a JSON number whose square is finite, because statistics square it; None for any other
    value.
    """
    number = value if type(value) is float else as_number(value)
    if number is None or not abs(number) <= LARGEST_NUMBER:
        return None
    return number


def yaml_loader() -> Any:
    """Return PyYAML's safe loader: the C version if it was built, which is ten times faster."""
    # not needed for --help
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def text_sha256(text: str) -> str:
    """Return a hash that tells whether a file has changed since it was written."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str | None:
    """Return the SHA-256 of a file's content, or None if there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
