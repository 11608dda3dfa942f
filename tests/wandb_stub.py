"""A W&B server as far as ``wandb sync`` needs one: it takes everything, and remembers each run's
rows.
"""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """What has arrived: by run id the run's own fields, and its rows under the numbers W&B gave
    them.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[int, dict[str, Any]]] = {}

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """GraphQL for the runs, file streams for their rows."""

    server: Server

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing on the terminal."""

    def do_GET(self) -> None:
        """A client asks whether the server is there."""
        self._answer({})

    def do_POST(self) -> None:
        """A query, a part of a run, or telemetry."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/graphql":
            self._answer({"data": self._query(json.loads(body))})
        elif self.path.endswith("/file_stream"):
            self._stream(self.path.split("/")[-2], json.loads(body).get("files", {}))
            self._answer({"exitcode": None, "limits": {}})
        else:
            self._answer({})

    def _query(self, query: dict[str, Any]) -> dict[str, Any]:
        said = query.get("variables", {})
        if "UpsertBucket" not in query.get("query", ""):
            return {
                "viewer": {"entity": "me"},
                "createRunFiles": {"runID": "x", "uploadHeaders": [], "files": []},
            }
        known = self.server.runs.setdefault(said["name"], {})
        known |= {name: value for name, value in said.items() if value is not None}
        count = len(self.server.rows.get(said["name"], {}))
        project = {"id": "p", "name": known.get("project"), "entity": {"id": "e", "name": "me"}}
        bucket = {
            "id": "b",
            "name": said["name"],
            "displayName": known.get("displayName"),
            "config": "{}",
            "historyLineCount": count,
            "project": project,
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": count == 0}}

    def _stream(self, run: str, files: dict[str, Any]) -> None:
        part = files.get("wandb-history.jsonl", {"offset": 0, "content": []})
        rows = self.server.rows.setdefault(run, {})
        rows |= {
            part["offset"] + index: json.loads(text) for index, text in enumerate(part["content"])
        }

    def _answer(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def wandb_server() -> Iterator[Server]:
    """A server for a while."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
