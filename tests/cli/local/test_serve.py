"""`perdure serve` as a process: where it listens, how it stops, and that it survives."""

import json
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.server import Server, run, shop_server

YAML = """
session_stores: {main: {backend: sql, sql: {driver: sqlite, database: ./h.db}}}
agents: {}
server:
  port: 1
  rate_limit: {per_source: 5/s}
  max_body: 1kB
  tokens:
    - {name: ops, token: "${OPS_TOKEN}", role: admin}
    - {name: see, token: see-token}
"""


def waiting(client: httpx2.Client) -> dict[str, str]:
    """The ids of what waits, by kind, once there is something."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = client.get("/pending").json()["pending"]
        if len(found) == 3:
            return {one["kind"]: one["id"] for one in found}
    raise AssertionError("nothing waits")


def parked(folder: Path) -> None:
    """A session of the shop that waits for everything at once."""
    done = run(folder, "run", "shop", "Go", "-s", "s", "--app", "app:rt")
    assert done.returncode == 8, done.stderr


def completed(client: httpx2.Client, call: str) -> Any:
    return client.post("/async-tool/result", json={"pendingID": call, "result": {"output": "ok"}})


def test_it_says_in_one_line_where_it_listens_and_what_protects_it(tmp_path: Path) -> None:
    with shop_server(tmp_path) as server:
        assert server.said == (
            f"Listening on {server.url}; no token needed, reachable from this machine only; "
            "a worker runs here\n"
        )
        assert server.http().get("/agents").is_success
        assert server.http(headers={"Host": "evil.example"}).get("/agents").status_code == 403
    with shop_server(tmp_path, "--no-worker", "--json", PERDURE_TOKEN="sesame") as server:  # noqa: S106
        told = json.loads(server.said)
        assert told["principals"] == [{"name": "admin", "role": "admin", "tenant": None}]
        assert (told["url"], told["worker"]) == (server.url, False)
        assert server.http().get("/agents").status_code == 401
        assert server.http("sesame").get("/agents").is_success
        assert "sesame" not in server.said + server.log()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104
def test_without_a_token_it_serves_this_machine_only(tmp_path: Path, host: str) -> None:
    """S0.61 G11"""
    done = run(tmp_path, "serve", "--host", host, "--store", "sqlite:///h.db")
    assert done.returncode == 2
    assert "PERDURE_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = run(tmp_path, "serve", "--port", port, "--store", "sqlite:///h.db")
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_it_is_configured_by_yaml(tmp_path: Path) -> None:
    (tmp_path / "perdure.yaml").write_text(YAML)
    server = Server(tmp_path, "--config", "perdure.yaml", OPS_TOKEN="ops-token")  # noqa: S106
    with server:
        assert "tokens: ops (admin), see (viewer)" in server.said
        assert "ops-token" not in server.said
        ops = server.http("ops-token")
        assert ops.post("/async-tool/result", content=b"x" * 1001).status_code == 413
        statuses = {ops.get("/pending").status_code for _ in range(20)}
        assert statuses == {200, 429}


def test_an_acknowledged_result_survives_sigkill_and_the_session_goes_on(tmp_path: Path) -> None:
    """S0.34 S0.69 G1 ⚡"""
    server = shop_server(tmp_path)
    with server:
        parked(tmp_path)
        client = server.http()
        calls = waiting(client)
        assert completed(client, calls["tool"]).is_success
        assert client.post(f"/pending/{calls['question']}/respond", json={"output": "x"}).is_success
        server.kill()
        server.start()
        assert completed(client, calls["tool"]).json()["duplicate"] is True
        body = {"by": "ana", "wait": True}
        answer = client.post(f"/pending/{calls['approval']}/approve", json=body)
        assert (answer.status_code, answer.json()["decision"]["by"]) == (200, "ana")
        assert answer.json()["session"]["output"] == "All done."
        results = [event["toolCallId"] for event in _events(tmp_path, "tool_result")]
        assert len(results) == len(set(results)) == 3


def _events(folder: Path, type_: str) -> list[Any]:
    done = run(folder, "sessions", "events", "s", "--json", "--app", "app:rt")
    return [one["data"] for one in json.loads(done.stdout)["events"] if one["type"] == type_]


def test_sigterm_ends_it_answers_who_waits_and_gives_the_leases_back(tmp_path: Path) -> None:
    with shop_server(tmp_path, "--no-worker") as server:
        parked(tmp_path)
        client, answers = server.http(), list[httpx2.Response]()
        calls = waiting(client)
        completed(client, calls["tool"])
        client.post(f"/pending/{calls['question']}/respond", json={"output": "x"})

        def ask() -> None:  # nobody drives, so this would wait for a minute
            path = f"/pending/{calls['approval']}/deny"
            answers.append(server.http().post(path, json={"wait": True}))

        asking = threading.Thread(target=ask)
        asking.start()
        while client.get("/pending").json()["count"]:
            pass
        assert server.stop() == 0
        asking.join()
        assert (answers[0].status_code, answers[0].json()["status"]) == (202, "completed")
        assert "SIGTERM" in server.log()
        assert "Traceback" not in server.log()
    with shop_server(tmp_path) as server:
        while server.http().get("/pending?status=all").json()["count"] != 3:
            pass
        assert server.stop() == 0
    stats = run(tmp_path, "db", "stats", "--json", "--store", "sqlite:///h.db")
    assert json.loads(stats.stdout)["workers"] == 0


def test_sigterm_closes_streams(tmp_path: Path) -> None:
    """Nobody who reads a stream keeps the server from ending, or is left hanging."""
    with shop_server(tmp_path) as server:
        headers = {"Accept": "text/event-stream"}
        with server.http().stream("GET", "/events?after=0", headers=headers) as stream:
            assert stream.is_success
            assert server.stop() == 0
            assert "event:" not in "".join(stream.iter_text())
        assert "Traceback" not in server.log()


def test_sigterm_does_not_wait_for_a_reader_that_takes_nothing(tmp_path: Path) -> None:
    with shop_server(tmp_path, "--no-worker") as server:
        body = {"agent": "shop", "sessionID": "big", "message": "x" * 9_000_000}
        assert server.http().post("/sessions", json=body).is_success
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", server.port))
            head = "GET /sessions/big/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            stalled.sendall(f"{head}Accept: text/event-stream\r\n\r\n".encode())
            assert stalled.recv(12) == b"HTTP/1.1 200"
            while b"xxxx" not in stalled.recv(4096, socket.MSG_PEEK):
                stalled.recv(256)
            assert server.stop() == 0
        assert "graceful shutdown exceeded" not in server.log()
        assert "Traceback" not in server.log()


def test_no_secret_is_in_what_the_server_says_or_keeps(tmp_path: Path) -> None:
    """SX.7 G11"""
    secrets = {"OPS_TOKEN": "ops-0451-token", "PERDURE_WEBHOOK_SECRET": "hook-0451-secret"}
    (tmp_path / "perdure.yaml").write_text(YAML.replace("5/s", "500/s"))
    with Server(tmp_path, "--config", "perdure.yaml", "-v", **secrets) as server:
        for token in ("ops-0451-token", "wrong-0451-token", "see-token"):
            client = server.http(token)
            said = [client.get(path) for path in ("/", "/agents", "/pending/p_1", "/metrics")]
            said.append(client.post("/async-tool/webhook", content=b"{}"))
            assert not [one.text for one in said if "0451" in one.text]
        assert server.stop() == 0
        assert "0451" not in server.said + server.log()
    kept = b"".join(one.read_bytes() for one in tmp_path.glob("h.db*"))
    assert b"0451" not in kept


def test_ctrl_c_is_130(tmp_path: Path) -> None:
    with shop_server(tmp_path) as server:
        assert server.stop(signal.SIGINT) == 130
