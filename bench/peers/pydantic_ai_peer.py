"""Pydantic AI: a deferred tool, and a message history that the caller stores.

The library stores nothing itself; its documentation leaves storage to the caller. Here it is one
row per session in a SQLite file with WAL and synchronous=FULL, written when a run pauses and ends.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.peers import common
from bench.peers.common import Story
from pydantic_ai import (
    Agent,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessagesTypeAdapter,
)
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel


class PydanticAi:
    """Agent with the caller's table of histories."""

    def __init__(self, db: sqlite3.Connection, story: Story) -> None:
        self._db = db
        self._story = story
        self._agent = Agent(
            FunctionModel(self._model), output_type=[str, DeferredToolRequests], name="bench"
        )
        self._agent.tool_plain(name="deploy")(self._deploy)
        self._agent.tool_plain(name="charge")(self._charge)

    async def _model(self, messages: list[Any], _info: Any) -> Any:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        move = self._story.next_move(turn)
        if move in ("deploy", "charge"):
            return ModelResponse(parts=[ToolCallPart(move, common.ARGS)])
        return ModelResponse(parts=[TextPart(common.ANSWER)])

    async def _deploy(self, branch: str, region: str, size: str, ttl: str) -> str:
        raise CallDeferred

    async def _charge(self, branch: str, region: str, size: str, ttl: str) -> str:
        self._story.reach("charged")
        return "charged"

    async def durability(self) -> str:
        """Return the settings of the caller's connection."""
        return common.read_durability(self._db)

    async def start(self, session: str) -> None:
        """Run until the deferred call, and store its id and the history."""
        result = await self._agent.run(common.MESSAGE)
        assert isinstance(result.output, DeferredToolRequests), result.output
        self._save(session, result.output.calls[0].tool_call_id, result.all_messages_json())

    async def resume(self, session: str) -> None:
        """Continue from the stored history with the result."""
        waiting, history = self._load(session)
        result = await self._agent.run(
            message_history=ModelMessagesTypeAdapter.validate_json(history),
            deferred_tool_results=DeferredToolResults(calls={waiting: common.RESULT}),
        )
        assert result.output == common.ANSWER, result.output
        self._save(session, None, result.all_messages_json())

    async def recover(self, session: str) -> str:
        """Look for a stored history."""
        row = self._load(session)
        if row is None:
            return "nothing"
        return "waiting" if row[0] else "done"

    async def talk(self, session: str) -> None:
        """Not measured."""
        raise NotImplementedError(session)

    def _save(self, session: str, waiting: str | None, history: bytes) -> None:
        self._db.execute("insert or replace into run values (?, ?, ?)", (session, waiting, history))

    def _load(self, session: str) -> Any:
        query = "select waiting, history from run where id = ?"
        return self._db.execute(query, (session,)).fetchone()


@asynccontextmanager
async def open_peer(folder: Path, story: Story, variant: str) -> AsyncIterator[PydanticAi]:
    """Open the caller's file in the folder; there are no variants."""
    assert not variant
    db = sqlite3.connect(folder / "runs.db", isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute("create table if not exists run (id text primary key, waiting text, history blob)")
    try:
        yield PydanticAi(db, story)
    finally:
        db.close()


if __name__ == "__main__":
    common.main(open_peer)
