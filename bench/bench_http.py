"""How many results a server takes per second, against the least that FastAPI and SQLite do."""

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.envs import ENVS
from bench.http_servers import TOKEN, parked
from bench.report import Section, Table, number

CONNECTIONS: Final = 64
REQUESTS: Final = 6_400
ROUNDS: Final = 5
TARGET: Final = 0.5

METHOD = f"""\
`POST /async-tool/result` on {CONNECTIONS} connections that stay open, with a token each time, every
call another one; the answer comes once the result is on the disk. The reference is a FastAPI
endpoint with the same body that puts one row into SQLite, one durable commit for all requests that
wait. Each server is a process of its own, and nothing drives the sessions meanwhile; they take
turns, and the medians count."""


def measure(*, quick: bool = False) -> Section:
    """Both rates; `quick` is a tenth of the requests, once."""
    requests, rounds = (REQUESTS // 10, 1) if quick else (REQUESTS, ROUNDS)
    found = [(_rate("perdure", requests), _rate("reference", requests)) for _ in range(rounds)]
    ours, bare = (statistics.median(rates) for rates in zip(*found, strict=True))
    ratio = ours / bare
    table = Table(
        ["", "perdure", "reference", "ratio"],
        [["results taken, per s", number(ours), number(bare), f"{ratio:.2f} x"]],
    )
    verdict = (
        f"- {ratio:.2f} x the reference; target ≥ {TARGET} x: "
        f"{'met' if ratio >= TARGET else 'missed'}"
    )
    return Section("Results over HTTP", [METHOD, table, verdict])


def _rate(which: str, requests: int) -> float:
    ENVS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="http-", dir=ENVS) as name:
        folder = Path(name)
        ids = [f"p_{n}" for n in range(requests)]
        if which == "perdure":
            ids = asyncio.run(parked(folder, requests))[:requests]
        with _served(which, folder) as port:
            return asyncio.run(_load(port, ids))


@contextmanager
def _served(which: str, folder: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = listener.fileno()
        command = [sys.executable, "-m", "bench.http_servers", which, str(folder), str(descriptor)]
        process = subprocess.Popen(command, pass_fds=[descriptor])
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()
            process.wait()


async def _load(port: int, ids: Sequence[str]) -> float:
    """Post them all, spread over the connections; answers how many per second."""
    lanes = [ids[n::CONNECTIONS] for n in range(CONNECTIONS)]
    await _post(port, [])  # the server is up once it accepts and answers
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in lanes]
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for lane, (reader, writer) in zip(lanes, connections, strict=True):
            tasks.create_task(_lane(reader, writer, lane))
    took = time.perf_counter() - began
    for _, writer in connections:
        writer.close()
    return len(ids) / took


async def _post(port: int, ids: Sequence[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await _answer(reader)
    await _lane(reader, writer, ids)
    writer.close()


async def _lane(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ids: Sequence[str]
) -> None:
    for pending_id in ids:
        writer.write(_request(pending_id))
        status = await _answer(reader)
        assert status == 200, status


def _request(pending_id: str) -> bytes:
    body = json.dumps({"pendingID": pending_id, "result": {"output": "x" * 200}}).encode()
    head = (
        "POST /async-tool/result HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _answer(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, read to its end; a client that costs next to nothing."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    await reader.readexactly(length)
    return int(head.split(b" ", 2)[1])
