"""The API's own description: complete, ours in every status, and a page without strangers."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.http_client import Client
from tests.support.http_shop import TURNS
from tests.support.server import Server

from perdure.serve.http.responses import ANYWHERE

YAML = """
session_stores: {main: {backend: sql, sql: {driver: sqlite, database: ./h.db}}}
llms: {told: {provider: scripted, script: turns.json}}
agents:
  shop:
    llm: told
    session_store: main
    tools: [tests.support.shop:refund, tests.support.http_shop:deploy, ask_user]
server:
  rate_limit: {per_source: 100000/s, per_id: 100000/s}
  tokens: [{name: ops, token: ops-token, role: admin}]
"""
# What a schema cannot say: 1.0 is a whole number to it and none to us, and a message needs
# content or a decision. What an archive is, it cannot say either.
LIMITS = """
[[operations]]
include-path-regex = "/(fork|messages|import|exec|executions|files)$"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 409]

# The server of this test has no sandbox, so that no command of a fuzzer ever runs.
[[operations]]
include-path-regex = "/(tasks|exec)$"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
"""


async def described(client: Client) -> dict[str, Any]:
    told: dict[str, Any] = (await client.get("/openapi.json")).json()
    return told


async def test_every_route_documents_what_the_frame_may_answer_and_nothing_is_422(
    client: Client,
) -> None:
    told = await described(client)
    assert "422" not in json.dumps(told)
    for path, operations in told["paths"].items():
        for method, operation in operations.items():
            documented = set(operation["responses"])
            assert documented >= {str(status) for status in ANYWHERE}, (method, path)
            assert documented & {"200", "201", "202"}, (method, path)
            assert operation["description"], (method, path)


async def test_only_a_few_routes_need_no_token(client: Client) -> None:
    told = await described(client)
    free = {
        path
        for path, operations in told["paths"].items()
        for operation in operations.values()
        if "security" not in operation
    }
    assert free == {"/", "/openapi.json", "/healthz", "/readyz"}


async def test_the_page_shows_every_route_and_loads_nothing(client: Client) -> None:
    answer = await client.get("/docs")
    assert answer.headers["Content-Type"].startswith("text/html")
    for path in (await described(client))["paths"]:
        assert f" {path}</h3>" in answer.text
    assert not re.search(r"<script|https?://|src=", answer.text)
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("examples", [3])
def test_a_running_server_answers_only_what_it_documents(tmp_path: Path, examples: int) -> None:
    """All checks of schemathesis, with a fixed seed; streams that never end are left out."""
    signal.alarm(600)  # it asks two thousand questions, and a busy machine takes its time
    (tmp_path / "perdure.yaml").write_text(YAML)
    (tmp_path / "turns.json").write_text(json.dumps(TURNS))
    (tmp_path / "schemathesis.toml").write_text(LIMITS)
    with Server(tmp_path, "--config", "perdure.yaml") as server:
        options = {
            "--checks": "all",
            "--phases": "coverage,fuzzing",
            "--seed": "1",
            "--max-examples": str(examples),
            "--request-timeout": "20",
            "--header": "Authorization: Bearer ops-token",
            "--exclude-path": "/async-tool/events",
        }
        flat = [part for option in options.items() for part in option]
        program = str(Path(sys.executable).with_name("schemathesis"))
        command = [program, "run", f"{server.url}/openapi.json", *flat, "--no-color"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=540, check=False
        )
        assert done.returncode == 0, done.stdout.partition(" FAILURES ")[2][:6000]
        assert "Traceback" not in server.log()
