"""No secret is to be found anywhere but in the store, which needs it to run what was approved."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import anyio
import httpx2
import pytest
from tests.support.server import Server, run
from tests.support.server_project import CI, OPS, make_project

from perdure.client import Client
from perdure.errors import NotAllowed
from perdure.store.sqlite.packed_data import unpack

HOOK, OUT = "hook-secret-b7d1f0", "out-secret-9e42aa"
PASSWORD, PIN = "hunter2-3f8e11c0", "4711-90aa-77ef"
WRONG = "wrong-token-51c9d3"
SECRETS = (OPS, CI, HOOK, OUT, PASSWORD, PIN, WRONG)

LOGIN = '''
from pydantic import SecretStr
from perdure import tool


@tool(requires_approval=True, redact=["pin"])
def login(user: str, password: SecretStr, pin: str) -> str:
    """Log in somewhere."""
    if password.get_secret_value() != "hunter2-3f8e11c0" or pin != "4711-90aa-77ef":
        raise ValueError("the stored call was not kept")
    return f"{user} is in"
'''
SCRIPT = [
    {
        "text": "I log in.",
        "calls": [
            {"tool": "login", "args": {"user": "ana", "password": PASSWORD, "pin": PIN}},
            {"tool": "deploy", "args": {"branch": "main"}},
        ],
    },
    {"text": "Done."},
]


class Receiver(BaseHTTPRequestHandler):
    """Keeps what webhooks bring, and at first refuses it."""

    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Receiver.seen.append(f"{self.headers}\n{body.decode()}")
        self.send_response(500 if len(Receiver.seen) == 1 else 204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its parent has it
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    Receiver.seen = []
    http = HTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=http.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{http.server_port}/hook"
    hooks = {"webhooks": [{"url": url, "secret": OUT}], "webhook_allow": ["127.0.0.1"]}
    make_project(tmp_path, "sqlite", webhook_secret=HOOK, **hooks)
    (tmp_path / "vault.py").write_text(LOGIN)
    (tmp_path / "shop.json").write_text(json.dumps(SCRIPT))
    config = json.loads((tmp_path / "perdure.yaml").read_text())
    config["agents"]["shop"]["tools"] = ["vault:login", "tools:deploy"]
    (tmp_path / "perdure.yaml").write_text(json.dumps(config))
    with Server(tmp_path, "--verbose") as one:
        yield one
    http.shutdown()
    http.server_close()


async def told(server: Server) -> list[str]:
    """Everything that the server says to those who ask, kindly and otherwise."""
    said: list[str] = []
    async with server.client(OPS) as client, httpx2.AsyncClient(base_url=server.url) as http:
        session = await client.session("s", agent="shop").run("Go")
        calls = {call.tool: call.id for call in session.pending}
        said += [json.dumps(session.to_json()), *await _read(http, calls["login"])]
        said += await _refused(http, server, calls)
        said.append(
            json.dumps((await client.approve(calls["login"], args={"user": "bob"})).to_json())
        )
        said.append(repr(await client.submit_result(calls["deploy"], "deployed")))
        session = await client.session("s").run()
        assert session.output == "Done."
        said += [json.dumps(session.to_json()), *await _read(http, calls["login"])]
        said += await _streamed(client)
    return said


async def _read(http: httpx2.AsyncClient, call_id: str) -> list[str]:
    paths = (
        *("/", "/openapi.json", "/agents", "/metrics", "/readyz", "/sessions", "/sessions/s"),
        *("/sessions/s/events", "/sessions/s/messages", "/events", "/pending?status=all"),
        *(f"/pending/{call_id}", f"/async-tool/pending/{call_id}", "/deliveries"),
    )
    answers = [await http.get(path, headers={"Authorization": f"Bearer {OPS}"}) for path in paths]
    assert all(answer.is_success for answer in answers)
    return [f"{answer.headers}\n{answer.text}" for answer in answers]


async def _refused(http: httpx2.AsyncClient, server: Server, calls: dict[str, str]) -> list[str]:
    """Requests that carry secrets and are refused."""
    mine = {"Authorization": f"Bearer {OPS}"}
    body = {"pendingID": calls["deploy"], "result": {"output": "x"}}
    answers = [
        await http.get("/sessions", headers={"Authorization": f"Bearer {WRONG}"}),
        await http.get("/sessions/s", headers={"Authorization": f"Basic {OPS}"}),
        await http.post("/async-tool/webhook", json=body, headers={"X-Webhook-Signature": HOOK}),
        await http.post(
            f"/pending/{calls['login']}/approve", json={"args": {"pin": 7}}, headers=mine
        ),
        await http.post(f"/pending/{calls['login']}/approve", content=b"{", headers=mine),
        await http.post("/async-tool/result", json={**body, "pendingID": "p_x"}, headers=mine),
    ]
    assert all(400 <= answer.status_code < 500 for answer in answers)
    said = [answer.text for answer in answers]
    async with Client(server.url, WRONG) as stranger:
        with pytest.raises(NotAllowed) as raised:
            await stranger.session("s").get()
    error = raised.value
    return [*said, repr(error), json.dumps(error.to_json()), repr(stranger)]


async def _streamed(client: Client) -> list[str]:
    said = []
    with anyio.move_on_after(30):
        async for event in client.stream(after=0):
            said.append(json.dumps(event.to_json()))
            if event.type == "agent_complete":
                return said
    raise AssertionError("the feed did not come to its end")


COMMANDS = (
    "sessions show s",
    "sessions export --all",
    "sessions events s --server URL",
    "sessions show s --server URL -v",
    "pending list --status all --json",
    "config validate",
    "doctor",
    "agents list --json",
)


def typed(server: Server, command: str, token: str, code: int = 0) -> str:
    words = command.replace("URL", server.url).split()
    done = run(server.folder, *words, PERDURE_TOKEN=token)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


async def test_no_secret_is_told_to_anybody(server: Server) -> None:
    """SX.7, G11"""
    said = await told(server)
    said += [typed(server, command, OPS) for command in COMMANDS]
    said.append(typed(server, "sessions list -v --server URL", WRONG, code=4))
    assert server.stop() == 0
    said += [server.said, server.log(), *Receiver.seen]
    found = {secret: [text for text in said if secret in text][:1] for secret in SECRETS}
    assert {secret: texts for secret, texts in found.items() if texts} == {}
    beside = [text for text in said if "password" in text and "ana" in text]
    assert len(beside) > 10  # this is where they would have stood
    assert len(Receiver.seen) > 2


async def test_the_store_keeps_what_must_run_and_no_token(server: Server) -> None:
    """G7, SX.7"""
    await told(server)
    server.stop()
    with closing(sqlite3.connect(server.folder / "perdure.db")) as raw:
        kept = b"\n".join(unpack(data) or b"" for (data,) in raw.execute("SELECT data FROM record"))
        kept += b"\n".join(bytes(data) for (data,) in raw.execute("SELECT data FROM entry"))
    assert PASSWORD.encode() in kept
    assert not any(secret.encode() in kept for secret in (OPS, CI, HOOK, WRONG))
