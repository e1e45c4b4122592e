"""Results that a server accepts per second, compared with a minimal FastAPI and SQLite server."""

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
from bench.http_servers import TOKEN, park_calls
from bench.report import Section, Table, number

CONNECTIONS: Final = 64
REQUESTS: Final = 6_400
ROUNDS: Final = 5
TARGET: Final = 1.0

METHOD = f"""\
`POST /async-tool/result` on {CONNECTIONS} persistent connections. Each request carries a token and
the result of another call, and is answered when the result is on disk. The reference is a FastAPI
endpoint with the same body that inserts one row into SQLite, with one durable commit for all
requests that are waiting. Each server runs in its own process, and no worker drives the sessions
during the measurement. The servers alternate; the numbers are medians."""


def measure(*, quick: bool = False) -> Section:
    """Measure both rates; `quick` runs one round with a tenth of the requests."""
    requests, rounds = (REQUESTS // 10, 1) if quick else (REQUESTS, ROUNDS)
    pairs = [(_rate("perdure", requests), _rate("reference", requests)) for _ in range(rounds)]
    ours, bare = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratio = ours / bare
    table = Table(
        ["", "perdure", "reference", "ratio"],
        [["accepted results/s", number(ours), number(bare), f"{ratio:.2f} x"]],
    )
    verdict = (
        f"- {ratio:.2f} x the reference; target ≥ {TARGET} x: "
        f"{'met' if ratio >= TARGET else 'missed'}"
    )
    return Section("Results over HTTP", [METHOD, table, verdict])


def _rate(server: str, requests: int) -> float:
    ENVS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="http-", dir=ENVS) as name:
        folder = Path(name)
        ids = [f"p_{n}" for n in range(requests)]
        if server == "perdure":
            ids = asyncio.run(park_calls(folder, requests))[:requests]
        with _running_server(server, folder) as port:
            return asyncio.run(_measure_load(port, ids))


@contextmanager
def _running_server(server: str, folder: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = listener.fileno()
        command = [sys.executable, "-m", "bench.http_servers", server, str(folder), str(descriptor)]
        process = subprocess.Popen(command, pass_fds=[descriptor])
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()
            process.wait()


async def _measure_load(port: int, ids: Sequence[str]) -> float:
    """Post all results, spread over the connections; return the rate per second."""
    lanes = [ids[n::CONNECTIONS] for n in range(CONNECTIONS)]
    await _wait_until_up(port)  # the server is ready when it responds
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in lanes]
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for lane, (reader, writer) in zip(lanes, connections, strict=True):
            tasks.create_task(_post_all(reader, writer, lane))
    duration = time.perf_counter() - began
    for _, writer in connections:
        writer.close()
    return len(ids) / duration


async def _wait_until_up(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await _read_response(reader)
    writer.close()


async def _post_all(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ids: Sequence[str]
) -> None:
    for pending_id in ids:
        writer.write(_request(pending_id))
        status = await _read_response(reader)
        assert status == 200, status


def _request(pending_id: str) -> bytes:
    body = json.dumps({"pendingID": pending_id, "result": {"output": "x" * 200}}).encode()
    head = (
        "POST /async-tool/result HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _read_response(reader: asyncio.StreamReader) -> int:
    """Read a whole response and return its status; an HTTP library would use more CPU."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    await reader.readexactly(length)
    return int(head.split(b" ", 2)[1])
