"""CPU of pages: an inbox among many calls, a session with a long log, and the first visit."""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx2
from bench.report import Section, Table

from perdure import Agent, Principal, Runtime, asgi, tool
from perdure.core.log.events import User
from perdure.core.pending.record import PendingRecord
from perdure.runtime.records.entries import pending_put
from perdure.runtime.records.log import as_record
from perdure.serve.ui.pages.session import WINDOW
from perdure.store.base import Store, Write
from perdure.testing import ScriptedModel

FEW, MANY = 100, 10_000
SHORT, LONG = 200, 5_000
ROUNDS: Final = 15
EVENTS: Final = f"/sessions/long/events.json?before={SHORT + 1}&limit={WINDOW}"  # as its page shows
TOKEN: Final = "admin-token-0123456789"  # noqa: S105 - of a server in this process
HTML: Final = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}

METHOD = f"""\
CPU of the process for one request, median of {ROUNDS} rounds in which the compared requests
alternate. The server runs in this process, without a socket; PostgreSQL's own CPU is not included.
The inbox `/` shows 50 of the calls that wait for people; a session's page shows the last {WINDOW}
events of its log, and the JSON of its content is the session and the same events, in two requests.
The first visit is the compressed size of the inbox, its style sheet, script and icons."""


@tool(requires_approval=True)
def refund(order_id: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents} of {order_id}"


def _agent() -> Agent[str]:
    call = {"tool": "refund", "args": {"order_id": 991, "cents": 4200}}
    return Agent(
        "shop", model=ScriptedModel([{"text": "I refund.", "calls": [call]}]), tools=[refund]
    )


async def _fill(rt: Runtime, calls: int, events: int) -> None:
    """Park so many calls, copies of one that was driven, and a session with so many events."""
    store: Store = rt._resources.store  # noqa: SLF001 - copies of what a drive wrote
    result = await rt.session("first", agent="shop").run("Go")
    record = await rt._service.calls.get(result.pending[0].id)  # noqa: SLF001
    stream = "s//first"
    for start in range(1, calls, 500):
        copies = [_copy(record, n) for n in range(start, min(start + 500, calls))]
        await store.commit([Write(stream)], [pending_put(copy, 0, stream) for copy in copies])
    await rt.session("long", agent="shop").run("Go")
    stream = "s//long"
    head = (await store.read(stream, limit=0)).head
    for start in range(head, events, 500):
        notes = [
            User(role="user", content=f"note {n}") for n in range(start, min(start + 500, events))
        ]
        await store.commit([Write(stream, [as_record(note, store.now()) for note in notes])])


def _copy(record: PendingRecord, number: int) -> PendingRecord:
    from msgspec.structs import replace

    return replace(record, id=f"p_{number:026}", time=replace(record.time, created=number + 1))


async def _signed_in(rt: Runtime) -> httpx2.AsyncClient:
    app = asgi(rt, auth={TOKEN: Principal("admin", "admin")})
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://perdure")
    page = await client.get("/sign-in", headers=HTML)
    token = page.text.partition('name="form_token" value="')[2].partition('"')[0]
    fields = {"answer": TOKEN, "form_token": token}
    answer = await client.post(
        "/sign-in", data=fields, headers={**HTML, "Origin": "http://perdure"}
    )
    assert answer.status_code == 303, answer.text[:500]
    return client


async def _compare(requests: dict[str, Callable[[], Awaitable[Any]]]) -> dict[str, float]:
    """Return the median CPU of each request in ms; they alternate."""
    times: dict[str, list[float]] = {name: [] for name in requests}
    for _ in range(ROUNDS):
        for name, request in requests.items():
            started = time.process_time()
            answer = await request()
            times[name].append((time.process_time() - started) * 1000)
            assert answer.status_code == 200, answer.text[:500]
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


async def _measure(place: Callable[[str], str]) -> list[list[str]]:
    async with AsyncExitStack() as stack:
        clients = {}
        for name, calls, events in (("few", FEW, SHORT), ("many", MANY, LONG)):
            rt = await stack.enter_async_context(Runtime(place(name), agents=[_agent()]))
            await _fill(rt, calls, events)
            clients[name] = await _signed_in(rt)
            stack.push_async_callback(clients[name].aclose)
        few, many = clients["few"], clients["many"]

        def page(client: httpx2.AsyncClient, path: str) -> Callable[[], Awaitable[Any]]:
            return lambda: client.get(path, headers=HTML)

        auth = {"Authorization": f"Bearer {TOKEN}"}
        cpu = await _compare(
            {
                "inbox few": page(few, "/"),
                "inbox many": page(many, "/"),
                "session few": page(few, "/sessions/long"),
                "session many": page(many, "/sessions/long"),
                "json few": lambda: few.get("/sessions/long.json", headers=auth),
                "events few": lambda: few.get(EVENTS, headers=auth),
                "list few": lambda: few.get("/pending.json?sort=expires&limit=50", headers=auth),
                "list many": lambda: many.get("/pending.json?sort=expires&limit=50", headers=auth),
            }
        )
        cpu["twins few"] = cpu["json few"] + cpu["events few"]
        size = await _first_visit(few)
    rows = [
        ("`/`, 10,000 calls ÷ 100", "inbox many", "inbox few", 1.5),
        ("`/pending`, 10,000 calls ÷ 100", "list many", "list few", 1.5),
        ("session, 5,000 events ÷ 200", "session many", "session few", 1.5),
        ("session's page ÷ the JSON of its content", "session few", "twins few", 3.0),
        ("session's page ÷ the JSON without events", "session few", "json few", None),
    ]
    table = [
        [
            label,
            f"{cpu[a]:.1f} ms",
            f"{cpu[b]:.1f} ms",
            f"{cpu[a] / cpu[b]:.2f}",
            "" if most is None else f"≤ {most}",
        ]
        for label, a, b, most in rows
    ]
    return [*table, ["first visit", f"{size / 1000:.0f} KB", "", "", "≤ 100 KB"]]


async def _first_visit(client: httpx2.AsyncClient) -> int:
    """Return the bytes that a browser gets: the page and every file that it names, compressed."""
    page = await client.get("/", headers=HTML)
    names = set()
    for part in page.text.split('"'):
        if part.startswith("/static/") or "/static/" in part[:40]:
            names.add(part.partition("#")[0])
    size = len(page.content)
    for name in names:
        async with client.stream("GET", name, headers={"Accept-Encoding": "gzip"}) as answer:
            size += sum([len(piece) async for piece in answer.aiter_raw()])
    return size


def measure(*, quick: bool = False) -> Section:
    """Measure the pages on SQLite, and on PostgreSQL where PERDURE_BENCH_POSTGRES names one."""
    parts: list[Any] = [METHOD]
    head = ["", "CPU", "compared with", "ratio", "target"]
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(_measure(lambda name: f"sqlite:///{Path(folder)}/{name}.db"))
    parts += ["SQLite:", Table(head, rows)]
    url = os.environ.get("PERDURE_BENCH_POSTGRES")
    if url:
        parts += [
            "PostgreSQL:",
            Table(head, asyncio.run(_measure(lambda n: f"{url}?schema=ui_{n}"))),
        ]
    return Section("Pages", parts)
