"""Serve the report of a sweep on this machine, updated while the sweep runs. Read only."""

import hashlib
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from grporecipe.errors import UserError
from grposweep.report.html_page import render_report
from grposweep.report.view import SweepReader, SweepView

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")  # another Host header comes from a foreign page whose name was made to point here
HEADERS = {
    "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}  # fmt: skip


class ReportServer(ThreadingHTTPServer):
    """Serves one sweep's report under a path that holds a secret token, so that other users of the machine cannot read it.

    ``/TOKEN/`` is the page; ``/TOKEN/stamp`` changes when the page would. Raises UserError if the port is taken.
    """

    daemon_threads = True

    def __init__(self, reader: SweepReader, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UserError(
                f"--port {port}: it cannot be used ({error.strerror}). Name another, or leave it out."
            ) from error
        self.token = secrets.token_urlsafe(16)
        self._reader, self._lock = reader, threading.Lock()

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def answer(self, path: str) -> tuple[str, str] | None:
        """Return a path's content type and text; None for any other path."""
        _, token, *rest = path.split("/")
        if not secrets.compare_digest(token.encode(), self.token.encode()) or rest not in ([""], ["stamp"]):
            return None
        with self._lock:  # the reader keeps what it has read
            view = self._reader.read()
        stamp = _stamp(view)
        return ("text/plain", stamp) if rest == ["stamp"] else ("text/html", render_report(view, stamp))


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:  # the name that http.server calls
        host = self.headers.get("Host", "").rpartition(":")[0]
        try:
            answer = self.server.answer(urlsplit(self.path).path) if host in HOSTS else None
        except UserError as error:  # the folder is gone
            return self._send(HTTPStatus.GONE, "text/plain", str(error))
        if answer is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", "Open the address that grposweep serve printed.")
        return self._send(HTTPStatus.OK, *answer)

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        headers = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: a browser asks every few seconds."""


def _stamp(view: SweepView) -> str:
    """Return a digest of what the page shows: states, steps and values of all trials, and whether a controller runs."""
    trials = [(trial.number, trial.state, trial.step, trial.objective) for trial in view.trials]
    return hashlib.sha256(repr((trials, view.progress_text)).encode()).hexdigest()[:16]
