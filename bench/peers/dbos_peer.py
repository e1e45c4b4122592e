"""DBOS on SQLite: a workflow whose model turns are steps, parked in `recv` until `send`.

Its notices are polled on SQLite, each second by default; here every 10 ms, so that the wait for
the poll is not what is measured.
"""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

if sqlite3.sqlite_version_info < (3, 42):  # it needs unixepoch('subsec')
    import pysqlite3

    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

from bench.peers import common
from bench.peers.common import Story
from dbos import DBOS, SetWorkflowID

TOPIC = "call"
POLL_S = 0.01
GIVE_UP_S = 5.0  # after a restart: the result that it had is not coming any more


class World:
    """What the workflow's functions see; they must be registered before DBOS is launched."""

    story = Story(())
    parked: dict[str, asyncio.Event] = {}  # noqa: RUF012 - one per process, like DBOS


@DBOS.step()  # type: ignore[untyped-decorator]
async def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One model turn."""
    turn = sum(message["role"] == "assistant" for message in messages)
    move = World.story.asked(turn)
    if move in ("deploy", "charge"):
        call = {"id": f"call-{turn}", "name": move, "args": common.ARGS}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"role": "assistant", "content": common.ANSWER}


@DBOS.step()  # type: ignore[untyped-decorator]
async def charge() -> str:
    """An effect that must not be repeated."""
    World.story.reached("charged")
    return "charged"


@DBOS.workflow()  # type: ignore[untyped-decorator]
async def agent(message: str) -> str:
    """The loop of an agent."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": message}]
    while True:
        answer = await model(messages)
        messages.append(answer)
        if not answer.get("tool_calls"):
            return str(answer["content"])
        if answer["tool_calls"][0]["name"] == "charge":
            output = await charge()
        else:
            _parked(DBOS.workflow_id).set()
            output = await DBOS.recv_async(TOPIC, timeout_seconds=86400)
        messages.append({"role": "tool", "content": output})


def _parked(session: str | None) -> asyncio.Event:
    return World.parked.setdefault(str(session), asyncio.Event())


class Dbos:
    """A launched DBOS."""

    async def durability(self) -> str:
        """Of a connection of its engine."""
        from dbos._dbos import _get_dbos_instance

        engine = _get_dbos_instance()._sys_db.engine  # noqa: SLF001 - only to read its settings
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                return common.pragmas(connection.connection)
            shown = [
                connection.exec_driver_sql(f"SHOW {name}").scalar()
                for name in common.POSTGRES_SETTINGS
            ]
            return ", ".join(shown)

    async def start(self, session: str) -> None:
        """Start the workflow; it says itself when it is about to wait."""
        with SetWorkflowID(session):
            await DBOS.start_workflow_async(agent, common.MESSAGE)
        await _parked(session).wait()

    async def resume(self, session: str) -> None:
        """Send the result and wait for the end."""
        await DBOS.send_async(session, common.RESULT, TOPIC)
        World.story.reached("accepted")
        handle = await DBOS.retrieve_workflow_async(session)
        answer = await handle.get_result(polling_interval_sec=POLL_S)
        assert answer == common.ANSWER, answer

    async def recover(self, session: str) -> str:
        """It has begun by itself, with the launch."""
        if not await DBOS.list_workflows_async(workflow_ids=[session]):
            return "nothing"
        handle = await DBOS.retrieve_workflow_async(session)
        try:
            await asyncio.wait_for(handle.get_result(polling_interval_sec=POLL_S), GIVE_UP_S)
        except TimeoutError:
            return "waiting"
        return "done"

    async def talk(self, session: str) -> None:
        """A workflow is one run and not a conversation."""
        raise NotImplementedError(session)


@asynccontextmanager
async def opened(folder: Path, story: Story, variant: str) -> AsyncIterator[Dbos]:
    """DBOS with its system database in the folder; `wal` sets the file to WAL before it opens."""
    World.story = story
    if variant == "wal":
        file = sys.modules["sqlite3"].connect(folder / "dbos.db")
        file.execute("pragma journal_mode = wal")
        file.close()
    async with launched(f"sqlite:///{folder}/dbos.db") as dbos:
        yield dbos


@asynccontextmanager
async def launched(url: str, **more: Any) -> AsyncIterator[Dbos]:
    """DBOS with its system database there."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "CRITICAL",
            "run_admin_server": False,
            "application_version": "1",
            "notification_listener_polling_interval_sec": POLL_S,
            **more,
        }
    )
    DBOS.launch()
    try:
        yield Dbos()
    finally:
        DBOS.destroy(workflow_completion_timeout_sec=0)


if __name__ == "__main__":
    common.main(opened)
