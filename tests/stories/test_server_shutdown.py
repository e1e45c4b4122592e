"""Servers that are told to stop while a request waits for a store that is away."""

import fcntl
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.server import Server

APP = """
from pathlib import Path
from tests.support.executions import task_options
from perdure import Runtime
rt = Runtime("sqlite:///h.db", tasks=task_options(Path.cwd()))
"""


@contextmanager
def away(database: Path) -> Iterator[None]:
    """Keep every process from writing a database."""
    with database.with_name(f"{database.name}.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("path", ["/tasks/t/exec", "/tasks"])
def test_a_request_that_waits_for_the_store_at_the_end_gets_its_error(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    body = {"command": "true"} if path.endswith("exec") else {"name": "other"}
    with Server(tmp_path, "--app", "app:rt") as server, ThreadPoolExecutor(2) as threads:
        client = server.http()
        assert client.post("/tasks", json={"name": "n", "taskID": "t"}).is_success
        assert client.post("/tasks/t/attach", json={"agentID": "a"}).is_success
        with away(tmp_path / "h.db"):
            asked = threads.submit(client.post, path, json=body, timeout=60)
            while "waiting for the lock" not in server.log():
                time.sleep(0.05)
            ended = threads.submit(server.stop, signal.SIGTERM)
            answer = asked.result()
        assert (answer.status_code, answer.json()["code"]) == (503, "NOT_OPEN")
        assert answer.headers["retry-after"] == "5"
        assert ended.result() == 0
    assert "Traceback" not in server.log()
