"""Servers that are killed and started again: nothing that was accepted is lost or done twice."""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
from tests.support.server import Server
from tests.support.server_project import MANY, OPS, effects, make_project

from perdure.client import Client
from perdure.errors import StoreError
from perdure.views.events import Event
from perdure.views.sessions import Result

SESSIONS = 20
CALLS = SESSIONS * MANY
AT_ONCE = 64
KILLED_AT = (300, 700)  # accepted results

MakeServer = Callable[..., Server]


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients wait for the worker of a server that a busy machine has just started again."""
    monkeypatch.setattr("perdure.client.session.NO_WORKER_S", 120)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> str:
    """Where sessions are kept."""
    if request.param == "sqlite":
        return "sqlite"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def make_server(tmp_path: Path, store: str) -> Iterator[MakeServer]:
    """Starts servers of one project; none outlives the test."""
    make_project(tmp_path, store)
    with ExitStack() as started:
        yield lambda *options: started.enter_context(Server(tmp_path, *options))


async def calls_of(client: Client, session_id: str) -> dict[str, str]:
    """The ids of what a session waits for, by tool."""
    session = await client.session(session_id, agent="shop").run("Refund 991 and deploy")
    assert session.state == "waiting"
    return {call.tool: call.id for call in session.pending}


async def test_a_session_survives_the_kill_of_its_server(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """S0.34, S0.41, S0.65, S0.69, G1, G2, G3"""
    server = make_server()
    async with server.client(OPS) as client:
        calls = await calls_of(client, "order-991")
        server.kill()
        server.begin()
        given = await client.submit_result(calls["deploy"], "https://preview.example")
        assert given.session_id == "order-991"
        server.kill()  # what was answered is there
        server.begin()
        await client.approve(calls["refund"], note="fine")
        session = await client.session("order-991").run()
        log = await client.session("order-991").events()
    assert (session.state, session.output) == ("completed", "All done.")
    assert sorted(line.split()[0] for line in effects(tmp_path)) == ["deploy", "refund"]
    types = Counter(event.type for event in log)
    assert (types["assistant"], types["decision"], types["tool_result"]) == (2, 1, 2)
    assert [event.seq for event in log] == list(range(1, len(log) + 1))


async def test_a_run_is_followed_over_the_death_of_its_server(make_server: MakeServer) -> None:
    """S0.52: no event is missed, none comes twice."""
    server = make_server()
    seen: list[int] = []
    last: Result | None = None
    async with server.client(OPS) as client:
        async for item in client.session("s", agent="shop").stream("Go"):
            if isinstance(item, Result):
                last = item
            elif isinstance(item, Event):
                seen.append(item.seq)
                if len(seen) == 1:
                    server.kill()
                    server.begin()
    assert last is not None
    assert last.state == "waiting"
    assert seen == list(range(1, last.seq + 1))


# --- a thousand clients -----------------------------------------------------------------------


async def waiting_calls(client: Client) -> list[str]:
    """The ids of so many calls that wait."""
    async with anyio.create_task_group() as tasks:
        for n in range(SESSIONS):
            tasks.start_soon(client.session(f"many-{n}", agent="many").run, "Ask them all")
    return [call.id async for call in client.pending(tool="ask")]


class Crowd:
    """Clients that each bring one result, and find out what became of it."""

    def __init__(self, server: Server, patient: Client, hasty: Client) -> None:
        self.server = server
        self.patient = patient
        self.hasty = hasty
        self.accepted: dict[str, str] = {}
        self.at_once = anyio.CapacityLimiter(AT_ONCE)

    async def bring(self, number: int, call_id: str) -> None:
        output = f"answer of client {number}"
        async with self.at_once:
            if number % 2:
                await self.patient.submit_result(call_id, output)
            else:
                await self._insist(call_id, output)
            self.accepted[call_id] = output
            if len(self.accepted) in KILLED_AT:
                self.server.kill()
                self.server.begin()

    async def _insist(self, call_id: str, output: str) -> None:
        """Without trying again blindly: look what became of it, then bring it if need be."""
        while True:
            try:
                await self.hasty.submit_result(call_id, output)
            except StoreError:
                found = await self.patient.pending_call(call_id)
                if found.status == "waiting":
                    continue
                assert found.result is not None
                assert found.result.output == output
            return


async def test_a_thousand_clients_bring_their_results_while_the_server_dies_twice(
    make_server: MakeServer,
) -> None:
    """S0.34, S0.35, S0.36, G1, G4"""
    signal.alarm(240)  # a busy machine takes its time over a thousand of them
    server = make_server()
    async with server.client(OPS, patience=120) as patient, server.client(OPS, patience=0) as hasty:
        ids = await waiting_calls(patient)
        assert len(ids) == CALLS == 1000
        crowd = Crowd(server, patient, hasty)
        async with anyio.create_task_group() as tasks:
            for number, call_id in enumerate(ids):
                tasks.start_soon(crowd.bring, number, call_id)
        logged = [one async for one in _results(patient)]
        ends = [(await patient.session(f"many-{n}").run()).state for n in range(SESSIONS)]
    assert ends == ["completed"] * SESSIONS
    assert sorted(logged) == sorted(crowd.accepted.items())


async def _results(client: Client) -> AsyncIterator[tuple[str, str]]:
    """Every result in the logs, with the id under which it was brought."""
    for n in range(SESSIONS):
        calls: dict[str, str] = {}
        for event in await client.session(f"many-{n}").events():
            data = event.data
            if event.type == "pending":
                calls[data["callID"]] = data["pendingID"]
            elif event.type == "tool_result":
                yield calls[data["toolCallId"]], data["result"]


# --- two servers --------------------------------------------------------------------------------


async def test_either_of_two_servers_takes_what_comes_for_a_session_of_the_other(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """S0.70, G4, G5"""
    driving, other = make_server(), make_server("--no-worker")
    async with driving.client(OPS) as one, other.client(OPS) as two:
        for session_id, first, second in (("a", one, two), ("b", two, one)):
            calls = await calls_of(second, session_id)
            await first.submit_result(calls["deploy"], "deployed")
            again = await second.submit_result(calls["deploy"], "deployed")
            assert again.duplicate is True
            await second.approve(calls["refund"])
            seen = [await client.session(session_id).run(timeout=30) for client in (one, two)]
            assert [session.state for session in seen] == ["completed"] * 2
    done = Counter(line.split()[0] for line in effects(tmp_path))
    assert done == {"deploy": 2, "refund": 2}
