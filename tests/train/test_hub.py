"""Models of the hub, by its own client against a hub on this machine: downloaded once, found
offline, refused in one message.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

from grporecipe.errors import UserError
from grposweep.schema import Model
from grposweep.train import hub

from .hub_server import REPOSITORY, Hub, serve

MODEL = Model(path=REPOSITORY)
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 3000,
    "README.md": b"# sums",
    "pytorch_model.bin": b"b" * 5000,
    "onnx/model.onnx": b"o" * 5000,
    "consolidated.safetensors": b"c" * 5000,
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with these files, and an empty cache."""
    constants = huggingface_hub.constants
    with serve(dict(FILES)) as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            found.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name in hub.OFFLINE:
            monkeypatch.delenv(name, raising=False)
        yield found
    # the next hub may get this one's port, and a kept connection is to this one
    huggingface_hub.close_session()


def silent(_what: str, _done: int, _total: int) -> None:
    """Report nothing."""


def test_a_model_is_downloaded_once_with_its_weights_in_one_format(server: Hub) -> None:
    """The second time nothing is sent again; formats that training does not read are left out."""
    folder = hub.download_model(MODEL, silent)
    assert hub.download_model(MODEL, silent) == folder
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    }
    assert folder.name == server.commit
    assert server.downloads("model.safetensors") == 1


def test_a_repository_without_safetensors_gives_its_pytorch_weights(server: Hub) -> None:
    """Older models have nothing else."""
    server.files = {name: FILES[name] for name in ("config.json", "pytorch_model.bin")}
    assert (hub.download_model(MODEL, silent) / "pytorch_model.bin").read_bytes() == FILES[
        "pytorch_model.bin"
    ]


def test_a_repository_without_weights_is_one_message(server: Hub) -> None:
    """Not a failure of each trial."""
    server.files = {"config.json": b"{}", "adapter.gguf": b""}
    with pytest.raises(UserError, match=r"someone/sums \(revision main\) has no weights"):
        hub.download_model(MODEL, silent)


def test_the_bytes_of_a_download_are_reported(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least once while it continues, so that it is not taken for a hang."""
    monkeypatch.setattr(hub, "SECONDS", 0.001)
    told: list[tuple[str, int, int]] = []
    hub.download_model(MODEL, lambda *report: told.append(report))
    whats, done, totals = zip(*told, strict=True)
    assert set(whats) == {f"downloading {REPOSITORY}"}
    assert set(totals) == {
        sum(len(FILES[name]) for name in ("config.json", "tokenizer.json", "model.safetensors"))
    }
    assert list(done) == sorted(done)


def test_a_gated_model_says_how_to_get_in(server: Hub) -> None:
    """The commonest failure with hub models after a misspelt id."""
    server.refusal = 403
    with pytest.raises(UserError, match="hf auth login"):
        hub.download_model(MODEL, silent)


@pytest.mark.parametrize("status", [0, 500])
def test_a_hub_that_cannot_be_reached_is_one_message(
    server: Hub, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """With what to set instead."""
    server.refusal = status
    if not status:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="HF_HOME to a cache that holds it") as refused:
        hub.download_model(MODEL, silent)
    assert "\n" not in str(refused.value)


def test_digits_of_an_address_are_no_status() -> None:
    """A port or the id of a request may hold 403."""
    error = ConnectionError("cannot connect to http://127.0.0.1:40313")
    assert "gated" not in hub.explain_absence(MODEL, error)


def test_a_complete_copy_will_do_without_a_connection(server: Hub) -> None:
    """By the branch's name as well as by the commit."""
    folder = hub.download_model(MODEL, silent)
    server.refusal = 500
    assert hub.download_model(MODEL, silent) == folder
    assert hub.find_snapshot(MODEL, server.commit) == folder


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_an_incomplete_copy_is_not_taken(server: Hub, lost: str) -> None:
    """An earlier program may have fetched the configuration alone."""
    folder = hub.download_model(MODEL, silent)
    (folder / lost).unlink()
    assert hub.find_snapshot(MODEL, server.commit) is None


def test_every_shard_of_an_index_must_be_there(server: Hub) -> None:
    """A link to a file that is gone does not count."""
    shards = {f"model-0000{n}-of-00002.safetensors": b"w" for n in (1, 2)}
    index = {
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
    }
    server.files = {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        **shards,
    }
    folder = hub.download_model(MODEL, silent)
    assert hub.find_snapshot(MODEL, server.commit) == folder
    (folder / "model-00002-of-00002.safetensors").resolve().unlink()
    assert hub.find_snapshot(MODEL, server.commit) is None


def test_a_process_that_goes_offline_takes_its_children_along(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the client was imported before; what the user has set stays."""
    hub.go_offline()
    assert [os.environ.pop(name) for name in hub.OFFLINE] == ["1", "1"]
    assert sys.modules["huggingface_hub.constants"].HF_HUB_OFFLINE is True
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub.go_offline()
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert server.asked == []
