"""MCP over HTTP: access rules, bad requests, tasks of the extension, and the raw form."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.mcp_client import RawClient, connected, error_code, fields

from perdure import Agent, Principal, Runtime, asgi, tool
from perdure.app import service_of
from perdure.config import McpConfig, load
from perdure.core.roles import ROLES
from perdure.options import TaskOptions
from perdure.serve.assembly import mounts
from perdure.serve.http.app import Mount, application
from perdure.serve.http.auth import local_authenticator
from perdure.serve.http.middleware import LOOPBACK, Rules
from perdure.serve.mcp.endpoint import PATH, McpEndpoint
from perdure.serve.mcp.toolbox import McpOptions
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

TOKENS = {f"{role}-token": Principal(role, role) for role in ROLES} | {
    "a-token": Principal("a", "admin", "acme"),
    "b-token": Principal("b", "admin", "bolt"),
    "a2-token": Principal("a2", "admin", "acme"),
}
INSTANT = datetime(2026, 1, 31, 12, tzinfo=UTC)
WAIT_S = 30
MakeHttp = Callable[..., httpx2.AsyncClient]


@tool(requires_approval=True)
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def agents() -> list[Agent[Any]]:
    question = {"tool": "ask_user", "args": {"question": "Which color?"}}
    names = {"question": "Who?", "schema": {"type": "object", "properties": _FORM}}
    return [
        Agent("done", model=ScriptedModel([{"text": "ready"}, {"text": "again"}])),
        Agent("never", model=ScriptedModel([{"text": "late", "delay_ms": 600_000}])),
        Agent("broken", model=ScriptedModel([{"error": {"text": "no", "code": "X"}}]), retries=0),
        Agent(
            "asks",
            model=ScriptedModel([{"calls": [question]}, {"text": "thanks"}]),
            tools=["ask_user"],
        ),
        Agent(
            "form",
            model=ScriptedModel([{"calls": [{"tool": "ask_user", "args": names}]}, {"text": "ok"}]),
            tools=["ask_user"],
        ),
        Agent(
            "payer",
            model=ScriptedModel(
                [{"calls": [{"tool": "pay", "args": {"cents": 5}}]}, {"text": "p"}]
            ),
            tools=[pay],
        ),
    ]


_FORM = {"name": {"type": "string"}, "age": {"type": "integer"}}


@pytest.fixture
async def rt(tmp_path: Path) -> AsyncIterator[Runtime]:
    """Open runtime with a worker and agents."""
    tasks: TaskOptions = {"root": str(tmp_path / "tasks")}
    async with Runtime(MemoryStore(), agents=agents(), tasks=tasks, worker=True) as opened:
        yield opened


@pytest.fixture
async def http(rt: Runtime) -> AsyncIterator[MakeHttp]:
    """Return a factory of HTTP clients with a token."""
    app = asgi(rt, auth=TOKENS)
    clients: list[httpx2.AsyncClient] = []

    def make(role: str | None = "admin", **headers: str) -> httpx2.AsyncClient:
        sent = {} if role is None else {"Authorization": f"Bearer {role}-token"}
        transport = httpx2.ASGITransport(app=app)
        client = httpx2.AsyncClient(
            transport=transport, base_url="http://perdure", headers={**sent, **headers}, timeout=30
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
def raw(http: MakeHttp) -> Callable[..., RawClient]:
    """Return a factory of clients that send exactly what a test says."""

    def make(role: str = "admin", **options: Any) -> RawClient:
        return RawClient(http(role), **options)

    return make


# --- access ---------------------------------------------------------------------------------------

ALLOWED = {
    "list_tasks": {"viewer", "approver", "operator", "admin"},
    "get_task_status": {"viewer", "approver", "operator", "admin"},
    "create_task_sandbox": {"operator", "admin"},
    "attach_agent_to_task": {"operator", "admin"},
    "detach_agent_from_task": {"operator", "admin"},
    "execute_in_task": {"operator", "admin"},
    "cancel_task": {"operator", "admin"},
    "delete_task": {"admin"},
}
ARGUMENTS = {
    "list_tasks": {},
    "create_task_sandbox": {"name": "x"},
    "attach_agent_to_task": {"taskId": "none", "agentId": "a"},
    "detach_agent_from_task": {"taskId": "none", "agentId": "a"},
    "execute_in_task": {"taskId": "none", "command": "true"},
}


@pytest.mark.parametrize("role", [role for role in ROLES if role != "submitter"])
async def test_a_tool_needs_the_role_of_its_http_route(
    raw: Callable[..., RawClient], role: str
) -> None:
    for name, roles in ALLOWED.items():
        result = await raw(role).call(name, **ARGUMENTS.get(name, {"taskId": "none"}))
        code = result["structuredContent"].get("error", {}).get("code")
        assert (code == "NOT_ALLOWED") is (role not in roles), (name, role)


async def test_a_caller_without_a_token_is_asked_for_one(http: MakeHttp) -> None:
    for path in ("/mcp", "/mcp/compat"):
        response = await http(None).post(path, json={})
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert (await http("submitter").post(path, json={})).status_code == 403
        assert (await http("wrong").post(path, json={})).status_code == 401


async def test_a_page_of_another_site_is_refused(http: MakeHttp) -> None:
    response = await http(Origin="https://evil.example").post("/mcp", json={})
    assert (response.status_code, response.json()["code"]) == (403, "ORIGIN_NOT_ALLOWED")


async def test_a_tenant_sees_its_own_tasks_only(raw: Callable[..., RawClient]) -> None:
    created = await raw("a").call("create_task_sandbox", name="x", taskId="shared-name")
    assert created["structuredContent"]["success"]
    assert (await raw("a2").call("list_tasks"))["structuredContent"]["count"] == 1
    assert (await raw("b").call("list_tasks"))["structuredContent"]["count"] == 0
    foreign = await raw("b").call("get_task_status", taskId="shared-name")
    assert foreign["structuredContent"]["error"]["code"] == "TASK_NOT_FOUND"
    read = await raw("b").request("resources/read", {"uri": "task://shared-name"})
    assert (read["error"]["code"], read["error"]["data"]["code"]) == (-32602, "TASK_NOT_FOUND")


# --- bad requests ---------------------------------------------------------------------------------

HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}


@pytest.mark.parametrize(
    "body, code",
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"no/such"}', -32602),
        (b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}', -32600),
        (b'"text"', -32600),
    ],
)
async def test_a_bad_body_is_the_protocols_error_and_the_server_stays_up(
    http: MakeHttp, raw: Callable[..., RawClient], body: bytes, code: int
) -> None:
    """S3.15"""
    headers = {**HEADERS, "Content-Type": "application/json"}
    response = await http().post("/mcp", content=body, headers=headers)
    assert 400 <= response.status_code < 500
    assert response.json()["error"]["code"] == code
    assert (await raw().call("list_tasks"))["isError"] is False


async def test_a_header_that_does_not_match_is_refused(raw: Callable[..., RawClient]) -> None:
    client = raw()
    params = {"name": "list_tasks", "arguments": {}}
    for headers in (
        {"Mcp_Method": "tools/list"},
        {"Mcp_Method": "tasks/get"},
        {"Mcp_Name": "other"},
        {"Mcp_Name": "get_task_status"},
    ):
        assert (await client.request("tools/call", params, **headers))["error"]["code"] == -32020
    unknown = await client.request("tools/call", params, MCP_Protocol_Version="2031-01-01")
    assert unknown["error"]["code"] in (-32020, -32022)
    missing = await client.request("no/such", {})
    assert missing["error"]["code"] == -32601


async def test_arguments_beyond_the_limit_of_the_server_are_refused(
    http: MakeHttp, raw: Callable[..., RawClient]
) -> None:
    arguments = {"name": "x", "metadata": {"blob": "x" * 11_000_000}}
    response = await raw().post(
        "tools/call", {"name": "create_task_sandbox", "arguments": arguments}
    )
    assert response.status_code == 413
    large = {"name": "x", "metadata": {"blob": "x" * 5_000_000}}  # above the SDK's own limit
    response = await raw().post("tools/call", {"name": "create_task_sandbox", "arguments": large})
    assert response.status_code == 200
    assert response.json()["result"]["structuredContent"]["error"]["code"] == "TASK_CREATE_FAILED"
    assert (await http().get("/mcp/other")).status_code == 404


async def test_64_calls_at_once_are_independent(raw: Callable[..., RawClient]) -> None:
    """S3.15"""
    client, answers = raw(), []

    async def one(number: int) -> None:
        arguments = {"name": f"n{number}"} if number % 2 else {"name": " "}
        answers.append((number, await client.call("create_task_sandbox", **arguments)))

    async with anyio.create_task_group() as tasks:
        for number in range(64):
            tasks.start_soon(one, number)
    assert all(answer["isError"] is (number % 2 == 0) for number, answer in answers)
    assert (await client.call("list_tasks"))["structuredContent"]["count"] == 32


async def test_without_the_sdk_the_error_says_what_to_install(
    http: MakeHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.serve.mcp.endpoint._SDK", "mcp.not_installed")
    response = await http().post("/mcp", json={}, headers=HEADERS)
    assert (response.status_code, response.json()["code"]) == (404, "MCP_NOT_INSTALLED")
    assert "perdure[mcp]" in response.json()["hint"]
    assert (await http().get("/agents")).status_code == 200


def test_an_operator_can_switch_it_off(tmp_path: Path) -> None:
    file = tmp_path / "perdure.yaml"
    file.write_text("server: {mcp: {enabled: false, block: 10s, approve: true, links: true}}")
    config = load(file).server.mcp
    assert (config.block.total_seconds(), config.approve, config.links) == (10, True, True)
    assert mounts(config) == ()
    assert [mount.path for mount in mounts(McpConfig())] == ["/mcp"]


# --- tasks of the extension -----------------------------------------------------------------------


async def until(client: RawClient, task: str, *statuses: str) -> dict[str, Any]:
    with anyio.fail_after(WAIT_S):
        while True:
            value = await client.request("tasks/get", {"taskId": task})
            if value["status"] in statuses:
                return value
            await anyio.sleep(0.01)


async def launch(client: RawClient, agent: str) -> str:
    value = await client.call("background_task", agent=agent, prompt="go")
    assert (value["resultType"], value["ttlMs"]) == ("task", None)
    return str(value["taskId"])


async def test_a_long_call_is_a_task_for_a_client_that_knows_tasks(
    raw: Callable[..., RawClient],
) -> None:
    client = raw()
    value = await until(client, await launch(client, "done"), "completed")
    assert value["result"]["structuredContent"]["output"] == "ready"
    assert json.loads(value["result"]["content"][0]["text"])["output"] == "ready"
    value = await until(client, await launch(client, "broken"), "completed")
    assert value["result"]["isError"] is True
    task = await launch(client, "never")
    assert (await client.request("tasks/get", {"taskId": task}))["status"] == "working"
    for _ in range(2):  # cancelling again does nothing
        assert "error" not in await client.request("tasks/cancel", {"taskId": task})
    assert (await until(client, task, "cancelled"))["status"] == "cancelled"


@pytest.mark.parametrize("has_links", [True, False])
async def test_results_link_to_resources_only_if_the_configuration_says_so(
    task_options: TaskOptions, has_links: bool
) -> None:
    """Over HTTP, of a call that is answered at once, that waits, and that is a task."""
    protocols = mounts(McpConfig(links=has_links))
    async with Runtime(MemoryStore(), tasks=task_options, worker=True) as rt:
        app = application(
            rt, local_authenticator(LOOPBACK), Rules(hosts=LOOPBACK), mounts=protocols
        )
        transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            client, waiting = RawClient(http), RawClient(http, extensions={})
            answers = [await client.call("create_task_sandbox", name="x", taskId="t")]
            await client.call("attach_agent_to_task", taskId="t", agentId="me")
            answers.append(await waiting.call("execute_in_task", taskId="t", command="true"))
            handle = await client.call("execute_in_task", taskId="t", command="true")
            answers.append((await until(client, handle["taskId"], "completed"))["result"])
    kinds = [[item["type"] for item in answer["content"]] for answer in answers]
    links = ["resource_link"] if has_links else []
    assert kinds == [["text", *links], ["text", *links * 2], ["text", *links * 2]]


async def test_an_earlier_run_keeps_its_own_result_after_the_agent_was_resumed(
    raw: Callable[..., RawClient],
) -> None:
    client = raw()
    first = await launch(client, "done")
    done = await until(client, first, "completed")
    name = done["result"]["structuredContent"]["task_id"]
    resumed = await client.call("background_resume", task_id=name, message="more", block=True)
    second = await until(client, resumed["taskId"], "completed")
    assert second["result"]["structuredContent"]["output"] == "again"
    value = await client.request("tasks/get", {"taskId": first})
    assert value["result"]["structuredContent"]["output"] == "ready"


async def test_a_task_belongs_to_its_principal_and_tenant(raw: Callable[..., RawClient]) -> None:
    task = await launch(raw("a"), "never")
    for name in ("a2", "b", "admin"):
        for method in ("tasks/get", "tasks/cancel"):
            error = (await raw(name).request(method, {"taskId": task}))["error"]
            assert (error["code"], error["data"]["code"]) == (-32602, "TASK_NOT_FOUND")
    assert (await raw("a").request("tasks/get", {"taskId": task}))["status"] == "working"
    other = await raw("a").request("tasks/get", {"taskId": task}, Mcp_Name="call_other")
    assert other["error"]["code"] == -32020
    undeclared = await raw("a", extensions={}).request("tasks/get", {"taskId": task})
    assert undeclared["error"]["code"] == -32021


async def test_a_question_of_an_agent_is_answered_with_an_update(
    raw: Callable[..., RawClient],
) -> None:
    client = raw()
    task = await launch(client, "asks")
    value = await until(client, task, "input_required")
    ((key, request),) = value["inputRequests"].items()
    assert request["params"]["message"] == "Which color?"
    wrong = {"taskId": task, "inputResponses": {key: {"action": "shrug"}}}
    assert (await client.request("tasks/update", wrong))["error"]["code"] == -32602
    unknown = {"taskId": task, "inputResponses": {"p_none": {"action": "accept", "content": {}}}}
    assert "error" not in await client.request("tasks/update", unknown)
    assert (await client.request("tasks/get", {"taskId": task}))["status"] == "input_required"
    answer = {"action": "accept", "content": {"answer": "blue"}}
    for _ in range(2):  # the second one changes nothing
        update = {"taskId": task, "inputResponses": {key: answer}}
        assert "error" not in await client.request("tasks/update", update)
    done = await until(client, task, "completed")
    assert done["result"]["structuredContent"]["output"] == "thanks"


async def test_a_client_that_cannot_ask_a_person_cannot_answer_for_one(
    raw: Callable[..., RawClient],
) -> None:
    task = await launch(raw(), "asks")
    value = await until(raw(), task, "input_required")
    (key,) = value["inputRequests"]
    blind = raw(shows_forms=False)
    assert (await blind.request("tasks/get", {"taskId": task}))["status"] == "working"
    answer = {"action": "accept", "content": {"answer": "blue"}}
    update = {"taskId": task, "inputResponses": {key: answer}}
    assert (await blind.request("tasks/update", update))["error"]["code"] == -32021
    assert (await raw().request("tasks/get", {"taskId": task}))["status"] == "input_required"


async def test_a_question_with_a_schema_is_a_form(raw: Callable[..., RawClient]) -> None:
    client = raw()
    task = await launch(client, "form")
    value = await until(client, task, "input_required")
    ((key, request),) = value["inputRequests"].items()
    assert request["params"]["requestedSchema"]["properties"] == _FORM
    content = {"name": "Ana", "age": 30}
    update = {"taskId": task, "inputResponses": {key: {"action": "accept", "content": content}}}
    assert "error" not in await client.request("tasks/update", update)
    await until(client, task, "completed")


async def test_an_approval_is_not_an_input_unless_the_operator_allows_it(
    raw: Callable[..., RawClient],
) -> None:
    client = raw()
    task = await launch(client, "payer")
    with anyio.fail_after(WAIT_S):
        value = await client.request("tasks/get", {"taskId": task})
        while "statusMessage" not in value:
            await anyio.lowlevel.checkpoint()  # nothing here waits for a network or a disk
            value = await client.request("tasks/get", {"taskId": task})
    assert value["status"] == "working"
    assert "list_pending" in value["statusMessage"]
    listed = (await client.call("list_pending"))["structuredContent"]
    assert (listed["count"], listed["pending"][0]["tool"]) == (1, "pay")
    unknown = await client.call("respond_pending", pendingID="x", decision="approve")
    assert unknown["error"]["data"]["code"] == "TOOL_NOT_FOUND"


async def test_an_approval_is_edited_with_an_update_where_the_operator_allows_it(
    rt: Runtime,
) -> None:
    rules = Rules(hosts=frozenset(LOOPBACK))
    mount = Mount(PATH, lambda state, rules: McpEndpoint(state, rules, McpOptions(approve=True)))
    app = application(rt, local_authenticator(LOOPBACK), rules, mounts=[mount])
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        client = RawClient(http)
        task = await launch(client, "payer")
        value = await until(client, task, "input_required")
        ((key, request),) = value["inputRequests"].items()
        fields = request["params"]["requestedSchema"]["properties"]
        assert fields["args.cents"]["default"] == 5
        for action in ("decline", "cancel"):  # they decide nothing
            update = {"taskId": task, "inputResponses": {key: {"action": action}}}
            assert "error" not in await client.request("tasks/update", update)
        await until(client, task, "input_required")
        answer = {"action": "accept", "content": {"decision": "edit", "args.cents": 4}}
        update = {"taskId": task, "inputResponses": {key: answer}}
        assert "error" not in await client.request("tasks/update", update)
        await until(client, task, "completed")
    decision = (await service_of(rt).calls.get(key)).decision
    assert decision is not None
    assert (decision.kind, decision.args) == ("edit", {"cents": 4})


@pytest.mark.parametrize(
    "declared, expected",
    [({}, True), ({"form": {}}, True), ({"form": {}, "url": {}}, True), ({"url": {}}, False)],
)
async def test_only_a_client_that_shows_forms_is_asked(
    raw: Callable[..., RawClient], declared: dict[str, Any], expected: bool
) -> None:
    client = raw(extensions={}, elicitation=declared)
    launched = await client.call("background_task", agent="asks", prompt="go")
    task = launched["structuredContent"]["task_id"]
    with anyio.fail_after(WAIT_S):
        result = await client.call("background_output", task_id=task, block=True)
    assert (result["resultType"] == "input_required") is expected
    assert expected or len(result["structuredContent"]["waitingFor"]) == 1


# --- the raw form ---------------------------------------------------------------------------------

REQUEST = """{
  "jsonrpc": "2.0",
  "id": 1,
  "method": "tools/call",
  "params": {
    "name": "create_task_sandbox",
    "arguments": {
      "taskId": "task_1234567890",
      "name": "My Task",
      "owner": "agent-1"
    }
  }
}"""
SUCCESS = """{
  "jsonrpc": "2.0",
  "id": 1,
  "result": {
    "success": true,
    "taskId": "task_1234567890",
    "status": "pending",
    "createdAt": "2026-01-31T12:00:00.000Z"
  }
}"""
FAILURE = """{
  "jsonrpc": "2.0",
  "id": 1,
  "error": {
    "code": "TOOL_NOT_FOUND",
    "message": "Tool 'unknown_tool' not found",
    "details": {
      "requested": "unknown_tool",
      "available": ["create_task_sandbox", "attach_agent_to_task", ...]
    }
  }
}"""


async def test_the_raw_form_is_that_of_the_published_samples_byte_for_byte(
    tmp_path: Path,
) -> None:
    """S3.13, S3.14, SX.5, SX.6"""
    store = MemoryStore(ManualClock(INSTANT))
    async with Runtime(store, tasks={"root": str(tmp_path / "tasks")}) as rt:
        transport = httpx2.ASGITransport(app=asgi(rt, auth=TOKENS))
        headers = {"Authorization": "Bearer admin-token"}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://perdure", headers=headers
        ) as client:
            created = await client.post("/mcp/compat", content=REQUEST)
            assert (created.status_code, created.text) == (200, SUCCESS)
            unknown = REQUEST.replace("create_task_sandbox", "unknown_tool")
            refused = await client.post("/mcp/compat", content=unknown)
            names = ", ".join(f'"{name}"' for name in ALLOWED_ORDER)
            expected = FAILURE.replace('"create_task_sandbox", "attach_agent_to_task", ...', names)
            assert (refused.status_code, refused.text) == (404, expected)


ALLOWED_ORDER = [
    *("create_task_sandbox", "attach_agent_to_task", "detach_agent_from_task", "execute_in_task"),
    *("list_tasks", "get_task_status", "cancel_task", "delete_task"),
]


async def test_the_raw_form_says_at_once_for_whom_an_agent_waits(http: MakeHttp) -> None:
    async def call(name: str, **arguments: Any) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        result: dict[str, Any] = (await http().post("/mcp/compat", json=body)).json()["result"]
        return result

    launched = await call("background_task", agent="payer", prompt="go")
    with anyio.fail_after(WAIT_S):  # less than it may block
        value = await call("background_output", task_id=launched["task_id"], block=True)
    assert (value["status"], value["waitingFor"][0]["tool"]) == ("running", "pay")


@pytest.mark.parametrize(
    "change, text",
    [
        ({"command": " "}, "the command is empty"),
        ({"timeout": 0}, "timeout is 0 ms, and must be above 0 and at most 3600000 ms (1h)"),
        ({"timeout": -1}, "timeout is -1 ms"),
        ({"timeout": 10**10}, "timeout is 10000000000 ms"),
        ({"timeout": 10**400}, "timeout must be a number of milliseconds"),
    ],
)
async def test_a_bad_command_or_timeout_is_an_invalid_request_on_every_surface(
    rt: Runtime, http: MakeHttp, change: dict[str, Any], text: str
) -> None:
    """S3.13: in the unit that the caller used."""
    args = {"command": "true", **change}
    async with connected(rt) as client:
        await client.call_tool("create_task_sandbox", {"name": "x", "taskId": "t"})
        by_tool = await client.call_tool("execute_in_task", {"taskId": "t", **args})
        params = {"name": "execute_in_task", "arguments": {"taskId": "t", **args}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        raw = await http().post("/mcp/compat", json=body)
        plain = await http().post("/tasks/t/exec", json=args)
    assert error_code(by_tool) == "INVALID_REQUEST"
    assert text in fields(by_tool)["error"]["message"]
    assert (raw.status_code, raw.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert text in raw.json()["error"]["message"]
    assert (plain.status_code, plain.json()["code"]) == (400, "INVALID_REQUEST"), plain.text
    assert text in plain.json()["error"]


@pytest.mark.parametrize("number", ["x", 7, 1.5, None])
async def test_the_raw_form_echoes_ids_and_leaves_notifications_unanswered(
    http: MakeHttp, number: Any
) -> None:
    """S3.14, S3.15"""
    body = {"jsonrpc": "2.0", "id": number, "method": "tools/call"}
    body["params"] = {"name": "list_tasks", "arguments": {}}
    reply = (await http().post("/mcp/compat", json=body)).json()
    assert (reply["id"], reply["result"]["count"]) == (number, 0)
    del body["id"]
    response = await http().post("/mcp/compat", json=body)
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize(
    "body, status, code",
    [
        ("{", 400, "INVALID_REQUEST"),
        ("[]", 400, "INVALID_REQUEST"),
        ('{"jsonrpc": "2.0", "id": NaN, "method": "tools/list"}', 400, "INVALID_REQUEST"),
        ('{"jsonrpc": "2.0", "id": "\\ud800", "method": "tools/list"}', 400, "INVALID_REQUEST"),
        ('{"jsonrpc": "2.0", "id": 1, "method": "other"}', 400, "INVALID_REQUEST"),
        ('{"jsonrpc": "1.0", "id": 1, "method": "tools/call"}', 400, "INVALID_REQUEST"),
        (REQUEST.replace('"name": "My Task"', '"name": ""'), 400, "TASK_CREATE_FAILED"),
        (
            REQUEST.replace("create_task_sandbox", "get_task_status").replace(
                ',\n      "name": "My Task",\n      "owner": "agent-1"', ""
            ),
            404,
            "TASK_NOT_FOUND",
        ),
    ],
)
async def test_the_raw_form_answers_errors_with_their_http_status(
    http: MakeHttp, body: str, status: int, code: str
) -> None:
    """S3.13"""
    response = await http().post("/mcp/compat", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
