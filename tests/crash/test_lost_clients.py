"""Clients of a server that wait for an answer and go away: the parent is notified soon."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.mcp_client import MODERN
from tests.support.mcp_stdio import INITIALIZE, INITIALIZED, PROGRAM, call
from tests.support.server import Server, around

from perdure.core.session.children import BACKGROUND_AUTHOR

APP: Final = """
import asyncio
from pathlib import Path
from perdure import Agent, Runtime
from perdure.core.conversation.messages import Answer
from perdure.testing import ScriptedModel

class Held:
    name = "held"

    async def answer(self, request):
        number = len(request.messages)
        Path(f"asked-{number}").touch()
        while number > 1 and not Path(f"answer-{number}").exists():
            await asyncio.sleep(0.02)
        yield Answer(f"Answer {number}.")

child = Agent("researcher", model=Held())
lead = Agent("lead", model=ScriptedModel([{"text": "Read."}] * 9), sub_agents=[child])
rt = Runtime("sqlite:///h.db", agents=[lead])
"""
# Sends one request and prints what it receives; disconnects when it gets a line.
CLIENT: Final = """
import select, socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(sys.argv[2].encode())
while sys.stdin not in select.select([sys.stdin, connection], [], [])[0]:
    sys.stdout.buffer.write(connection.recv(65536))
    sys.stdout.flush()
connection.close()
time.sleep(600)
"""
# Starts a server of its own, sends it lines, and does not end.
STDIO_CLIENT: Final = """
import subprocess, sys, time
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
server.stdin.write(sys.argv[1].encode())
server.stdin.flush()
time.sleep(600)
"""
HEADERS: Final = {
    "Host": "127.0.0.1",
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}
LONGEST_MS: Final = 600_000
SOON_S: Final = 30  # 2 s on an idle machine; the caller itself would wait for ten minutes


class Story:
    """A parent whose child has answered once, on a server, and clients that ask for more."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self.clients: list[subprocess.Popen[bytes]] = []
        self.http = server.http()
        self.http.post("/sessions", json={"agent": "lead", "sessionID": "s"})
        self.http.post("/sessions/s/messages", json={"content": "Start", "wait": True})
        self.number = 1
        self.task = ""
        self.until_told_after(self._launch)

    def _launch(self) -> None:
        body = {"agent": "researcher", "prompt": "Tides?", "parent": "s"}
        self.task = self.http.post("/tasks", json=body).json()["id"]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a follow-up for which the caller waits."""
        return {"message": "More?", "block": True, "timeout": LONGEST_MS}

    def start(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a client, and wait until the model is asked for what it waits for."""
        command = [sys.executable, "-c", program, *words]
        client = subprocess.Popen(
            command, cwd=self.folder, env=around(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.clients.append(client)
        self.number += 2
        while not (self.folder / f"asked-{self.number}").exists():
            time.sleep(0.02)
        return client

    def post(self, path: str, body: dict[str, Any], **headers: str) -> subprocess.Popen[bytes]:
        """Start a client that posts a request."""
        text, sent = json.dumps(body), {**HEADERS, **headers}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {sent[name]}" for name in sent)]
        head = "\r\n".join([*lines, f"Content-Length: {len(text)}", "", text])
        return self.start(CLIENT, str(self.server.port), head)

    def answer(self) -> None:
        """Let the child answer."""
        (self.folder / f"answer-{self.number}").touch()

    def count(self, kind: str) -> int:
        """Return how many events of a type the parent has."""
        return len([event for event in self._events() if event["type"] == kind])

    def told(self) -> list[str]:
        """Return the notifications of the parent."""
        data = [event["data"] for event in self._events()]
        return [str(one["content"]) for one in data if one.get("by") == BACKGROUND_AUTHOR]

    def _events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.http.get("/sessions/s/events").json()["events"]
        return events

    def until_told_after(self, action: Callable[[], None]) -> None:
        """Do something that must lead to a notification soon, and wait for it."""
        before = len(self.told())
        action()
        start = time.monotonic()
        while len(self.told()) == before:
            assert time.monotonic() - start < SOON_S
            time.sleep(0.05)
        assert f"Answer {self.number}." in self.told()[-1]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("story")
    (folder / "app.py").write_text(APP)
    with Server(folder, "--app", "app:rt") as server:
        story = Story(folder, server)
        yield story
        for client in story.clients:
            client.kill()
            client.communicate()


def post_modern(story: Story) -> subprocess.Popen[bytes]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    }
    body = call(1, "background_resume", task_id=story.task, **story.arguments)
    body["params"]["_meta"] = meta
    names = {"Mcp-Method": "tools/call", "Mcp-Name": "background_resume"}
    return story.post("/mcp", body, **{"MCP-Protocol-Version": MODERN, **names})


def post_in_session(story: Story) -> subprocess.Popen[bytes]:
    opened = story.http.post("/mcp", json=INITIALIZE, headers=HEADERS)
    name = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
    story.http.post("/mcp", json=INITIALIZED, headers={**HEADERS, **name})
    return story.post(
        "/mcp", call(1, "background_resume", task_id=story.task, **story.arguments), **name
    )


def post_raw(story: Story) -> subprocess.Popen[bytes]:
    body = call(1, "background_resume", task_id=story.task, **story.arguments)
    return story.post("/mcp/compat", body)


def post_http(story: Story) -> subprocess.Popen[bytes]:
    return story.post(f"/tasks/{story.task}/resume", story.arguments)


POSTS: Final = [post_http, post_modern, post_in_session, post_raw]


@pytest.mark.parametrize("post", POSTS)
def test_the_parent_is_notified_soon_if_its_childs_client_was_killed_or_disconnects(
    story: Story, post: Any
) -> None:
    """S1.20: over HTTP, and in every form of MCP."""
    post(story).kill()
    story.until_told_after(story.answer)
    client = post(story)
    assert client.stdin is not None
    client.stdin.write(b"\n")
    client.stdin.flush()
    story.until_told_after(story.answer)


@pytest.mark.parametrize("post", POSTS)
def test_a_client_that_waits_takes_the_answer_also_if_it_is_frozen_meanwhile(
    story: Story, post: Any
) -> None:
    """S1.18, S1.20: what the machine of a frozen client has received, it reads when it goes on."""
    before, taken = len(story.told()), story.count("mail_taken")
    client = post(story)
    client.send_signal(signal.SIGSTOP)
    story.answer()
    while story.count("mail_taken") == taken:
        assert len(story.told()) == before
    client.send_signal(signal.SIGCONT)
    assert client.stdout is not None
    received = b""
    while f"Answer {story.number}.".encode() not in received:
        received += os.read(client.stdout.fileno(), 65_536)
    assert len(story.told()) == before


def test_the_parent_is_notified_soon_if_the_client_of_a_server_on_stdio_was_killed(
    story: Story,
) -> None:
    """S1.20"""
    asked = call(2, "background_resume", task_id=story.task, **story.arguments)
    lines = "".join(json.dumps(one) + "\n" for one in (INITIALIZE, INITIALIZED, asked))
    story.start(STDIO_CLIENT, lines, *PROGRAM, "mcp", "--app", "app:rt").kill()
    story.until_told_after(story.answer)
