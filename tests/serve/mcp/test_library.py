"""Sessions over HTTP: the library is loaded before a client comes, and clients that go away."""

import socket
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from tests.support.server import Server

from perdure.config import McpConfig
from perdure.errors import NotFound
from perdure.serve.assembly import preload_protocols
from perdure.serve.mcp import endpoint
from perdure.serve.mcp.endpoint import load_sdk

WAIT_S = 60
ERAS = {"old": b"", "new": b"MCP-Protocol-Version: 2026-07-28\r\nMCP-Method: tools/list\r\n"}


def wait_for_log(server: Server, text: str) -> None:
    """Wait until the log of a server has a text."""
    deadline = time.monotonic() + WAIT_S
    while text not in server.log():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


def serve_without_agents(folder: Path, *options: str) -> Server:
    return Server(folder, "--store", f"sqlite:///{folder}/p.db", *options)


def test_the_library_is_loaded_before_the_first_request_to_mcp(tmp_path: Path) -> None:
    """S3.1"""
    with serve_without_agents(tmp_path, "-v") as server:
        wait_for_log(server, "the MCP library is loaded")  # nothing was sent to /mcp


async def test_a_server_without_mcp_does_not_load_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "_SDK", "no_such_module")
    await preload_protocols(McpConfig(enabled=False))
    with pytest.raises(ModuleNotFoundError):
        await preload_protocols(McpConfig())


async def test_the_event_loop_goes_on_while_the_library_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "slow_import", (begun, released), raising=False)
    (tmp_path / "slow_sdk.py").write_text(
        "import threading\nbegun, released = threading.slow_import\n"
        f"begun.set()\nassert released.wait({WAIT_S})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(endpoint, "_SDK", "slow_sdk")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load_sdk)
        assert await to_thread.run_sync(begun.wait, WAIT_S)
        assert "slow_sdk" in sys.modules
        released.set()  # by the event loop, which the import does not block


async def test_a_missing_library_is_an_error_of_requests_not_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "_SDK", "mcp.no_such_module")
    with pytest.raises(NotFound, match="not installed"):
        await load_sdk()
    await endpoint.preload_sdk()


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_goes_away_while_it_sends_leaves_no_error_in_the_log(
    tmp_path: Path, era: str
) -> None:
    with serve_without_agents(tmp_path, "-v") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(
                b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Accept: application/json, text/event-stream\r\n"
                + ERAS[era]
                + b'Content-Length: 500\r\n\r\n{"jsonrpc"'
            )
        wait_for_log(server, "POST /mcp: the client disconnected")
        assert server.stop() == 0
        log = server.log()
    assert "Traceback" not in log
    assert " error " not in log
