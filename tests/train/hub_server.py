"""A hub of one repository on this machine: what huggingface_hub asks for, with the headers that it
reads.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

REPOSITORY = "someone/sums"


@dataclass
class Hub:
    """The files of one repository at its newest commit, and the requested paths."""

    files: Mapping[str, bytes]
    # or datasets
    kind: str = "models"
    url: str = ""
    # a status code, instead of any answer
    refusal: int = 0
    asked: list[str] = field(default_factory=list)
    commit: str = "0123456789abcdef0123456789abcdef01234567"

    def downloads(self, name: str) -> int:
        """How often a file's content was sent."""
        return self.asked.count(f"GET {self.place}/resolve/{self.commit}/{name}")

    @property
    def place(self) -> str:
        """The repository's path."""
        return f"/{REPOSITORY}" if self.kind == "models" else f"/{self.kind}/{REPOSITORY}"

    def details(self, name: str) -> dict[str, Any]:
        """One file as the hub lists it."""
        return {
            "rfilename": name,
            "path": name,
            "type": "file",
            "size": len(self.files[name]),
            "oid": self.etag(name),
        }

    def etag(self, name: str) -> str:
        """The hash of a file's content."""
        return hashlib.sha1(self.files[name]).hexdigest()


@contextmanager
def serve(files: Mapping[str, bytes], kind: str = "models") -> Iterator[Hub]:
    """The hub, until the context ends."""
    hub = Hub(files, kind)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def files_of(folder: Path) -> dict[str, bytes]:
    """A checkpoint's files."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        listing = f"/api/{self.hub.kind}/{REPOSITORY}"
        if self.hub.refusal:
            gated = {
                "X-Error-Code": "GatedRepo",
                "X-Error-Message": "Access to this model is restricted.",
            }
            self._send(self.hub.refusal, b"{}", gated if self.hub.refusal == 403 else {}, with_body)
        elif path in (listing, f"{listing}/revision/main", f"{listing}/revision/{self.hub.commit}"):
            files = [self.hub.details(name) for name in self.hub.files]
            info = {
                "id": REPOSITORY,
                "sha": self.hub.commit,
                "private": False,
                "tags": [],
                "siblings": files,
            }
            self._send(
                200, json.dumps(info).encode(), {"Content-Type": "application/json"}, with_body
            )
        elif path.startswith(f"{listing}/tree/"):
            files = [self.hub.details(name) for name in self.hub.files]
            self._send(
                200, json.dumps(files).encode(), {"Content-Type": "application/json"}, with_body
            )
        elif (
            name := path.removeprefix(f"{self.hub.place}/resolve/").partition("/")[2]
        ) in self.hub.files:
            headers = {"ETag": f'"{self.hub.etag(name)}"', "X-Repo-Commit": self.hub.commit}
            self._send(200, self.hub.files[name], headers, with_body)
        else:
            code = "EntryNotFound" if path.startswith(self.hub.place) else "RepoNotFound"
            self._send(
                404, b"{}", {"X-Error-Code": code, "X-Error-Message": "not found"}, with_body
            )

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
