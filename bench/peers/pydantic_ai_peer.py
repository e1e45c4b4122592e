"""Pydantic AI: a deferred tool, and its message history kept by the caller.

It stores nothing by itself, so this is the store its documentation leaves to the caller: one row
per session in a SQLite file with WAL and synchronous=FULL, written when the run pauses and ends.
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
    """An agent, and the caller's table."""

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
        move = self._story.asked(turn)
        if move in ("deploy", "charge"):
            return ModelResponse(parts=[ToolCallPart(move, common.ARGS)])
        return ModelResponse(parts=[TextPart(common.ANSWER)])

    async def _deploy(self, branch: str, region: str, size: str, ttl: str) -> str:
        raise CallDeferred

    async def _charge(self, branch: str, region: str, size: str, ttl: str) -> str:
        self._story.reached("charged")
        return "charged"

    async def durability(self) -> str:
        """Of the caller's connection."""
        return common.pragmas(self._db)

    async def start(self, session: str) -> None:
        """Run until it asks for the deferred call, and keep that."""
        result = await self._agent.run(common.MESSAGE)
        assert isinstance(result.output, DeferredToolRequests), result.output
        self._save(session, result.output.calls[0].tool_call_id, result.all_messages_json())

    async def resume(self, session: str) -> None:
        """Run on from the kept history with the result."""
        waiting, kept = self._load(session)
        result = await self._agent.run(
            message_history=ModelMessagesTypeAdapter.validate_json(kept),
            deferred_tool_results=DeferredToolResults(calls={waiting: common.RESULT}),
        )
        assert result.output == common.ANSWER, result.output
        self._save(session, None, result.all_messages_json())

    async def recover(self, session: str) -> str:
        """Look for a kept history."""
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
async def opened(folder: Path, story: Story, variant: str) -> AsyncIterator[PydanticAi]:
    """The caller's file in the folder; there is one variant."""
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
    common.main(opened)
