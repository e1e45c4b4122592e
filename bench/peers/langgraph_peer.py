"""LangGraph: `interrupt` and `Command(resume=)` on its AsyncSqliteSaver or SqliteSaver.

The variant is its `durability`: sync, async (its default) or exit. With `threads` it is the
SqliteSaver with durability sync: the graph is invoked in a thread for each session.
"""

import asyncio
import operator
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bench.peers import common
from bench.peers.common import Story
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

THREADS = "threads"
MOST_THREADS = 64


class State(TypedDict):
    """Conversation as a list of messages, as in the tutorials."""

    messages: Annotated[list[dict[str, Any]], operator.add]


class LangGraph:
    """Compiled graph with a saver."""

    def __init__(
        self, saver: Any, story: Story, variant: str, durability: Callable[[], Awaitable[str]]
    ) -> None:
        self._read_durability = durability
        self._story = story
        self._in_threads = variant == THREADS
        self._durability = "sync" if self._in_threads else variant
        graph = StateGraph(State)
        graph.add_node("model", self._model if self._in_threads else self._async_model)
        graph.add_node("tool", self._tool if self._in_threads else self._async_tool)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", _route, ["tool", END])
        graph.add_edge("tool", "model")
        self._app = graph.compile(checkpointer=saver)

    async def _async_model(self, state: State) -> dict[str, Any]:
        return self._model(state)

    async def _async_tool(self, state: State) -> dict[str, Any]:
        return self._tool(state)

    def _model(self, state: State) -> dict[str, Any]:
        turn = sum(message["role"] == "assistant" for message in state["messages"])
        move = self._story.next_move(turn)
        if move in ("deploy", "charge"):
            call = {"id": f"call-{turn}", "name": move, "args": common.ARGS}
            return _update("assistant", "", tool_calls=[call])
        return _update("assistant", common.KILO if move == "talk" else common.ANSWER)

    def _tool(self, state: State) -> dict[str, Any]:
        call = state["messages"][-1]["tool_calls"][0]
        if call["name"] == "charge":
            self._story.reach("charged")
            return _update("tool", "charged", id=call["id"])
        return _update("tool", interrupt(call), id=call["id"])

    async def _invoke(self, graph_input: Any, session: str) -> Any:
        options = {"durability": self._durability}
        if self._in_threads:
            invoke = self._app.invoke
            return await asyncio.to_thread(invoke, graph_input, _config(session), **options)
        return await self._app.ainvoke(graph_input, _config(session), **options)

    async def durability(self) -> str:
        """Return the settings of a connection of the saver."""
        return await self._read_durability()

    async def start(self, session: str) -> None:
        """Invoke the graph until it is interrupted."""
        state = await self._invoke(_update("user", common.MESSAGE), session)
        assert state["__interrupt__"], state

    async def resume(self, session: str) -> None:
        """Invoke the graph with the result."""
        state = await self._invoke(Command(resume=common.RESULT), session)
        assert state["messages"][-1]["content"] == common.ANSWER, state

    async def recover(self, session: str) -> str:
        """Continue from the last checkpoint."""
        get_state = self._app.get_state
        snapshot = (
            await asyncio.to_thread(get_state, _config(session))
            if self._in_threads
            else await self._app.aget_state(_config(session))
        )
        if not snapshot.next:
            return "nothing"
        if snapshot.interrupts:
            return "waiting"
        state = await self._invoke(None, session)
        return "waiting" if state.get("__interrupt__") else "done"

    async def talk(self, session: str) -> None:
        """Invoke the graph with one message."""
        await self._invoke(_update("user", common.KILO), session)


def _update(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content, **more}]}


def _route(state: State) -> str:
    return "tool" if state["messages"][-1].get("tool_calls") else END


def _config(session: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": session}}


@asynccontextmanager
async def open_peer(folder: Path, story: Story, variant: str) -> AsyncIterator[LangGraph]:
    """Open a saver on a file in the folder."""
    if variant == THREADS:
        with SqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
            saver.setup()

            async def read_durability() -> str:
                """Return the settings of the saver's connection."""
                return common.read_durability(saver.conn)

            # As many threads as sessions: by default there are too few of them for all sessions.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MOST_THREADS))
            yield LangGraph(saver, story, variant, read_durability)
        return
    async with AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        await saver.setup()

        async def durability() -> str:
            """Return the settings of the saver's connection."""
            async with saver.conn.execute("PRAGMA journal_mode") as cursor:
                (mode,) = await cursor.fetchone()
            async with saver.conn.execute("PRAGMA synchronous") as cursor:
                (level,) = await cursor.fetchone()
            return common.format_durability(mode, level)

        yield LangGraph(saver, story, variant, durability)


if __name__ == "__main__":
    common.main(open_peer)
