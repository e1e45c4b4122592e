"""Two hundred readers of a server that is killed, while another process drives the sessions."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
from tests.support.server import CLI, Server, around

READERS = 200
SESSIONS = [f"s{n}" for n in range(4)]
YAML = """
session_stores: {main: {backend: sql, sql: {driver: sqlite, database: ./h.db}}}
llms: {main: {provider: scripted, script: turns.json}}
agents: {greets: {llm: main, session_store: main}}
server: {rate_limit: {per_source: 100000/s, per_id: 100000/s}}
"""


@contextmanager
def worker(folder: Path) -> Iterator[None]:
    with (folder / "worker.txt").open("w") as log:
        process = subprocess.Popen(
            [*CLI, "worker"], cwd=folder, env=around(), stderr=log, stdout=log
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Reader:
    """One client: it comes back after every break, with the id of the last event that it saw."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.seen: list[str] = []
        self.breaks = 0
        self._news = anyio.Event()

    async def until(self, place: str | None) -> None:
        """Wait until it saw that event; None: any."""
        while not self.seen or place not in (None, self.seen[-1]):
            await self._news.wait()

    async def follow(self, client: httpx2.AsyncClient) -> None:
        while True:
            with suppress(httpx2.TransportError):
                await self._connected(client)
            self.breaks += 1
            await anyio.sleep(0.05)

    async def _connected(self, client: httpx2.AsyncClient) -> None:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": (self.seen or ["0"])[-1]}
        place = ""
        async with client.stream("GET", self.path, headers=headers) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    place = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    self.seen.append(place)
                    news, self._news = self._news, anyio.Event()
                    news.set()


async def say(client: httpx2.AsyncClient, session: str, text: str) -> None:
    """Until it is recorded, which may be once more than the answer says: the key makes it one."""
    body = {"agent": "greets", "sessionID": session, "message": text}
    while True:
        with suppress(httpx2.TransportError):
            answer = await client.post(
                "/sessions", json=body, headers={"Idempotency-Key": f"{session}-{text}"}
            )
            assert answer.is_success, answer.text
            return
        await anyio.sleep(0.05)


async def settled(client: httpx2.AsyncClient, runs: int) -> None:
    """Until the worker has ended that many runs of every session."""
    for session in SESSIONS:
        while True:
            with suppress(httpx2.TransportError):
                found = (await client.get(f"/sessions/{session}")).json()
                if found["state"] == "completed" and found["usage"]["requests"] >= runs:
                    break
            await anyio.sleep(0.05)


async def places(client: httpx2.AsyncClient, path: str, place: str) -> list[str]:
    """What the log itself says."""
    found: list[dict[str, Any]] = (await client.get(path)).json()["events"]
    return [str(event[place]) for event in found]


async def test_every_reader_sees_every_event_once(tmp_path: Path) -> None:
    """E12: 200 of them, over a kill of the server, with the driver in another process."""
    (tmp_path / "perdure.yaml").write_text(YAML)
    (tmp_path / "turns.json").write_text(json.dumps([{"text": f"Hello {n}."} for n in range(9)]))
    readers = [
        Reader("/events" if n % 2 else f"/sessions/{SESSIONS[0]}/events") for n in range(READERS)
    ]
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    with Server(tmp_path, "--no-worker", "--config", "perdure.yaml") as server, worker(tmp_path):
        async with (
            httpx2.AsyncClient(base_url=server.url, limits=limits, timeout=30) as client,
            anyio.create_task_group() as tasks,
        ):
            with anyio.fail_after(50):
                for session in SESSIONS:
                    await say(client, session, "one")
                for reader in readers:
                    tasks.start_soon(reader.follow, client)
                await settled(client, 1)
                for reader in readers:
                    await reader.until(None)
                await anyio.to_thread.run_sync(server.kill)
                await anyio.to_thread.run_sync(server.start)
                for number, text in ((2, "two"), (3, "three")):
                    for session in SESSIONS:
                        await say(client, session, text)
                    await settled(client, number)
                expected = {
                    "/events": await places(client, "/events", "pos"),
                    readers[0].path: await places(client, readers[0].path, "seq"),
                }
                for reader in readers:
                    await reader.until(expected[reader.path][-1])
            tasks.cancel_scope.cancel()
    assert all(reader.breaks for reader in readers)
    for reader in readers:
        assert reader.seen == expected[reader.path]
    assert len(expected["/events"]) > 30
