"""PostgreSQL goes away and comes back: workers and servers wait, and no event is missed."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.servers.fixtures import StartPostgres
from tests.servers.postgres import PostgresServer
from tests.support.server import CLI, Server, around
from tests.support.server_project import OPS, make_project

STREAM = {"Accept": "text/event-stream"}


def until(condition: Callable[[], Any], text: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline, text()
        time.sleep(0.05)


class Follower:
    """Reader of `/events` in a thread: the ids of the events that it received, in order."""

    def __init__(self, server: Server, last: str = "0") -> None:
        self.ids: list[str] = []
        self._server = server
        self._last = last
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        headers = {**STREAM, "Last-Event-ID": self._last}
        client = self._server.http(OPS)
        with suppress(httpx2.HTTPError), client.stream("GET", "/events", headers=headers) as stream:
            last = ""
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    last = value
                elif name == "data":
                    self.ids.append(last)


def send(server: Server, session: str) -> None:
    body = {"sessionID": session, "agent": "shop", "message": "Go"}
    response = server.http(OPS).post("/sessions", json=body)
    assert response.is_success, response.text


def is_at_rest(server: Server, session: str) -> bool:
    state = server.http(OPS).get(f"/sessions/{session}").json()["state"]
    return state not in ("pending", "running")


def positions(server: Server) -> list[str]:
    events, after = [], 0
    while page := server.http(OPS).get(f"/events?after={after}").json()["events"]:
        events += [str(event["pos"]) for event in page]
        after = page[-1]["pos"]
    return events


def test_streams_wait_for_the_database_or_are_refused_and_miss_nothing(
    tmp_path: Path, start_postgres: StartPostgres
) -> None:
    """E20, D11"""
    postgres = start_postgres()
    make_project(tmp_path, postgres.new_database())
    with Server(tmp_path) as server:
        follower = Follower(server)
        send(server, "before")
        until(lambda: len(follower.ids) > 4)
        postgres.stop()
        client = server.http(OPS)
        for path in ("/events", "/events?after=0", "/async-tool/events", "/sessions/before/events"):
            response = client.get(path, headers={**STREAM, "Last-Event-ID": "1"})
            assert (response.status_code, response.json()["code"]) == (503, "STORE_UNAVAILABLE")
        assert client.get("/events", headers=STREAM).status_code == 503
        until(lambda: "the feed cannot be read" in server.log(), server.log)
        until(lambda: "a reader of events waits for the store" in server.log(), server.log)
        postgres.start()
        until(lambda: client.get("/readyz").is_success)
        send(server, "after")
        until(lambda: is_at_rest(server, "after"))
        until(lambda: positions(server)[-1] == follower.ids[-1], lambda: str(follower.ids))
        recorded = positions(server)
        assert follower.ids == recorded
        returned = Follower(server, recorded[3])
        until(lambda: len(returned.ids) >= len(recorded) - 4)
        assert returned.ids == recorded[4:]
        assert server.stop() == 0
        assert "Traceback" not in server.log(), server.log()


@contextmanager
def starting(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a command; yields the process and its log."""
    file = folder / f"{words[0]}.log"
    with file.open("wb") as log:
        process = subprocess.Popen(
            [*CLI, *words], cwd=folder, env=around(), stdout=subprocess.DEVNULL, stderr=log
        )
    try:
        yield process, file
    finally:
        process.kill()
        process.wait()


def has_worker(postgres: PostgresServer, url: str) -> bool:
    database = url.rpartition("/")[2]
    if postgres.psql("SELECT to_regclass('perdure.holder')", database) == "":
        return False
    return postgres.psql("SELECT count(*) FROM perdure.holder", database) != "0"


@pytest.mark.parametrize("words", [("worker",), ("serve", "--port", "0")], ids=["worker", "serve"])
def test_a_process_that_starts_without_its_database_tries_again_until_it_is_there(
    tmp_path: Path, start_postgres: StartPostgres, words: tuple[str, ...]
) -> None:
    """Its hint says so. Later outages are waited for too, and a signal stops it."""
    postgres = start_postgres()
    url = postgres.new_database()
    make_project(tmp_path, url)
    postgres.stop()
    with starting(tmp_path, *words) as (process, file):
        until(lambda: file.read_text().count("warning") >= 2, file.read_text)
        first = file.read_text().splitlines()[0]
        assert "cannot be reached" in first
        assert "next attempt in 1 s" in first
        postgres.start()
        until(lambda: has_worker(postgres, url), file.read_text)
        postgres.stop()
        until(lambda: "the store is not available" in file.read_text(), file.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert "Traceback" not in file.read_text(), file.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_waits_for_its_database_is_stopped_by_a_signal_at_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    make_project(tmp_path, "postgresql://perdure@127.0.0.1:1/none")
    with starting(tmp_path, "worker") as (process, file):
        until(lambda: "next attempt in 2 s" in file.read_text(), file.read_text)
        process.send_signal(number)
        process.wait(60)
        text = file.read_text()
        assert "next attempt in 4 s" not in text  # it did not wait for the next attempt
        assert "Traceback" not in text, text
