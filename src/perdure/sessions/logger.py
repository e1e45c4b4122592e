"""The logger of an agent's doings: each method is one event, written when there is time."""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.sessions.storage import SessionStorage
from perdure.store.base import Clock, WallClock

logger = logging.getLogger("perdure")

Event = dict[str, Any]


class EventLogger:
    """Writes what agents do to a storage. No method waits or raises; `flush` waits for all of it.

    What is logged here is for people and for recovery. Facts that an effect depends on are
    recorded by the runtime itself, and those do raise.
    """

    def __init__(
        self, storage: SessionStorage, session_id: str, *, clock: Clock | None = None
    ) -> None:
        self.storage = storage
        self.session_id = session_id
        self._clock = clock or WallClock()
        self._waiting: deque[Event] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._open: dict[str, tuple[str, str]] = {}  # calls without a result: agent and tool

    # --- the conversation ---------------------------------------------------------------------

    def log_user_message(self, content: Any) -> None:
        """Somebody said something."""
        self._log("user", {"role": "user", "content": content})

    def log_assistant_message(
        self, agent: str, content: Any, *, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """The model answered. `metadata` may name model, usage, cost and latency."""
        self._log("assistant", {"role": "assistant", "content": content, "agent": agent}, metadata)

    def log_system_message(self, content: Any) -> None:
        """For the record; no model is ever shown it."""
        self._log("system", {"role": "system", "content": content})

    def log_tool_call(
        self,
        agent: str,
        tool: str,
        params: Mapping[str, Any],
        tool_id: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """The model asked for a tool; answers the call's id, which is made if none is given."""
        call_id = tool_id or str(uuid.uuid4())
        self._open[call_id] = (agent, tool)
        data = {"id": call_id, "tool": tool, "params": params, "agent": agent}
        self._log("tool_call", data, metadata)
        return call_id

    def log_tool_result(self, agent: str, tool: str, tool_id: str, result: Any) -> None:
        """A tool returned; an exception is kept as an error that the model is told."""
        if isinstance(result, BaseException):
            self.log_tool_error(agent, tool, tool_id, result)
            return
        call_id = self._settled(agent, tool, tool_id)
        self._log("tool_result", {"toolCallId": call_id, "result": result})

    def log_tool_error(
        self, agent: str, tool: str, tool_id: str, error: BaseException | str
    ) -> None:
        """A tool failed."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        call_id = self._settled(agent, tool, tool_id)
        self._log("tool_result", {"toolCallId": call_id, "result": text, "isError": True})

    def _settled(self, agent: str, tool: str, tool_id: str) -> str:
        """The call that a result is for: the one named, or the only open one of that tool."""
        if tool_id not in self._open:
            fitting = [key for key, of in self._open.items() if of == (agent, tool)]
            if len(fitting) == 1:
                tool_id = fitting[0]
        self._open.pop(tool_id, None)
        return tool_id

    # --- around it ----------------------------------------------------------------------------

    def log_delegation(self, parent: str, child: str, task: str) -> None:
        """An agent gave a task to another one."""
        self._log("delegation", {"parent": parent, "child": child, "task": task})

    def log_delegation_complete(self, parent: str, child: str, result: Any) -> None:
        """The other one is done with it."""
        self._log("delegation_complete", {"parent": parent, "child": child, "result": result})

    def log_agent_start(self, agent: str, depth: int = 0, task: str = "") -> None:
        """An agent begins; at depth 0 it is the one that the session belongs to."""
        self._log("agent_start", {"agent": agent, "depth": depth, "task": task})

    def log_agent_iteration(self, agent: str, iteration: int) -> None:
        """An agent goes round once more."""
        self._log("agent_iteration", {"agent": agent, "iteration": iteration})

    def log_agent_complete(self, agent: str, duration: float) -> None:
        """An agent is done, after so many milliseconds."""
        self._log("agent_complete", {"agent": agent, "duration": duration})

    def log_agent_error(self, agent: str, error: BaseException | str) -> None:
        """An agent failed."""
        self._log("agent_error", {"agent": agent, "error": str(error)})

    def log_todo_update(self, todos: Sequence[Any]) -> None:
        """The list of todos changed; shown to people, not used for recovery."""
        self._log("todo_update", {"todos": list(todos)})

    def log_session_recovery(self, issues: Sequence[Any]) -> None:
        """A session was recovered, with these issues."""
        self._log("session_recovery", {"issues": list(issues)})

    def log_safety_limit(self, limit: str, value: float) -> None:
        """A limit was reached."""
        self._log("safety_limit", {"limit": limit, "value": value})

    # --- writing ------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until everything that was logged has been written."""
        while self._waiting or (self._writer is not None and not self._writer.done()):
            self._begin()
            if self._writer is not None:
                await asyncio.shield(self._writer)

    def _log(
        self, kind: str, data: dict[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> None:
        event: Event = {"type": kind, "timestamp": self._clock.now(), "data": data}
        if metadata:
            event["metadata"] = dict(metadata)
        self._waiting.append(event)
        self._begin()

    def _begin(self) -> None:
        if self._writer is not None and not self._writer.done():
            return
        try:
            # Nobody waits for it, by promise: a method that logs returns at once.
            self._writer = asyncio.get_running_loop().create_task(self._write())
        except RuntimeError:
            return  # no event loop runs here: the next call in one, or `flush`, begins

    async def _write(self) -> None:
        while self._waiting:
            event = self._waiting.popleft()
            try:
                await self.storage.append_event(self.session_id, event)
            except Exception:
                logger.exception("an event of session %s was not written", self.session_id)
