"""The network of a sandbox with an allow-list, from a command to a host."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.support.sandboxes import RUN_AS, require_bwrap, run, workspace

from perdure.address_filter import AddressFilter
from perdure.sandbox.base import NetworkSettings
from perdure.sandbox.bwrap import BwrapSandbox
from perdure.tasks.proxy.server import AllowListProxy

__all__ = ["workspace"]

# Every attempt of a command, each with what it got. The host's ports are its arguments.
PROGRAM: Final = r"""
import json, os, socket, sys, urllib.request, urllib.error
port, udp_port = int(sys.argv[1]), int(sys.argv[2])
results = {}

def attempt(name, function):
    try:
        results[name] = function()
    except urllib.error.HTTPError as error:
        results[name] = f"{error.code} {error.read().decode().strip()}"
    except Exception as error:
        results[name] = f"{type(error).__name__}"

def get(url):
    return urllib.request.urlopen(url, timeout=20).read().decode()

def raw(request, more=b""):
    with socket.create_connection(("127.0.0.1", 3128), 20) as proxy:
        proxy.sendall(request)
        answer = proxy.recv(65536)
        if b" 200 " in answer and more:
            proxy.sendall(more)
        while chunk := proxy.recv(65536):
            answer += chunk
        return answer.decode()

def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(0.5)
        sender.sendto(b"hello", ("127.0.0.1", udp_port))
        return sender.recv(100).decode()

def connect(host):
    return raw(f"CONNECT {host} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), b"GET /in HTTP/1.0\r\n\r\n")

attempt("allowed", lambda: get(f"http://allowed.example:{port}/x"))
attempt("posted", lambda: get(urllib.request.Request(f"http://allowed.example:{port}/p", b"body")))
attempt("tunnel", lambda: connect(f"allowed.example:{port}"))
attempt("below", lambda: get(f"http://a.mirror.example:{port}/"))
attempt("other host", lambda: get(f"http://other.example:{port}/"))
attempt("other port", lambda: get("http://allowed.example:1/"))
attempt("other tunnel", lambda: connect(f"other.example:{port}"))
attempt("literal", lambda: raw(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode()))
attempt("literal tunnel", lambda: connect(f"127.0.0.1:{port}"))
attempt("private", lambda: get(f"http://private.example:{port}/"))
attempt("private tunnel", lambda: connect(f"private.example:{port}"))
attempt("metadata", lambda: get(f"http://metadata.example:{port}/"))
attempt("half private", lambda: get(f"http://half.example:{port}/"))
attempt("unknown", lambda: get(f"http://unknown.example:{port}/"))
attempt("relayed", lambda: raw(
    f"GET http://allowed.example:{port}/first HTTP/1.1\r\n\r\n"
    f"CONNECT other.example:{port} HTTP/1.1\r\n\r\nGET /second HTTP/1.1\r\n\r\n".encode()))
attempt("garbage", lambda: raw(b"\x16\x03\x01garbage\r\n\r\n"))
attempt("direct", lambda: socket.create_connection(("127.0.0.1", port), 5).recv(10).decode())
attempt("outside", lambda: socket.create_connection(("192.0.2.1", 80), 5).recv(10).decode())
attempt("udp", udp)
attempt("dns", lambda: socket.getaddrinfo("allowed.example", 80)[0][4][0])
results["environment"] = {k: v for k, v in os.environ.items() if "proxy" in k.lower()}
print(json.dumps(results))
"""

NAMES: Final = {
    "allowed.example": ["127.0.0.1"],
    "a.mirror.example": ["127.0.0.1"],
    "other.example": ["127.0.0.1"],
    "private.example": ["10.0.0.1"],
    "metadata.example": ["169.254.169.254"],
    "half.example": ["127.0.0.1", "192.168.0.1"],
}


async def resolve(host: str, port: int) -> Sequence[str]:
    if host not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")
    return NAMES[host]


@dataclass
class Host:
    """A web server of the host: it answers, and remembers the requests."""

    port: int = 0
    requests: list[str] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.read(10_000)).decode() or "none \r\n"
        while "Content-Length: 4" in head and not head.endswith("body"):
            head += (await reader.read(10_000)).decode()
        self.requests.append(head.splitlines()[0] + head.partition("\r\n\r\n")[2])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        with suppress(TimeoutError):  # long enough for what a proxy would send after the request
            async with asyncio.timeout(0.5 if "first" in head else 0):
                self.requests += [(await reader.read(1000)).decode()]
        writer.close()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    require_bwrap()
    host = Host()
    server = await asyncio.start_server(host.answer, "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    async with server:
        yield host


@pytest.fixture
async def proxy() -> AllowListProxy:
    # The tests have no public address; the loopback address takes its part.
    return AllowListProxy(AddressFilter.from_allow_list(["127.0.0.1/32"], resolve))


def settings(port: int) -> NetworkSettings:
    names = ("allowed.example", "*.mirror.example", "private.example", "metadata.example")
    hosts = (*names, "half.example", "unknown.example")
    return NetworkSettings("allow", tuple(f"{name}:{port}" for name in hosts))


async def test_a_command_reaches_the_hosts_of_its_allow_list_and_nothing_else(
    host: Host, proxy: AllowListProxy, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="perdure.tasks.proxy.server")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        (workspace / "program.py").write_text(PROGRAM)
        sandbox = BwrapSandbox(RUN_AS, serve_proxy=proxy.serve)
        command = f"python3 program.py {host.port} {udp.getsockname()[1]}"
        ran = await run(sandbox, workspace, command, network=settings(host.port), timeout_ms=90_000)
        with pytest.raises(BlockingIOError):
            udp.recv(100)
    assert ran.result.sandbox == "bwrap"
    assert "net" in ran.result.guarantees
    results = json.loads(ran.stdout)

    for name in ("allowed", "posted", "below"):
        assert results[name] == "hello", name
    assert results["tunnel"].startswith("HTTP/1.1 200 ")
    assert results["tunnel"].endswith("hello")
    for name in ("other host", "other port"):
        assert results[name].startswith("403 "), name
        assert "not on the allow-list" in results[name]
    for name in ("private", "metadata", "half private"):
        assert results[name].startswith("403 "), name
        assert "not a public address" in results[name]
    for name in ("other tunnel", "literal", "literal tunnel", "private tunnel"):
        assert results[name].startswith("HTTP/1.1 403 "), name
    assert results["unknown"].startswith("502 ")
    assert results["relayed"].startswith("HTTP/1.1 200 ")
    assert results["garbage"].startswith("HTTP/1.1 400 ")
    assert results["direct"] == "ConnectionRefusedError"
    assert results["outside"] == "OSError"
    assert results["udp"] == "TimeoutError"
    assert results["dns"] == "gaierror"
    assert results["environment"]["HTTPS_PROXY"] == "http://127.0.0.1:3128"

    paths = [request.split(" ")[1] for request in host.requests]
    assert paths == ["/x", "/p", "/in", "/", "/first"]
    assert host.requests[1] == "POST /p HTTP/1.1body"
    assert "allowed.example" in caplog.text
    assert "/first" not in caplog.text


async def test_without_an_allow_list_the_network_is_empty(host: Host, workspace: Path) -> None:
    command = f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {host.port}))'"
    ran = await run(BwrapSandbox(RUN_AS), workspace, command)
    assert "ConnectionRefusedError" in ran.stderr
    network = NetworkSettings("host")
    ran = await run(BwrapSandbox(RUN_AS), workspace, command, network=network)
    assert (ran.result.exit_code, "net" in ran.result.guarantees) == (0, False)


async def test_commands_with_an_allow_list_run_at_once_and_leave_nothing(
    host: Host, proxy: AllowListProxy, workspace: Path
) -> None:
    sandbox = BwrapSandbox(RUN_AS, serve_proxy=proxy.serve)
    tasks = len(asyncio.all_tasks())
    command = f"curl -s --max-time 60 http://allowed.example:{host.port}/"
    calls = [run(sandbox, workspace, command, network=settings(host.port)) for _ in range(10)]
    assert [ran.stdout for ran in await asyncio.gather(*calls)] == ["hello"] * 10
    assert len(asyncio.all_tasks()) <= tasks + 1  # the server may still be closing a connection


@pytest.mark.parametrize("name", ["a..allowed.example", f"{'a' * 70}.allowed.example"])
async def test_a_name_that_no_resolver_takes_is_a_bad_request(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        serving = asyncio.create_task(AllowListProxy().serve(listener, ["*.allowed.example"]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(f"CONNECT {name}:443 HTTP/1.1\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
