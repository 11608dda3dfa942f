"""``grposweep serve``: the report on loopback, live, read only, and only for users who know its address."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from grporecipe.errors import UserError
from grposweep.report.serve import HOST, ReportServer
from grposweep.report.view import SweepReader
from made import Made, make_sweep

from .browser import start_browser


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Four trials, one of them running."""
    return make_sweep(tmp_path / "s", Made(trials=4, running=1))


@pytest.fixture
def server(sweep: Path) -> Iterator[ReportServer]:
    """Serving, on any port."""
    with ReportServer(SweepReader(sweep)) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def get(server: ReportServer, path: str, method: str = "GET", host: str = "") -> tuple[int, str, str]:
    """Status, text, and the policy in the page's head."""
    connection = http.client.HTTPConnection(HOST, urlsplit(server.url).port or 0, timeout=60)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, text.partition("Content-Security-Policy")[2].partition(">")[0]


def test_the_page_may_ask_its_own_server_and_no_other(server: ReportServer) -> None:
    """For the stamp; a report on disk asks for nothing."""
    status, _, policy = get(server, urlsplit(server.url).path)
    assert status == 200
    assert "connect-src 'self'" in policy
    assert "default-src 'none'" in policy


def test_the_stamp_changes_when_a_trial_moves_on_and_only_then(server: ReportServer, sweep: Path) -> None:
    """A page with an old one loads itself again."""
    path = urlsplit(server.url).path + "stamp"
    before = get(server, path)[1]
    assert get(server, path)[1] == before
    beat = max(sweep.glob("trials/*/heartbeat"))  # of the running trial
    beat.write_text(json.dumps({**json.loads(beat.read_text()), "step": 77}))
    assert get(server, path)[1] != before


@pytest.mark.parametrize("path", ["/", "/stamp", "/wrong/", "/wrong/stamp", "//", "/../sweep.yaml"])
def test_without_the_token_there_is_nothing(server: ReportServer, path: str) -> None:
    """Other users of the machine can reach the port."""
    status, text, _ = get(server, path)
    assert status == 404
    assert server.token not in text


def test_a_foreign_host_name_and_writing_methods_are_refused(server: ReportServer) -> None:
    """A page elsewhere may let its own name point to loopback."""
    path = urlsplit(server.url).path
    assert get(server, path, host="evil.example:80")[0] == 404
    assert get(server, path, method="POST")[0] == 501
    assert get(server, path + "../sweep.yaml")[0] == 404


def test_a_port_that_is_taken_is_one_message(server: ReportServer, sweep: Path) -> None:
    """With the option to change."""
    port = urlsplit(server.url).port or 0
    with pytest.raises(UserError, match=f"--port {port}: it cannot be used"):
        ReportServer(SweepReader(sweep), port)


@pytest.mark.slow
def test_the_page_in_a_browser_loads_itself_again_when_a_trial_moves_on(server: ReportServer, sweep: Path) -> None:
    """And shows the trial's new step."""
    beat = max(sweep.glob("trials/*/heartbeat"))  # of the running trial
    with start_browser() as browser:
        page = browser.new_page()
        page.goto(server.url)
        assert "77" not in page.locator("#trials").inner_text()
        with page.expect_navigation(timeout=120_000):
            beat.write_text(json.dumps({**json.loads(beat.read_text()), "step": 77}))
        assert "77" in page.locator("#trials tr[data-state=running]").inner_text()
        page.close()
