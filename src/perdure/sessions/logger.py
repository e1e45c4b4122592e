"""Logger of an agent's work: each method logs one event, which is written in the background."""

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
    """Logs the work of agents to a storage. No method waits or raises; `flush` waits for all.

    These events are for people and for recovery. The runtime itself records the facts that an
    effect depends on, and raises if it cannot.
    """

    def __init__(
        self, storage: SessionStorage, session_id: str, *, clock: Clock | None = None
    ) -> None:
        self.storage = storage
        self.session_id = session_id
        self._clock = clock or WallClock()
        self._queue: deque[Event] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._open: dict[str, tuple[str, str]] = {}  # calls without a result: agent and tool

    # --- the conversation ---------------------------------------------------------------------

    def log_user_message(self, content: Any) -> None:
        """Log a user message."""
        self._log("user", {"role": "user", "content": content})

    def log_assistant_message(
        self, agent: str, content: Any, *, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Log a model response. `metadata` may name model, usage, cost and latency."""
        self._log("assistant", {"role": "assistant", "content": content, "agent": agent}, metadata)

    def log_system_message(self, content: Any) -> None:
        """Log a system message; it is never sent to a model."""
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
        """Log a tool call and return its id; a new one if none is passed."""
        call_id = tool_id or str(uuid.uuid4())
        self._open[call_id] = (agent, tool)
        data = {"id": call_id, "tool": tool, "params": params, "agent": agent}
        self._log("tool_call", data, metadata)
        return call_id

    def log_tool_result(self, agent: str, tool: str, tool_id: str, result: Any) -> None:
        """Log the result of a tool; an exception becomes an error for the model."""
        if isinstance(result, BaseException):
            self.log_tool_error(agent, tool, tool_id, result)
            return
        call_id = self._close_call(agent, tool, tool_id)
        self._log("tool_result", {"toolCallId": call_id, "result": result})

    def log_tool_error(
        self, agent: str, tool: str, tool_id: str, error: BaseException | str
    ) -> None:
        """Log the error of a tool."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        call_id = self._close_call(agent, tool, tool_id)
        self._log("tool_result", {"toolCallId": call_id, "result": text, "isError": True})

    def _close_call(self, agent: str, tool: str, tool_id: str) -> str:
        """Close the call of a result and return its id: as passed, or the tool's only open call."""
        if tool_id not in self._open:
            open_calls = [
                call_id for call_id, names in self._open.items() if names == (agent, tool)
            ]
            if len(open_calls) == 1:
                tool_id = open_calls[0]
        self._open.pop(tool_id, None)
        return tool_id

    # --- agents -------------------------------------------------------------------------------

    def log_delegation(self, parent: str, child: str, task: str) -> None:
        """Log that an agent delegated a task."""
        self._log("delegation", {"parent": parent, "child": child, "task": task})

    def log_delegation_complete(self, parent: str, child: str, result: Any) -> None:
        """Log the result of a delegation."""
        self._log("delegation_complete", {"parent": parent, "child": child, "result": result})

    def log_agent_start(self, agent: str, depth: int = 0, task: str = "") -> None:
        """Log that an agent starts; at depth 0 it owns the session."""
        self._log("agent_start", {"agent": agent, "depth": depth, "task": task})

    def log_agent_iteration(self, agent: str, iteration: int) -> None:
        """Log an iteration of an agent."""
        self._log("agent_iteration", {"agent": agent, "iteration": iteration})

    def log_agent_complete(self, agent: str, duration: float) -> None:
        """Log that an agent completed, after a duration in milliseconds."""
        self._log("agent_complete", {"agent": agent, "duration": duration})

    def log_agent_error(self, agent: str, error: BaseException | str) -> None:
        """Log the error of an agent."""
        self._log("agent_error", {"agent": agent, "error": str(error)})

    def log_todo_update(self, todos: Sequence[Any]) -> None:
        """Log a new list of todos; for people, not used for recovery."""
        self._log("todo_update", {"todos": list(todos)})

    def log_session_recovery(self, issues: Sequence[Any]) -> None:
        """Log the recovery of a session, with its issues."""
        self._log("session_recovery", {"issues": list(issues)})

    def log_safety_limit(self, limit: str, value: float) -> None:
        """Log that a limit was reached."""
        self._log("safety_limit", {"limit": limit, "value": value})

    # --- writing ------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until all logged events are written."""
        while self._queue or (self._writer is not None and not self._writer.done()):
            self._start_writer()
            if self._writer is not None:
                await asyncio.shield(self._writer)

    def _log(
        self, kind: str, data: dict[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> None:
        event: Event = {"type": kind, "timestamp": self._clock.now(), "data": data}
        if metadata:
            event["metadata"] = dict(metadata)
        self._queue.append(event)
        self._start_writer()

    def _start_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            return
        try:
            # No caller waits for this task: a method that logs returns at once.
            self._writer = asyncio.get_running_loop().create_task(self._write())
        except RuntimeError:
            return  # without an event loop; the next call in one, or `flush`, starts it

    async def _write(self) -> None:
        while self._queue:
            event = self._queue.popleft()
            try:
                await self.storage.append_event(self.session_id, event)
            except Exception:
                logger.exception("an event of session %s was not written", self.session_id)
