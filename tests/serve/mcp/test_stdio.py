"""`perdure mcp` as a process: stdout, the end of stdin, signals, and a start before the store."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.mcp_stdio import INITIALIZE, INITIALIZED, WAIT_S, call, started

from perdure.serve.mcp.stdio import ANSWER_S


def test_stdout_carries_only_the_protocol_and_requests_before_the_end_of_stdin_are_answered(
    tmp_path: Path,
) -> None:
    with started(tmp_path) as server:
        server.send(INITIALIZE, INITIALIZED, {"jsonrpc": "2.0", "id": 0, "method": "no/such"})
        server.send({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        server.send(b"this is not JSON\n[]\n", call(3, "create_task_sandbox", name="x", taskId="t"))
        replies = server.finish()
    ids = sorted(str(reply.get("id")) for reply in replies)
    assert ids == ["0", "2", "3", "None", "None", "first"]
    codes = {reply["error"]["code"] for reply in replies if "error" in reply}
    assert codes == {-32700, -32600, -32601}
    (created,) = [reply for reply in replies if reply.get("id") == 3]
    assert created["result"]["structuredContent"]["taskId"] == "t"


NOT_MESSAGES: list[tuple[bytes, Any]] = [  # with the id of the error
    (b"{}", None),
    (b'{"jsonrpc":"2.0","id":1}', 1),
    (b'{"jsonrpc":"1.0","id":2,"method":"ping"}', 2),
    (b'{"jsonrpc":"2.0","id":3,"method":5}', 3),
    (b'{"jsonrpc":"2.0","id":"x","method":"tools/call","params":[1]}', "x"),
    (b'{"jsonrpc":"2.0","id":4,"method":"ping","params":{"a":"\\ud800"}}', 4),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None),
    (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', None),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None),
]


def test_a_line_that_is_not_a_message_gets_an_error_and_does_not_hold_up_the_end(
    tmp_path: Path,
) -> None:
    with started(tmp_path) as server:
        server.send(INITIALIZE, INITIALIZED)
        assert server.reply()["id"] == "first"
        for line, request_id in NOT_MESSAGES:
            server.send(line + b"\n")
            reply = server.reply()
            assert (reply["id"], reply["error"]["code"]) == (request_id, -32600)
        started_at = time.monotonic()
        assert server.finish() == []
        assert time.monotonic() - started_at < ANSWER_S


def test_tools_are_listed_while_the_store_cannot_be_opened_and_calls_try_again(
    tmp_path: Path,
) -> None:
    database = tmp_path / "data" / "perdure" / "perdure.db"
    database.parent.mkdir(parents=True)
    database.write_text("not a database, but long enough to be read as the head of one" * 20)
    with started(tmp_path) as server:
        server.send(INITIALIZE, INITIALIZED, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        server.reply()
        assert len(server.reply()["result"]["tools"]) == 8
        # It tries without a call: a worker must continue what an earlier process has left.
        assert "perdure.db" in server.log_line()
        refused = server.call(3, "list_tasks")
        assert (refused["success"], refused["error"]["code"]) == (False, "STORE_CORRUPT")
        database.unlink()
        assert server.call(4, "list_tasks") == {"success": True, "tasks": [], "count": 0}
        assert server.finish() == []


def test_the_list_of_tools_needs_nothing_of_the_runtime() -> None:
    program = (
        "import sys, perdure.cli.local.mcp.serve as serve, perdure.serve.mcp.stdio\n"
        "serve.toolbox_of((), serve.McpOptions())\n"
        "print(*[name for name in sys.modules if name.startswith(('perdure.tasks', "
        "'perdure.runtime.engine', 'perdure.store', 'perdure.app', 'perdure.sandbox'))])"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    words_of_tasks = {"perdure.tasks", "perdure.tasks.model", "perdure.tasks.model.status"}
    assert not {*shown.stdout.split()} - words_of_tasks


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_whose_client_still_listens(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path) as server:
        server.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        server.reply()
        os.kill(server.process.pid, number)
        assert server.process.wait(WAIT_S) == (0 if number == signal.SIGTERM else 130)
