"""OpenAI Agents SDK: a tool that needs an approval interrupts the run.

Its SQLiteSession stores the conversation. The interrupted run is a RunState that the caller must
store: here as a row in a SQLite file with WAL and synchronous=FULL. The SDK has no deferred tools
whose result is submitted later, so the approved tool returns the result.
"""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from agents import (
    Agent,
    ModelResponse,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    Usage,
    function_tool,
)
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from bench.peers import common
from bench.peers.common import Story

CONFIG = RunConfig(tracing_disabled=True)


class FakeOpenaiModel(Model):  # type: ignore[misc]
    """Model that responds immediately."""

    def __init__(self, story: Story) -> None:
        self._story = story

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> Any:  # noqa: A002
        """Play the story's move for this turn."""
        items = input if isinstance(input, list) else []
        turn = sum(item.get("type") == "function_call_output" for item in items)
        move = self._story.next_move(turn)
        if move in ("deploy", "charge"):
            output = function_call(move, common.ARGS, call_id=f"call-{turn}")
        else:
            output = assistant_message(common.ANSWER, item_id=f"message-{turn}")
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Not used here."""
        raise NotImplementedError


class OpenaiAgents:
    """Agent with its sessions and the caller's table of run states."""

    def __init__(self, folder: Path, db: sqlite3.Connection, story: Story) -> None:
        self._folder = folder
        self._db = db

        @function_tool(needs_approval=True)  # type: ignore[untyped-decorator]
        async def deploy(branch: str, region: str, size: str, ttl: str) -> str:
            """Deploy; requires an approval."""
            return common.RESULT

        @function_tool  # type: ignore[untyped-decorator]
        async def charge(branch: str, region: str, size: str, ttl: str) -> str:
            """Have an effect that must not be repeated."""
            story.reach("charged")
            return "charged"

        self._agent = Agent(name="bench", model=FakeOpenaiModel(story), tools=[deploy, charge])

    def _session(self, session: str) -> Any:
        return SQLiteSession(session, self._folder / "sessions.db")

    async def durability(self) -> str:
        """Return the settings of a session's connection and of the caller's."""
        session = self._session("durability")
        with session._locked_connection() as connection:  # noqa: SLF001 - only to read its pragmas
            session_durability = common.read_durability(connection)
        session.close()
        return f"{session_durability}; state: {common.read_durability(self._db)}"

    async def start(self, session: str) -> None:
        """Run until the interruption, and store the run state."""
        memory = self._session(session)
        result = await Runner.run(self._agent, common.MESSAGE, session=memory, run_config=CONFIG)
        assert result.interruptions, result
        state = result.to_state().to_string()
        self._db.execute("insert or replace into state values (?, ?)", (session, state))
        memory.close()

    async def resume(self, session: str) -> None:
        """Continue the run from the stored state."""
        memory = self._session(session)
        query = "select state from state where id = ?"
        (saved,) = self._db.execute(query, (session,)).fetchone()
        state = await RunState.from_string(self._agent, saved)
        for interruption in state.get_interruptions():
            state.approve(interruption)
        result = await Runner.run(self._agent, state, session=memory, run_config=CONFIG)
        assert result.final_output == common.ANSWER, result
        self._db.execute("delete from state where id = ?", (session,))
        memory.close()

    async def recover(self, session: str) -> str:
        """Look for a stored run state."""
        query = "select 1 from state where id = ?"
        return "waiting" if self._db.execute(query, (session,)).fetchone() else "nothing"

    async def talk(self, session: str) -> None:
        """Not measured."""
        raise NotImplementedError(session)


@asynccontextmanager
async def open_peer(folder: Path, story: Story, variant: str) -> AsyncIterator[OpenaiAgents]:
    """Open two files in the folder; there are no variants."""
    assert not variant
    db = sqlite3.connect(folder / "states.db", isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute("create table if not exists state (id text primary key, state text)")
    try:
        yield OpenaiAgents(folder, db, story)
    finally:
        db.close()


if __name__ == "__main__":
    common.main(open_peer)
