"""Connections: their number, requests that do not arrive, and clients that send too much."""

import asyncio
import errno
import logging
import socket
import struct
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import uvicorn
from tests.support.server import Server, shop_server
from uvicorn.server import ServerState

from perdure.serve import connections, transports
from perdure.serve.connections import Capacity, connection_limit, protocol_factory

Answer = Callable[[Any, Any, Any], Awaitable[None]]
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Return the number of bytes of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await respond(send, 200, str(size).encode())


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """Refuse without reading the body."""
    await respond(send, 413, b"too large")


async def respond(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(app: Answer, capacity: Capacity | None = None) -> AsyncIterator[Connect]:
    """Serve an application with these connections."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
    config.load()
    state, factory = ServerState(), protocol_factory(capacity or Capacity(1_000))
    server = await asyncio.get_running_loop().create_server(
        lambda: factory(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writers.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        async with asyncio.timeout(30):
            while state.connections:  # noqa: ASYNC110 - a plain set
                await asyncio.sleep(0.01)


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status and body of the next response."""
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(line for line in lines if line.startswith(b"content-length:"))
        return int(head.split()[1]), await reader.readexactly(int(length.split()[1]))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(30):
        return await reader.read() == b""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADERS_S", "BODY_S"):
        monkeypatch.setattr(connections, name, 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sent", [b"", b"GE", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow:"])
async def test_a_request_whose_headers_do_not_arrive_is_ended(sent: bytes) -> None:
    async with serving(echo) as connect:
        reader, writer = await connect()
        writer.write(sent)
        status, body = await response(reader)
        assert status == 408
        assert b"REQUEST_TIMEOUT" in body
        assert await is_closed(reader)


@pytest.mark.usefixtures("impatient")
async def test_a_second_request_on_a_connection_must_arrive_in_time_too() -> None:
    async with serving(echo) as connect:
        reader, writer = await connect()
        writer.write(GET)
        assert await response(reader) == (200, b"0")
        writer.write(b"GET / HTTP/1.1\r\n")
        assert (await response(reader))[0] == 408


@pytest.mark.usefixtures("impatient")
async def test_a_body_that_stops_arriving_is_ended() -> None:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)
        ended.set()

    async with serving(app) as connect:
        reader, writer = await connect()
        writer.write(POST + b"x")
        assert (await response(reader))[0] == 408
        assert await is_closed(reader)
        async with asyncio.timeout(10):
            await ended.wait()


@pytest.mark.usefixtures("impatient")
async def test_a_body_that_arrives_slowly_but_steadily_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MIN_RATE", 1)  # a byte gives a second
    async with serving(echo) as connect:
        reader, writer = await connect()
        writer.write(POST)
        for _ in range(4):
            writer.write(b"x" * 25)
            await asyncio.sleep(0.1)
        assert await response(reader) == (200, b"100")


@pytest.mark.usefixtures("impatient")
async def test_a_response_may_take_its_time() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.5)
        await echo(scope, receive, send)

    async with serving(slow) as connect:
        reader, writer = await connect()
        writer.write(POST + b"x" * 100)
        assert await response(reader) == (200, b"100")
        writer.write(GET)
        assert await response(reader) == (200, b"0")


async def test_connections_over_the_limit_are_refused_in_one_line_of_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "perdure")
    async with serving(echo, Capacity(3)) as connect:
        first = [await connect() for _ in range(3)]
        for _ in range(20):
            reader, writer = await connect()
            writer.write(GET)
            status, body = await response(reader)
            assert status == 503
            assert b"too many connections" in body
        for _, writer in first[:1]:
            writer.close()
        async with asyncio.timeout(10):
            while True:
                reader, writer = await connect()
                writer.write(GET)
                if (await response(reader))[0] == 200:
                    break
    assert len([record for record in caplog.records if "ulimit -n" in record.message]) == 1


async def test_the_health_is_told_while_clients_have_taken_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEALTH_S", 0.1)
    async with serving(echo, Capacity(3)) as connect:
        taken = [await connect() for _ in range(3)]
        silent = [await connect() for _ in range(connections.HEALTH_CONNECTIONS)]
        reader, _ = await connect()
        assert (await response(reader))[0] == 503  # at once: there is no room to wait
        for reader, _ in silent:
            assert (await response(reader))[0] == 408
        for _ in range(20):
            reader, writer = await connect()
            writer.write(GET.replace(b"GET /", b"GET /healthz"))
            assert (await response(reader))[0] == 200
            assert await is_closed(reader)
            reader, writer = await connect()
            writer.write(GET)
            assert (await response(reader))[0] == 503
            assert await is_closed(reader)
        reader, writer = taken[0]
        writer.write(GET)
        assert (await response(reader))[0] == 200


def test_a_failing_accept_is_one_line_and_other_errors_stay_visible(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    loop, capacity = asyncio.new_event_loop(), Capacity(1)
    try:
        for _ in range(1_000):
            error = OSError(errno.EMFILE, "Too many open files")
            context = {"message": "socket.accept() out of system resource", "exception": error}
            capacity.handle_loop_error(loop, context)
        assert len(caplog.records) == 1
        assert "no file descriptor left" in caplog.text
        capacity.handle_loop_error(loop, {"message": "else", "exception": ValueError("odd")})
        assert "odd" in caplog.text
    finally:
        loop.close()


def test_the_limit_leaves_file_descriptors_for_the_store() -> None:
    resource = pytest.importorskip("resource")
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for soft, limit in ((1024, 896), (100, 50)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert connection_limit() == limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


BIG = 30 * 2**20


async def test_a_client_that_closes_after_its_request_gets_the_refusal_of_its_body() -> None:
    """S0.54"""
    async with serving(refuse) as connect:
        reader, writer = await connect()
        head = f"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {BIG}\r\n\r\n"
        writer.write(head.encode())
        for _ in range(BIG // 2**20):  # all of it, before it reads
            writer.write(b"x" * 2**20)
            await writer.drain()
        assert await response(reader) == (413, b"too large")
        assert await is_closed(reader)


@pytest.mark.parametrize("limit", ["LINGER_S", "LINGER_BYTES"])
async def test_a_client_that_never_stops_sending_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(transports, limit, {"LINGER_S": 0.2, "LINGER_BYTES": 2**20}[limit])
    async with serving(refuse) as connect:
        _, writer = await connect()
        head = f"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {2**40}\r\n\r\n"
        writer.write(head.encode())
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_forever(writer), 30)


async def send_forever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 2**16)
        await writer.drain()
        await asyncio.sleep(0.001)


async def stream(scope: Any, receive: Any, send: Any) -> None:
    """Send without an end."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while (await asyncio.wait_for(receive(), 30))["type"] != "http.disconnect":
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})


async def test_a_client_that_does_not_receive_its_response_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transports, "SEND_S", 0.2)
    async with serving(stream) as connect:
        reader, writer = await connect()
        cast(asyncio.Transport, writer.transport).pause_reading()
        writer.write(GET)
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_forever(writer), 30)
        reader.feed_eof()


async def test_a_client_that_receives_slowly_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "SEND_S", 0.5)
    size = 8 * 2**20

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 200, b"x" * size)

    async with serving(large) as connect:
        reader, writer = await connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(16):
            await reader.readexactly(size // 16)
            await asyncio.sleep(0.1)
        writer.write(GET)
        assert (await response(reader))[0] == 200


async def test_a_stream_whose_client_left_writes_nothing_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_send, is_over = asyncio.Event(), asyncio.Event()

    async def many(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await may_send.wait()
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        is_over.set()

    async with serving(many) as connect:
        reader, writer = await connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        abort(writer)
        may_send.set()
        async with asyncio.timeout(10):
            await is_over.wait()
    assert caplog.records == []


async def test_a_client_that_left_before_its_refusal_is_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_end = asyncio.Event()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await may_end.wait()
        await send({"type": "http.response.body", "body": b""})

    async with serving(late) as connect:
        reader, writer = await connect()
        writer.write(POST[:-2] + b"Connection: close\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        abort(writer)
        may_end.set()
    assert caplog.records == []


def abort(writer: asyncio.StreamWriter) -> None:
    """Reset the connection at once, without a turn of the event loop."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\r\n\r\n", CHUNKED + b"zz\r\n"])
async def test_bytes_that_are_not_http_are_refused_with_a_hint_and_in_one_line_of_log(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo) as connect:
        for _ in range(20):
            reader, writer = await connect()
            writer.write(sent)
            async with asyncio.timeout(30):
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert msgspec.json.decode(body)["code"] == "HTTP_INVALID"
    assert len(caplog.records) == 1
    assert "not valid HTTP: requests refused since the last such line: 1" in caplog.text


async def test_a_body_that_becomes_invalid_after_its_response_is_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(refuse) as connect:
        for _ in range(20):
            reader, writer = await connect()
            writer.write(CHUNKED)
            assert await response(reader) == (413, b"too large")
            writer.write(b"zz\r\n")
            assert await is_closed(reader)
    assert "Traceback" not in caplog.text
    assert len(caplog.records) <= 1


async def test_an_upgrade_that_this_server_does_not_know_is_ignored_without_a_line_of_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(echo) as connect:
        reader, writer = await connect()
        writer.write(GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert await response(reader) == (200, b"0")
    assert caplog.records == []


# --- a real server --------------------------------------------------------------------------------


def test_urllib_is_told_that_its_body_is_too_large(tmp_path: Path) -> None:
    """S0.54"""
    with shop_server(tmp_path, "--no-worker") as server:
        url, body = f"{server.url}/async-tool/result", b"x" * (BIG // 2)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, body, timeout=30)  # noqa: S310
        assert refused.value.code == 413
        assert b"server.max_body" in refused.value.read()


FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (300, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from tests.support.http_shop import agent
from perdure import Runtime
rt = Runtime("sqlite:///h.db", agents=[agent()])
"""


async def test_a_server_out_of_connections_stays_quiet_and_recovers(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FEW_FILES)
    with Server(tmp_path, "--app", "app:rt", "--no-worker") as server:
        connects = [asyncio.open_connection("127.0.0.1", server.port) for _ in range(500)]
        opened = await asyncio.gather(*connects)
        statuses = [await asyncio.wait_for(reader.read(12), 30) for reader, _ in opened[190:]]
        counts = Counter(statuses)
        assert counts.pop(b"HTTP/1.1 408", 0) <= connections.HEALTH_CONNECTIONS  # silent ones
        assert set(counts) == {b"HTTP/1.1 503"}
        for _, writer in opened:
            writer.close()
        async with asyncio.timeout(30):
            while True:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                if (await reader.read(12)).endswith(b"200"):
                    break
                writer.close()
        writer.close()
        assert "Traceback" not in server.log()
        assert server.log().count("ulimit -n") <= 2
        assert "no file descriptor left" not in server.log()


class RecordingTransport:
    """Transport that keeps what was written, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed, "written after it was closed"
        self.pieces.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def recording() -> tuple[RecordingTransport, transports.BoundedTransport]:
    recorded = RecordingTransport()
    loop = asyncio.get_running_loop()
    transport = cast(asyncio.Transport, recorded)
    return recorded, transports.BoundedTransport(transport, loop, lambda: False)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


async def test_the_head_and_the_body_of_a_response_are_sent_at_once() -> None:
    recorded, transport = recording()
    for piece in (HEAD, b"ok", b"", HEAD, b"ok", b""):
        transport.write(piece)
    assert recorded.pieces == [HEAD + b"ok", HEAD + b"ok"]
    await asyncio.sleep(0)
    assert recorded.pieces == [HEAD + b"ok", HEAD + b"ok"]


async def test_a_head_is_sent_when_its_body_has_not_begun_by_the_next_round_of_the_loop() -> None:
    recorded, transport = recording()
    transport.write(HEAD)
    assert recorded.pieces == []
    await asyncio.sleep(0)
    assert recorded.pieces == [HEAD]
    transport.write(b"ok")
    assert recorded.pieces == [HEAD, b"ok"]


@pytest.mark.parametrize("close", ["close", "close_at_once"])
async def test_a_head_without_a_body_is_sent_before_its_connection_closes(close: str) -> None:
    recorded, transport = recording()
    transport.write(HEAD)
    getattr(transport, close)()
    await asyncio.sleep(0)
    assert (recorded.pieces, recorded.closed) == ([HEAD], True)
