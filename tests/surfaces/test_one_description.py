"""One table, seven rows: a scene is the same on each surface, and refused with the same code."""

import html
import json
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import httpx2
import pytest
from click.testing import CliRunner
from tests.support.mcp_client import RawClient
from tests.support.server import Server, run

from perdure import PerdureError, Principal, Runtime
from perdure.background import BackgroundManager
from perdure.cli.root import cli
from perdure.core.session.naming import session_stream

TOOLS: Final = '''
import os
import signal

from perdure import tool


@tool(requires_approval=True)
def refund(cents: int) -> str:
    """Pay money back."""
    return f"refunded {cents}"


@tool(idempotent=True)
def die() -> str:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "alive"
'''
PEOPLE: Final = {"ana": "approver", "ben": "approver", "ops": "admin"}
CAN: Final = ("approve", "deny", "respond")  # what every surface offers in some form
KILLS: Final = 3


def calls(*items: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a turn that calls tools."""
    return {"text": "I act.", "calls": [{"tool": name, "args": args} for name, args in items]}


REFUND: Final = calls(("refund", {"cents": 5}))
LAUNCH: Final = calls(("background_task", {"agent": "open", "prompt": "Go"}))
READ: Final = calls(("background_output", {"task_id": "bg_", "block": True}))


def token_of(name: str) -> str:
    """Return the token of a person."""
    return f"{name}-token-0123456789"


def words(text: str) -> str:
    """Return the words of a page or of a text, to find one in the other."""
    plain = html.unescape(re.sub(r"<[^>]*>", " ", text)).lower()
    return " ".join(re.findall(r"[a-z0-9_]+", plain))


class Browser:
    """A person in front of the pages, with plain requests and forms."""

    def __init__(self, server: Server) -> None:
        headers = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
        self._http = server.http(headers=headers)
        self._origin = {"Origin": server.url}
        signed = self.post("/sign-in", "/sign-in", answer=token_of("ben"))
        assert signed.status_code == 303, words(signed.text)

    def read(self, path: str) -> str:
        """Return a page."""
        answer = self._http.get(path)
        assert answer.status_code == 200, words(answer.text)
        return answer.text

    def post(self, page: str, path: str, **form: str) -> httpx2.Response:
        """Submit a form with the token of a page."""
        token = self.read(page).partition('name="form_token" value="')[2].partition('"')[0]
        return self._http.post(path, data={"form_token": token, **form}, headers=self._origin)


@dataclass(frozen=True)
class Shop:
    """A folder with a project and its server."""

    folder: Path
    server: Server
    browser: Browser

    async def cli(self, *words: str, is_remote: bool = False) -> tuple[int, Any]:
        """Run a command as ben in this process; return its exit code and what it prints."""
        remote = ("--server", self.server.url) if is_remote else ()
        environment = {"PERDURE_TOKEN": token_of("ben")}
        invoke = partial(CliRunner().invoke, cli, [*words, *remote, "--json"], env=environment)
        done = await anyio.to_thread.run_sync(invoke)
        text = done.stdout or done.stderr
        return done.exit_code, json.loads(text[text.index("{") :])


@dataclass(frozen=True)
class Place:
    """A session of the shop, and the call and the task in question, if there are any."""

    shop: Shop
    session: str
    call: str | None = None
    task: str | None = None


@dataclass(frozen=True)
class Description:
    """What a surface says; None: it does not say it."""

    session: tuple[str, ...] | None = None  # codes of findings, worst first
    call: tuple[str, ...] | None = None
    task: tuple[str, ...] | None = None
    can: tuple[str, ...] | None = None
    missing_approvals: int | None = None


FIELDS: Final = tuple(item.name for item in fields(Description))


def nothing(_: Server) -> None:
    """Leave everything as it is."""


def decided(verb: str, session: str) -> Callable[[Server], None]:
    """Let ana decide the call of a session."""

    def decide(server: Server) -> None:
        http = server.http(token_of("ana"))
        (call,) = http.get("/pending", params={"sessionID": session}).json()["pending"]
        assert http.post(f"/pending/{call['id']}/{verb}").status_code == 200

    return decide


def undriven(server: Server) -> None:
    """Send a message to a session that nobody drives."""
    body = {"agent": "open", "message": "Go", "sessionID": "no-worker"}
    assert server.http(token_of("ops")).post("/sessions", json=body).is_success


def damaged(server: Server) -> None:
    """Damage the first event of a session, which its entry says after a refused decision."""
    name = session_stream("", "damaged-log")
    with closing(sqlite3.connect(server.folder / "p.db", isolation_level=None)) as connection:
        connection.execute(
            "UPDATE record SET data = x'00' WHERE seq = 1 AND sid = "
            "(SELECT sid FROM stream WHERE id = ?)",
            (name,),
        )
    http = server.http(token_of("ana"))
    (call,) = http.get("/pending", params={"sessionID": "damaged-log"}).json()["pending"]
    refusal = http.post(f"/pending/{call['id']}/approve")
    assert refusal.json()["code"] == "STORE_CORRUPT"


@dataclass(frozen=True)
class Scene:
    """A session of an agent, what every surface shows of it, and how an approval is refused.

    `after`: the agent after the deploy, from which the server and the commands are started.
    """

    sees: Description
    agent: dict[str, Any] = field(default_factory=lambda: {"tools": [{"use": "shop:refund"}]})
    turns: tuple[dict[str, Any], ...] = (REFUND,)
    after: dict[str, Any] | None = field(default_factory=dict)  # None: the deploy removes it
    prepare: Callable[[Server], None] = nothing
    code: str | None = None  # None: it works
    is_run: bool = True
    is_about_people: bool = False  # what Python shows without a caller is for everybody
    listed: Description | None = None  # what a list of the calls of all sessions says instead


def refunds(**policy: Any) -> dict[str, Any]:
    """Return an agent whose refunds need approval."""
    return {"tools": [{"use": "shop:refund", **policy}]}


WAITS: Final = Description(("WAITING",), ("APPROVAL_NEEDED",), None, CAN, 1)
SCENES: Final = {
    "open": Scene(WAITS),
    "1-of-2-votes": Scene(
        replace(WAITS, can=("approve", "deny")),
        refunds(min_approvals=2),
        prepare=decided("approve", "1-of-2-votes"),
    ),
    "other-approver": Scene(
        replace(WAITS, can=()),
        refunds(approvers=["ana"]),
        code="NOT_AN_APPROVER",
        is_about_people=True,
    ),
    "decided": Scene(
        Description(("NO_WORKER",), ("SETTLED",), None, (), 0),
        prepare=decided("deny", "decided"),
        code="ALREADY_DECIDED",
    ),
    "tool-removed": Scene(
        Description(
            ("TOOL_MISSING",), ("TOOL_MISSING", "APPROVAL_NEEDED"), None, ("deny", "respond"), 1
        ),
        after={"tools": []},
        code="TOOL_MISSING",
    ),
    "agent-removed": Scene(WAITS, after=None),  # a worker elsewhere may have it
    "no-worker": Scene(Description(("NO_WORKER",)), prepare=undriven, is_run=False),
    "budget-reached": Scene(
        Description(("WAITING",), ("ANSWER_NEEDED",), None, ("deny", "respond"), 0),
        {"tools": ["todo_write"], "budget": {"turns": 1}},
        (calls(("todo_write", {"todos": []})),),
        code="WRONG_KIND",
    ),
    "child-waits": Scene(
        Description(("WAITING",), ("CHILD_NEEDED",), ("WAITING",), (), 0),
        {"sub_agents": ["open"]},
        (LAUNCH, READ),
        code="WRONG_KIND",
    ),
    "damaged-log": Scene(
        Description(("STORE_CORRUPT",), ("STORE_CORRUPT", "APPROVAL_NEEDED"), None, (), 1),
        prepare=damaged,
        code="STORE_CORRUPT",
        # It reads the entries of calls, and not that of each of their sessions.
        listed=Description(("STORE_CORRUPT",), ("APPROVAL_NEEDED",), None, CAN, 1),
    ),
    "three-SIGKILLs": Scene(
        Description(("POISONED",)), {"tools": ["shop:die"]}, (calls(("die", {})),)
    ),
}


# --- surfaces -------------------------------------------------------------------------------------


def _codes(shown: dict[str, Any]) -> tuple[str, ...]:
    return tuple(finding["code"] for finding in shown["findings"])


def _description(
    session: dict[str, Any] | None, call: dict[str, Any] | None, task: dict[str, Any] | None
) -> Description:
    """Return the description that JSON of a session, a call and a task gives."""
    return Description(
        None if session is None else _codes(session),
        None if call is None else _codes(call),
        None if task is None else _codes(task),
        None if call is None else tuple(act for act in CAN if act in call["can"]),
        None if call is None else call["missingApprovals"],
    )


async def _with_runtime(shop: Shop, use: Callable[[Runtime], Awaitable[Any]]) -> Any:
    async with Runtime.from_config(str(shop.folder / "perdure.yaml")) as rt:
        return await use(rt)


async def see_runtime(place: Place) -> Description:
    """Return what Python shows."""

    async def see(rt: Runtime) -> Description:
        session = await rt.session(place.session).get()
        listed = [one async for one in rt.pending(status="all") if one.id == place.call]
        tasks = (await BackgroundManager(rt).background_list())["tasks"]
        (task,) = [row for row in tasks if row["task_id"] == place.task] or [None]
        return _description(session.to_json(), listed[0].to_json() if listed else None, task)

    description: Description = await _with_runtime(place.shop, see)
    return description


async def see_cli(place: Place, *, is_remote: bool = False) -> Description:
    """Return what commands show."""

    async def show(group: str, name: str | None) -> Any:
        shown = None
        if name is not None:
            shown = (await place.shop.cli(group, "show", name, is_remote=is_remote))[1]
        return shown

    names = {"sessions": place.session, "pending": place.call, "tasks": place.task}
    return _description(*[await show(group, name) for group, name in names.items()])


async def see_http(place: Place) -> Description:
    """Return what HTTP shows."""
    http = place.shop.server.http(token_of("ben"))
    names = {"sessions": place.session, "pending": place.call, "tasks": place.task}
    return _description(
        *[http.get(f"/{group}/{name}").json() if name else None for group, name in names.items()]
    )


async def see_client(place: Place) -> Description:
    """Return what the client shows."""
    async with place.shop.server.client(token_of("ben")) as client:
        session = (await client.session(place.session).get()).to_json()
        call = place.call and (await client.pending_call(place.call)).to_json()
        task = place.task and (await client.background_task(place.task)).to_json()
    return _description(session, call or None, task or None)


async def see_mcp(place: Place) -> Description:
    """Return what MCP shows: open calls and background agents."""
    async with _mcp(place.shop) as client:
        told = await client.call("list_pending", sessionID=place.session)
        rows = {row["pendingID"]: row for row in told["structuredContent"]["pending"]}
        told = await client.call("background_list")
        tasks = {row["task_id"]: row for row in told["structuredContent"]["tasks"]}
    return _description(None, rows.get(place.call), tasks.get(place.task))


def _shown_codes(page: str, findings: list[dict[str, Any]], subject: str) -> tuple[str, ...]:
    """Return the codes of the findings whose sentence a page has."""
    present = words(page)
    sentences = {
        finding["code"]: words(
            finding["text"].partition("\n")[0].removeprefix(subject).partition(". ")[0]
        )
        for finding in findings
    }
    return tuple(code for code, text in sentences.items() if text.removeprefix("is ") in present)


async def see_page(place: Place) -> Description:
    """Return what pages show: the sentences of findings, the approvals, and the buttons."""
    server, session = place.shop.server, place.session
    browser, http = place.shop.browser, server.http(token_of("ben"))
    told = http.get(f"/sessions/{session}").json()["findings"]
    seen = _shown_codes(browser.read(f"/sessions/{session}"), told, f"Session {session} ")
    task: tuple[str, ...] | None = None
    if place.task is not None:
        told = http.get(f"/tasks/{place.task}").json()["findings"]
        task = _shown_codes(browser.read(f"/tasks/{place.task}"), told, "")
    if place.call is None:
        return Description(seen, None, task)
    page, call = browser.read(f"/pending/{place.call}"), http.get(f"/pending/{place.call}").json()
    buttons = {
        "approve": "data-approve",
        "deny": 'href="#deny"',
        "respond": f'action="/pending/{place.call}/respond"',
    }
    can = tuple(act for act in CAN if buttons[act] in page)
    problems = [item for item in call["findings"] if item["severity"] in ("warning", "error")]
    shown = _shown_codes(page, problems, "")
    assert shown == tuple(item["code"] for item in problems), words(page)
    votes = re.search(r"(\d) of (\d) approvals", page)
    missing = int(votes.group(2)) - int(votes.group(1)) if votes else None
    return Description(seen, None, task, can, missing)


# --- refusals -------------------------------------------------------------------------------------


async def _code(decision: Awaitable[Any]) -> str | None:
    try:
        await decision
    except PerdureError as error:
        return error.code
    return None


async def approve_runtime(place: Place) -> str | None:
    """Approve in Python."""

    async def approve(rt: Runtime) -> str | None:
        return await _code(rt.acting_as(Principal("ben", "approver")).approve(place.call or ""))

    code: str | None = await _with_runtime(place.shop, approve)
    return code


async def approve_cli(place: Place, *, is_remote: bool = False) -> str | None:
    """Approve with a command."""
    options = () if is_remote else ("--by", "ben", "--no-run")
    words = ("approve", place.call or "", *options)
    status, told = await place.shop.cli(*words, is_remote=is_remote)
    return str(told["code"]) if status in (2, 3, 4, 5, 7) else None


async def approve_http(place: Place) -> str | None:
    """Approve over HTTP."""
    http = place.shop.server.http(token_of("ben"))
    answer = http.post(f"/pending/{place.call}/approve")
    return None if answer.is_success else str(answer.json()["code"])


async def approve_page(place: Place) -> str | None:
    """Submit the form of a page that may be older than the call is now."""
    http = place.shop.server.http(token_of("ben"))
    refusal, path = http.post(f"/pending/{place.call}/approve"), f"/pending/{place.call}"
    answer = place.shop.browser.post("/", f"{path}/approve", confirmed="[]")
    if answer.status_code == 303:
        return None
    told, page = refusal.json(), words(answer.text)
    is_late = "what you sent was not recorded" in page
    assert answer.status_code == refusal.status_code, page
    assert is_late or words(told["error"]) in page, page
    return str(told["code"])


@asynccontextmanager
async def _mcp(shop: Shop) -> AsyncIterator[RawClient]:
    headers = {"Authorization": f"Bearer {token_of('ben')}"}
    async with httpx2.AsyncClient(base_url=shop.server.url, headers=headers) as http:
        yield RawClient(http)


async def approve_mcp(place: Place) -> str | None:
    """Approve over MCP."""
    async with _mcp(place.shop) as client:
        answer = await client.call("respond_pending", pendingID=place.call, decision="approve")
    told = answer["structuredContent"]
    return str(told["error"]["code"]) if answer["isError"] else None


async def approve_client(place: Place) -> str | None:
    """Approve with the client."""
    async with place.shop.server.client(token_of("ben")) as client:
        return await _code(client.approve(place.call or ""))


SEE: Final[dict[str, Callable[[Place], Awaitable[Description]]]] = {
    "Runtime": see_runtime,
    "CLI": see_cli,
    "CLI --server": partial(see_cli, is_remote=True),
    "HTTP": see_http,
    "page": see_page,
    "MCP": see_mcp,
    "Client": see_client,
}
APPROVE: Final[dict[str, Callable[[Place], Awaitable[str | None]]]] = {
    "Runtime": approve_runtime,
    "CLI": approve_cli,
    "CLI --server": partial(approve_cli, is_remote=True),
    "HTTP": approve_http,
    "page": approve_page,
    "MCP": approve_mcp,
    "Client": approve_client,
}


# --- the table ------------------------------------------------------------------------------------


def write_project(folder: Path, *, is_deployed: bool) -> None:
    """Write the configuration, before or after the deploy."""
    agents: dict[str, Any] = {}
    for name, scene in SCENES.items():
        if not is_deployed or scene.after is not None:
            (folder / f"{name}.json").write_text(json.dumps([*scene.turns, {"text": "Done."}]))
            changes = scene.after if is_deployed else None
            agents[name] = {"llm": name, "session_store": "main", **scene.agent, **(changes or {})}
    sql = {"driver": "sqlite", "database": str(folder / "p.db")}
    scripts = {
        name: {"provider": "scripted", "script": str(folder / f"{name}.json")} for name in agents
    }
    people = [{"name": n, "token": token_of(n), "role": role} for n, role in PEOPLE.items()]
    limits = {"per_source": "100000/s", "per_id": "100000/s"}
    config = {
        "session_stores": {"main": {"backend": "sql", "sql": sql}},
        "llms": scripts,
        "agents": agents,
        "recovery": {"poison_after": KILLS},
        "server": {"tokens": people, "mcp": {"approve": True}, "rate_limit": limits},
    }
    (folder / "perdure.yaml").write_text(json.dumps(config))


def start_sessions(folder: Path) -> None:
    """Start the sessions of all scenes; one of them kills each process that drives it."""
    for name, scene in SCENES.items():
        if scene.is_run and name != "three-SIGKILLs":
            done = CliRunner().invoke(cli, ["run", name, "Go", "-s", name])
            assert done.exit_code == 8, done.output
    ends = [run(folder, "run", "three-SIGKILLs", "Go", "-s", "three-SIGKILLs")]
    while ends[-1].returncode < 0:
        ends.append(run(folder, "sessions", "resume", "three-SIGKILLs"))
    codes = [end.returncode for end in ends]
    assert codes == [-signal.SIGKILL] * KILLS + [1], ends[-1].stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Shop after the deploy, with a server that drives nothing."""
    folder = tmp_path_factory.mktemp("surfaces")
    (folder / "shop.py").write_text(TOOLS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "shop", raising=False)
        write_project(folder, is_deployed=False)
        start_sessions(folder)
        write_project(folder, is_deployed=True)
        with Server(folder, "--no-worker") as server:
            yield Shop(folder, server, Browser(server))
        sys.modules.pop("shop", None)


def place_of(shop: Shop, name: str) -> Place:
    """Return the prepared place of a scene, with the call and the task of its session."""
    ops, scene = shop.server.http(token_of("ops")), SCENES[name]
    rows = ops.get("/pending", params={"sessionID": name}).json()["pending"]
    tasks = ops.get("/tasks", params={"parent": name}).json()["tasks"] if scene.sees.task else []
    scene.prepare(shop.server)
    call = rows[0]["id"] if rows else None
    return Place(shop, name, call, tasks[0]["id"] if tasks else None)


@pytest.mark.parametrize("name", SCENES)
async def test_every_surface_describes_a_scene_alike_and_refuses_with_the_same_code(
    shop: Shop, name: str
) -> None:
    """A refusal changes nothing, so all surfaces of a scene are asked about one call."""
    scene, place = SCENES[name], place_of(shop, name)
    seen = {surface: await see(place) for surface, see in SEE.items()}
    expected = dict.fromkeys(SEE, scene.sees)
    if scene.is_about_people:
        expected["Runtime"] = replace(scene.sees, can=CAN)
    if scene.listed is not None:
        expected["Runtime"] = scene.listed  # which lists the calls of all sessions
    for surface, description in seen.items():
        shown = {f: v for f in FIELDS if (v := getattr(description, f)) is not None}
        wanted = {f: getattr(expected[surface], f) for f in shown}
        assert shown == wanted, (surface, seen)
    is_open = scene.sees.call not in (None, ("SETTLED",))
    assert (seen["MCP"].call is not None) is is_open  # it lists what is open
    refusing = APPROVE if scene.code else {}
    codes = {surface: await approve(place) for surface, approve in refusing.items()}
    assert codes == dict.fromkeys(refusing, scene.code)
