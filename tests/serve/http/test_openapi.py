"""The API's own description: complete, ours in every status, and a page without strangers."""

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openapi_schema_validator import OAS31Validator
from tests.support.http_client import Client
from tests.support.http_shop import TURNS
from tests.support.server import Server

from perdure.serve.http.app import ROUTES
from perdure.serve.http.openapi import ANYWHERE, description
from perdure.serve.http.table import Route

YAML = """
session_stores: {main: {backend: sql, sql: {driver: sqlite, database: ./h.db}}}
llms: {told: {provider: scripted, script: turns.json}}
agents:
  shop:
    llm: told
    session_store: main
    tools: [tests.support.shop:refund, tests.support.http_shop:deploy, ask_user]
tasks: {limits: {timeout: 86399999ms}}  # the longest that an operator can allow
server:
  rate_limit: {per_source: 100000/s, per_id: 100000/s}
"""
TOKENS = "  tokens: [{name: ops, token: ops-token, role: admin}]\n"
LIMITS = """
# What an archive is, a schema cannot say.
[[operations]]
include-path-regex = "/import$"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 409]

# The server of this test has no sandbox, so that no command of a fuzzer ever runs.
[[operations]]
include-path-regex = "/(tasks|exec)$"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
"""
EVERYTHING = "examples,coverage,fuzzing,stateful"


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


async def test_every_path_refuses_other_methods_with_those_that_it_documents(
    client: Client,
) -> None:
    for path, operations in (await described(client))["paths"].items():
        accepted = {method.upper() for method in operations}
        for status in (operation["responses"]["405"] for operation in operations.values()):
            assert status["headers"]["Allow"]["schema"] == {"type": "string"}, path
        address = re.sub(r"\{\w+\}", "1", path)
        answer = await client.request("TRACE", address)
        allowed = accepted | ({"HEAD"} if "GET" in accepted else set())
        assert answer.status_code == 405, path
        assert answer.headers["Allow"] == ", ".join(sorted(allowed)), path


def test_an_operation_has_the_name_of_its_function_and_every_type_has_a_name() -> None:
    operations = {
        (path, method.upper()): operation
        for path, methods in description(ROUTES)["paths"].items()
        for method, operation in methods.items()
    }
    for route in ROUTES:
        if route.run is None or not route.is_described:
            continue
        operation = operations.pop((route.path, route.method))
        assert operation["operationId"] == (route.name or route.run.__name__)
        for content in (operation.get("requestBody"), *operation["responses"].values()):
            for media_type, item in (content or {"content": {}})["content"].items():
                if media_type == "application/json" and route.path != "/openapi.json":
                    kinds = item["schema"].get("anyOf", [item["schema"]])
                    assert all(set(kind) == {"$ref"} for kind in kinds), (route.path, kinds)
    assert operations == {}


def test_only_a_function_with_several_routes_has_operations_of_other_names() -> None:
    functions = Counter(route.run for route in ROUTES if route.run is not None and not route.name)
    assert [run.__name__ for run, number in functions.items() if number > 1] == []


def test_archives_and_files_are_bytes_without_a_name() -> None:
    paths = description(ROUTES)["paths"]
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    assert paths["/tasks/{task_id}/import"]["post"]["requestBody"]["content"] == binary
    exported = paths["/tasks/{task_id}/checkpoints/{checkpoint_id}/export"]["get"]
    assert exported["responses"]["200"]["content"] == binary
    assert paths["/tasks/{task_id}/files"]["put"]["requestBody"]["content"] == binary


def test_bodies_that_need_one_of_several_keys_say_so() -> None:
    shown = description(ROUTES)
    schemas = shown["components"]["schemas"]
    items = schemas["DecisionsBody"]["properties"]["decisions"]["items"]
    assert items["discriminator"]["propertyName"] == "decision"
    assert set(items["discriminator"]["mapping"]) == {"approve", "edit", "deny", "respond"}
    assert schemas["EditItem"]["required"] == ["decision", "pendingID", "args"]
    messages = shown["paths"]["/sessions/{session_id}/messages"]["post"]["requestBody"]
    kinds = messages["content"]["application/json"]["schema"]["anyOf"]
    names = [kind["$ref"].rpartition("/")[2] for kind in kinds]
    assert names == ["ContentMessage", "DecisionMessage"]
    assert [schemas[name]["required"] for name in names] == [["content"], ["taskID", "decision"]]
    assert [name for name in schemas if "if" in schemas[name]] == ["FileIn", "NewSessionBody"]


@pytest.mark.parametrize("keys", ["", "data", "url", "blob", "data url", "url blob", "data blob"])
def test_a_file_part_has_exactly_one_source(keys: str) -> None:
    schema = description(ROUTES)["components"]["schemas"]["FileIn"]
    part = {"type": "file", "mediaType": "image/png"} | dict.fromkeys(keys.split(), "QUJD")
    assert OAS31Validator(schema).is_valid(part) is (len(keys.split()) == 1)


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.body_types and route.body is not msgspec.Raw]
)
def test_a_body_that_is_described_in_parts_has_the_keys_that_are_decoded(route: Route) -> None:
    decoded = {
        item.encode_name: item.type
        for kind in (getattr(route.body, "__args__", None) or (route.body,))
        for item in msgspec.structs.fields(kind)
    }
    described = {
        item.encode_name for kind in route.body_types for item in msgspec.structs.fields(kind)
    }
    assert described <= set(decoded)
    assert set(decoded) - described <= {"pendingID"}  # that the path has


def test_without_tokens_no_operation_has_a_security() -> None:
    shown = json.dumps(description(ROUTES, has_tokens=False))
    assert '"security"' not in shown
    assert "securitySchemes" not in shown
    assert "bearer" not in shown


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


@pytest.mark.parametrize(
    "examples, has_tokens, phases",
    [
        pytest.param(5, True, "coverage,fuzzing", id="5 examples"),
        pytest.param(50, True, EVERYTHING, marks=pytest.mark.conformance, id="50 examples"),
        pytest.param(50, False, EVERYTHING, marks=pytest.mark.conformance, id="50, no tokens"),
    ],
)
def test_a_running_server_answers_only_what_it_documents(
    tmp_path: Path, examples: int, has_tokens: bool, phases: str
) -> None:
    """All checks of schemathesis, with a fixed seed; a stream that never ends is left out."""
    signal.alarm(examples * 120)  # it asks thousands of questions, and a busy machine takes time
    (tmp_path / "perdure.yaml").write_text(YAML + (TOKENS if has_tokens else ""))
    (tmp_path / "turns.json").write_text(json.dumps(TURNS))
    (tmp_path / "schemathesis.toml").write_text(LIMITS)
    with Server(tmp_path, "--config", "perdure.yaml") as server:
        options = {
            "--checks": "all",
            "--phases": phases,
            "--seed": "1",
            "--max-examples": str(examples),
            "--request-timeout": "20",
            "--exclude-path": "/async-tool/events",
            **({"--header": "Authorization: Bearer ops-token"} if has_tokens else {}),
        }
        flat = [part for option in options.items() for part in option]
        program = str(Path(sys.executable).with_name("schemathesis"))
        command = [program, "run", f"{server.url}/openapi.json", *flat, "--no-color"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout.partition(" FAILURES ")[2][:6000]
        assert "Traceback" not in server.log()


def test_descriptions_of_types_are_text_without_the_indentation_of_the_source() -> None:
    schemas = description(ROUTES)["components"]["schemas"]
    texts = [schema.get("description", "") for schema in schemas.values()]
    assert any("\n" in text for text in texts)
    assert [text for text in texts if "\n " in text] == []


def test_the_words_of_a_view_are_described() -> None:
    schemas = description(ROUTES)["components"]["schemas"]
    call, finding = schemas["PendingCall"]["properties"], schemas["Finding"]["properties"]
    assert call["kind"] == {"enum": ["approval", "child", "question", "timer", "tool"]}
    assert "cancel" in call["can"]["items"]["enum"]
    assert finding["severity"] == {"enum": ["error", "ok", "waiting", "warning"]}
