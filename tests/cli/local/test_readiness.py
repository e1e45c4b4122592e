"""`perdure serve --wait-ready`: a script waits for the server that it started."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.servers.ports import free_port
from tests.support.server import Server, run, shop_server


@contextmanager
def answering(*statuses: int) -> Iterator[str]:
    """A server that answers with each of these statuses once, then with the last."""
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = left.pop(0) if len(left) > 1 else left[0]
            code = "RATE_LIMITED" if status == 429 else "NOT_READY"
            error = {"error": "not ready: store: cannot be read", "code": code}
            body = b"no such page" if status == 404 else json.dumps(error).encode()
            self.send_response(status if self.path == "/readyz" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_it_returns_as_soon_as_a_server_that_just_started_can_work(tmp_path: Path) -> None:
    with shop_server(tmp_path) as server:
        server.kill()
        server.begin()
        waited = run(tmp_path, "serve", "--wait-ready", "--port", str(server.port))
        assert (waited.returncode, waited.stdout) == (0, f"Ready: {server.url}\n"), waited.stderr
        assert server.http().get("/agents").is_success


def test_it_finds_the_server_of_the_configuration(tmp_path: Path) -> None:
    with answering(200) as url:
        port = url.rpartition(":")[2]
        (tmp_path / "perdure.yaml").write_text(f"server: {{host: 0.0.0.0, port: {port}}}\n")
        waited = run(tmp_path, "serve", "--wait-ready", "5", "--json")
    assert waited.returncode == 0, waited.stderr
    assert json.loads(waited.stdout) == {"ready": True, "url": url}


def test_it_waits_while_the_server_is_not_ready(tmp_path: Path) -> None:
    with answering(503, 429, 503, 200) as url:
        waited = run(tmp_path, "serve", "--wait-ready", "--server", url)
    assert waited.returncode == 0, waited.stderr


def test_it_exits_with_6_and_the_last_problem_when_the_time_is_over(tmp_path: Path) -> None:
    with answering(503) as url:
        waited = run(tmp_path, "serve", "--wait-ready", "0.3", "--server", url)
    assert waited.returncode == 6
    assert waited.stderr.splitlines() == [
        "error: the server is not ready after 0.3 s: not ready: store: cannot be read",
        f"hint: check that `perdure serve` runs at {url}, and see its log",
    ]


def test_without_a_server_it_exits_with_6_after_that_time(tmp_path: Path) -> None:
    port, start = str(free_port()), time.monotonic()
    waited = run(tmp_path, "serve", "--wait-ready", "0.5", "--port", port, "--json")
    assert waited.returncode == 6
    error = json.loads(waited.stdout or waited.stderr)
    assert error["code"] == "NOT_READY"
    assert f"no server answers at http://127.0.0.1:{port}" in error["error"]
    assert time.monotonic() - start > 0.5


@pytest.mark.parametrize(
    "options, code, text",
    [
        (["--port", "0"], 2, "port 0 means any free one"),
        (["--server", "ftp://there"], 2, "is not the URL of a server"),
    ],
)
def test_what_waiting_cannot_help_is_refused_at_once(
    tmp_path: Path, options: list[str], code: int, text: str
) -> None:
    refused = run(tmp_path, "serve", "--wait-ready", *options)
    assert refused.returncode == code
    assert text in refused.stderr


def test_another_program_on_that_port_is_named_at_once(tmp_path: Path) -> None:
    with answering(404) as url:
        refused = run(tmp_path, "serve", "--wait-ready", "--server", url)
    assert refused.returncode == 3
    assert "not a perdure server" in refused.stderr


@pytest.mark.parametrize("store", ["sqlite:///p.db", "files:./sessions", "memory:"])
def test_the_server_of_another_project_is_refused_at_once(tmp_path: Path, store: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    with Server(theirs, "--store", store) as server:
        options = ("--port", str(server.port), "--store", store)
        waited = run(theirs, "serve", "--wait-ready", *options)
        assert waited.returncode == 0, waited.stderr
        refused = run(ours, "serve", "--wait-ready", *options)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"error: the server at {server.url} uses another store")
        assert f"--wait-ready --server {server.url}" in refused.stderr
        named = run(ours, "serve", "--wait-ready", "--server", server.url)
        assert named.returncode == 0, named.stderr
        assert str(theirs) not in server.http().get("/readyz").text


def test_a_server_with_the_same_app_or_store_is_ours(tmp_path: Path) -> None:
    with shop_server(tmp_path) as server:
        for options in (["--app", "app:rt"], ["--store", f"sqlite:///{tmp_path}/./h.db"]):
            waited = run(tmp_path, "serve", "--wait-ready", "--port", str(server.port), *options)
            assert waited.returncode == 0, waited.stderr
        other = run(
            tmp_path, "serve", "--wait-ready", "--port", str(server.port), "--store", "memory:"
        )
        assert other.returncode == 2
