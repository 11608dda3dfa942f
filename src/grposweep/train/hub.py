"""Models of the Hugging Face hub: downloaded once by the preparation, then found in the cache by
every trial.

Trials load everything from the local snapshot of one commit. So ``model.revision`` holds for TRL,
vLLM and the reference model, all trials of a sweep train the same weights, and compute nodes need
no network.
"""

import errno
import fnmatch
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Event, Thread

from grporecipe.errors import UserError
from grporecipe.files import parse_json, read_bytes
from grposweep.schema import Model

# what is made, how much of it is done, and how much there is: of a download, bytes
Progress = Callable[[str, int, int], None]

# The first pattern with a match: some repositories also hold the weights in other formats.
WEIGHTS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin")
OTHER_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py", "tokenizer*")
FOLDERS = ("additional_chat_templates",)
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
# set by `go_offline`, not by the user
WENT_OFFLINE = "GRPOSWEEP_OFFLINE"
# between two looks at a download
SECONDS = 1.0


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


def download_model(model: Model, progress: Progress) -> Path:
    """Return the complete local snapshot of a hub model, downloaded if it is not in the hub's
    cache.

    ``progress`` is called about once a second during a download. Without a connection a complete
    snapshot in the cache will do. Raises UserError if the model cannot be had.
    """
    from huggingface_hub import snapshot_download

    revision = model.revision or "main"
    try:
        sizes = _wanted_files(model)
        with _reported(model, sum(sizes.values()), progress):
            return Path(
                snapshot_download(model.path, revision=revision, allow_patterns=list(sizes))
            )
    except UserError:
        raise
    except Exception as error:
        # network errors are those of the client's HTTP library, which has changed twice
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        if (snapshot := local_snapshot(model)) is not None:
            return snapshot
        raise UserError(explain_absence(model, error)) from error


def local_snapshot(model: Model) -> Path | None:
    """Return the complete snapshot in the hub's cache that the revision meant when it was last
    downloaded, or None.
    """
    return find_snapshot(model, _cached_commit(model))


def find_snapshot(model: Model, commit: str | None) -> Path | None:
    """Return the complete snapshot of this commit in the hub's cache, or None."""
    folder = _repository(model) / "snapshots" / (commit or "")
    return folder if commit and _is_complete(folder) else None


def absence(model: Model) -> Iterator[str]:
    """Say why a model cannot be downloaded, if it is not in the hub's cache; torch is not
    imported.
    """
    if local_snapshot(model) is not None:
        return
    try:
        _wanted_files(model)
    except UserError as error:
        yield str(error)
    except Exception as error:  # noqa: BLE001 - as in `download_model`
        yield explain_absence(model, error)


def check_folder(folder: Path) -> None:
    """Raise UserError for a folder of something else than a model, or of adapters only."""
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model.path={folder} is a folder without config.json, so no model of transformers'. "
            "Set model.path to one that save_pretrained wrote, or to a hub id."
        )
    if not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir()):
        raise UserError(
            f"model.path={folder} has a config.json but no weights (*.safetensors or *.bin). Set "
            "model.path to a complete copy, or to a hub id."
        )


def go_offline() -> None:
    """Keep the hub's clients from the network in this process and its children, unless the user has
    set otherwise.
    """
    loaded = {"huggingface_hub.constants": "HF_HUB_OFFLINE", "datasets.config": "HF_HUB_OFFLINE"}
    if any(name in os.environ for name in OFFLINE):
        return
    os.environ.update(dict.fromkeys((*OFFLINE, WENT_OFFLINE), "1"))
    # in a process that was forked after its imports
    for module, name in loaded.items():
        if module in sys.modules:
            setattr(sys.modules[module], name, True)


def explain_absence(model: Model, error: Exception) -> str:
    """Return why a model could not be had, and the ways to have it."""
    # its ports and ids have digits, so the status is read from the response
    text = str(error)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if "gated" in text.lower() or status in (401, 403):
        return (
            f"model.path={model.path} is gated on the hub, and this machine may not read it. "
            "Accept its licence there and run `hf auth login` (`huggingface-cli login` in older "
            "releases; or set HF_TOKEN), or set model.path to a local folder."
        )
    reason = text.splitlines()[0] if text else type(error).__name__
    return (
        f"model.path={model.path} (revision {model.revision or 'main'}) is no folder here, not in "
        f"the hub's cache, and could not be had from the hub ({reason}). Set model.path to a local "
        "folder, or HF_HOME to a cache that holds it, or correct the id, or allow network access."
    )


def _wanted_files(model: Model) -> dict[str, int]:
    """Return the files that training needs, with their sizes in bytes. Raises UserError if none of
    them has weights.
    """
    from huggingface_hub import HfApi

    info = HfApi().model_info(model.path, revision=model.revision or "main", files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    top = [name for name in sizes if "/" not in name]
    weights: list[str] = []
    for pattern in WEIGHTS:
        weights = weights or fnmatch.filter(top, pattern)
    if not weights:
        raise UserError(
            f"model.path={model.path} (revision {model.revision or 'main'}) has no weights on the "
            "hub (*.safetensors or pytorch_model*.bin). Set model.path to a repository of "
            "transformers' format, or to a local folder."
        )
    small = chain.from_iterable(fnmatch.filter(top, pattern) for pattern in OTHER_FILES)
    nested = [name for name in sizes if name.partition("/")[0] in FOLDERS and name not in top]
    return {name: sizes[name] for name in dict.fromkeys([*small, *nested, *weights])}


@contextmanager
def _reported(model: Model, total: int, progress: Progress) -> Iterator[None]:
    """Report the bytes of a model in the cache until the context ends; a partial file counts."""
    blobs = _repository(model) / "blobs"
    ended = Event()
    before = _size(blobs)

    def report() -> None:
        while not ended.wait(SECONDS):
            progress(f"downloading {model.path}", min(_size(blobs) - before, total), total)

    thread = Thread(target=report, daemon=True, name="download progress")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _size(folder: Path) -> int:
    """Return the bytes of a folder's files; a file may vanish or be renamed meanwhile."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def _repository(model: Model) -> Path:
    """Return the model's folder in the hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{model.path.replace('/', '--')}"


def _cached_commit(model: Model) -> str | None:
    """Return the commit that the revision meant when it was last downloaded; a commit's own hash
    means itself.
    """
    revision = model.revision or "main"
    folder = _repository(model)
    try:
        return (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        return revision if (folder / "snapshots" / revision).is_dir() else None


def _is_complete(folder: Path) -> bool:
    """Return whether a snapshot has a configuration and all of its weights. Its files are links,
    which may lead nowhere.
    """
    if not (folder / "config.json").exists():
        return False
    for index in INDEXES:
        if (folder / index).exists():
            try:
                shards = parse_json(read_bytes(folder / index))["weight_map"].values()
            except (ValueError, KeyError, AttributeError):
                return False
            return all((folder / shard).exists() for shard in set(shards))
    # shards have an index
    files = chain.from_iterable(map(folder.glob, WEIGHTS))
    return any("-of-" not in path.name and path.exists() for path in files)
