"""LangGraph: `interrupt` and `Command(resume=)` on its AsyncSqliteSaver.

The variant is its `durability`: sync, async (its default) or exit.
"""

import operator
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bench.peers import common
from bench.peers.common import Story
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict):
    """The conversation, as the tutorials keep it."""

    messages: Annotated[list[dict[str, Any]], operator.add]


class LangGraph:
    """A compiled graph with a saver."""

    def __init__(
        self, saver: Any, story: Story, variant: str, durability: Callable[[], Awaitable[str]]
    ) -> None:
        self._shown = durability
        self._story = story
        self._durability = variant
        graph = StateGraph(State)
        graph.add_node("model", self._model)
        graph.add_node("tool", self._tool)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", _route, ["tool", END])
        graph.add_edge("tool", "model")
        self._app = graph.compile(checkpointer=saver)

    async def _model(self, state: State) -> dict[str, Any]:
        turn = sum(message["role"] == "assistant" for message in state["messages"])
        move = self._story.asked(turn)
        if move in ("deploy", "charge"):
            call = {"id": f"call-{turn}", "name": move, "args": common.ARGS}
            return _said("assistant", "", tool_calls=[call])
        return _said("assistant", common.KILO if move == "talk" else common.ANSWER)

    async def _tool(self, state: State) -> dict[str, Any]:
        call = state["messages"][-1]["tool_calls"][0]
        if call["name"] == "charge":
            self._story.reached("charged")
            return _said("tool", "charged", id=call["id"])
        return _said("tool", interrupt(call), id=call["id"])

    async def _invoke(self, given: Any, session: str) -> Any:
        return await self._app.ainvoke(given, _config(session), durability=self._durability)

    async def durability(self) -> str:
        """Of a connection as it uses them."""
        return await self._shown()

    async def start(self, session: str) -> None:
        """Invoke until it is interrupted."""
        state = await self._invoke(_said("user", common.MESSAGE), session)
        assert state["__interrupt__"], state

    async def resume(self, session: str) -> None:
        """Invoke with the result."""
        state = await self._invoke(Command(resume=common.RESULT), session)
        assert state["messages"][-1]["content"] == common.ANSWER, state

    async def recover(self, session: str) -> str:
        """Go on from its last checkpoint."""
        found = await self._app.aget_state(_config(session))
        if not found.next:
            return "nothing"
        if found.interrupts:
            return "waiting"
        state = await self._invoke(None, session)
        return "waiting" if state.get("__interrupt__") else "done"

    async def talk(self, session: str) -> None:
        """One message and its answer."""
        await self._invoke(_said("user", common.KILO), session)


def _said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content, **more}]}


def _route(state: State) -> str:
    return "tool" if state["messages"][-1].get("tool_calls") else END


def _config(session: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": session}}


@asynccontextmanager
async def opened(folder: Path, story: Story, variant: str) -> AsyncIterator[LangGraph]:
    """A saver on a file in the folder."""
    async with AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        await saver.setup()

        async def durability() -> str:
            """Of the saver's connection."""
            async with saver.conn.execute("PRAGMA journal_mode") as cursor:
                (mode,) = await cursor.fetchone()
            async with saver.conn.execute("PRAGMA synchronous") as cursor:
                (level,) = await cursor.fetchone()
            return common.told(mode, level)

        yield LangGraph(saver, story, variant, durability)


if __name__ == "__main__":
    common.main(opened)
