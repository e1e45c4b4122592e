"""DBOS on SQLite: a workflow whose model turns are steps, and which waits in `recv` until `send`.

On SQLite, DBOS polls for messages every second by default. Here it polls every 10 ms, so that the
benchmark does not measure the polling interval.
"""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

if sqlite3.sqlite_version_info < (3, 42):  # DBOS needs unixepoch('subsec')
    import pysqlite3

    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

from bench.peers import common
from bench.peers.common import Story
from dbos import DBOS, SetWorkflowID

TOPIC = "call"
POLL_S = 0.01
GIVE_UP_S = 5.0  # after a restart; then the workflow waits for its result


class WorkflowContext:
    """Globals of the workflow's functions, which must be registered before DBOS is launched."""

    story = Story(())
    more: Callable[[], bool] = staticmethod(lambda: False)
    parked: dict[str, asyncio.Event] = {}  # noqa: RUF012 - one per process, like DBOS


@DBOS.step()  # type: ignore[untyped-decorator]
async def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Run one model turn."""
    turn = sum(message["role"] == "assistant" for message in messages)
    move = WorkflowContext.story.next_move(turn)
    if move in ("deploy", "charge"):
        call = {"id": f"call-{turn}", "name": move, "args": common.ARGS}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"role": "assistant", "content": common.ANSWER}


@DBOS.step()  # type: ignore[untyped-decorator]
async def charge() -> str:
    """Have an effect that must not be repeated."""
    WorkflowContext.story.reach("charged")
    return "charged"


@DBOS.workflow()  # type: ignore[untyped-decorator]
async def agent(message: str) -> str:
    """Run the loop of an agent."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": message}]
    while True:
        answer = await model(messages)
        messages.append(answer)
        if not answer.get("tool_calls"):
            return str(answer["content"])
        if answer["tool_calls"][0]["name"] == "charge":
            output = await charge()
        else:
            _parked_event(DBOS.workflow_id).set()
            output = await DBOS.recv_async(TOPIC, timeout_seconds=86400)
        messages.append({"role": "tool", "content": output})


@DBOS.step()  # type: ignore[untyped-decorator]
async def answer_at_once(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Run one model turn that answers."""
    return {"role": "assistant", "content": f"{common.ANSWER} {len(messages)}"}


@DBOS.workflow()  # type: ignore[untyped-decorator]
async def research(message: str) -> str:
    """Run an agent of one turn."""
    answer = await answer_at_once([{"role": "user", "content": message}])
    return str(answer["content"])


@DBOS.workflow()  # type: ignore[untyped-decorator]
async def lead(message: str) -> int:
    """Start child workflows, one after the other, and let a model read the result of each."""
    number, messages = 0, [{"role": "user", "content": message}]
    messages.append(await answer_at_once(messages))
    while WorkflowContext.more():
        handle = await DBOS.start_workflow_async(research, message)
        found = await handle.get_result(polling_interval_sec=POLL_S)
        messages.append({"role": "user", "content": found})
        messages.append(await answer_at_once(messages))
        number += 1
    return number


def _parked_event(session: str | None) -> asyncio.Event:
    return WorkflowContext.parked.setdefault(str(session), asyncio.Event())


class Dbos:
    """Launched DBOS instance."""

    async def durability(self) -> str:
        """Return the settings of a connection of the engine."""
        from dbos._dbos import _get_dbos_instance

        engine = _get_dbos_instance()._sys_db.engine  # noqa: SLF001 - only to read its settings
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                return common.read_durability(connection.connection)
            values = [
                connection.exec_driver_sql(f"SHOW {name}").scalar()
                for name in common.POSTGRES_SETTINGS
            ]
            return ", ".join(values)

    async def start(self, session: str) -> None:
        """Start the workflow, which sets an event when it is about to wait."""
        with SetWorkflowID(session):
            await DBOS.start_workflow_async(agent, common.MESSAGE)
        await _parked_event(session).wait()

    async def resume(self, session: str) -> None:
        """Send the result and wait until the workflow is complete."""
        await DBOS.send_async(session, common.RESULT, TOPIC)
        WorkflowContext.story.reach("accepted")
        handle = await DBOS.retrieve_workflow_async(session)
        answer = await handle.get_result(polling_interval_sec=POLL_S)
        assert answer == common.ANSWER, answer

    async def delegate(self, session: str, more: Callable[[], bool]) -> int:
        """Run a workflow that starts child workflows and waits for each of them."""
        WorkflowContext.more = staticmethod(more)
        with SetWorkflowID(session):
            handle = await DBOS.start_workflow_async(lead, common.MESSAGE)
        return int(await handle.get_result(polling_interval_sec=POLL_S))

    async def recover(self, session: str) -> str:
        """Wait for the workflow, which DBOS recovers when it is launched."""
        if not await DBOS.list_workflows_async(workflow_ids=[session]):
            return "nothing"
        handle = await DBOS.retrieve_workflow_async(session)
        try:
            await asyncio.wait_for(handle.get_result(polling_interval_sec=POLL_S), GIVE_UP_S)
        except TimeoutError:
            return "waiting"
        return "done"

    async def talk(self, session: str) -> None:
        """Not supported: a workflow is one run, not a conversation."""
        raise NotImplementedError(session)


@asynccontextmanager
async def open_peer(folder: Path, story: Story, variant: str) -> AsyncIterator[Dbos]:
    """Launch DBOS on a file in the folder; `wal` sets the file to WAL before DBOS opens it."""
    WorkflowContext.story = story
    if variant == "wal":
        file = sys.modules["sqlite3"].connect(folder / "dbos.db")
        file.execute("pragma journal_mode = wal")
        file.close()
    async with launch_dbos(f"sqlite:///{folder}/dbos.db") as dbos:
        yield dbos


@asynccontextmanager
async def launch_dbos(url: str, **options: Any) -> AsyncIterator[Dbos]:
    """Launch DBOS with its system database at the URL."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "CRITICAL",
            "run_admin_server": False,
            "application_version": "1",
            "notification_listener_polling_interval_sec": POLL_S,
            **options,
        }
    )
    DBOS.launch()
    try:
        yield Dbos()
    finally:
        DBOS.destroy(workflow_completion_timeout_sec=0)


if __name__ == "__main__":
    common.main(open_peer)
