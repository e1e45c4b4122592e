"""Logger of an agent's work: each method logs one event, which is written in the background.

Events that are not written yet are written when the event loop ends, at the latest when the
program exits.
"""

import asyncio
import atexit
import logging
import os
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from perdure.sessions.event_values import event_value
from perdure.sessions.storage import SessionStorage
from perdure.store.base import Clock, WallClock
from perdure.user_code import CONTAINED, error_line, error_text

logger = logging.getLogger("perdure")

Event = dict[str, Any]

EXIT_S: Final = 30.0  # for a storage to store the last events when the program exits
_RECENT: Final = 100  # events in which one is looked for that may have been written
_unwritten: "set[EventLogger]" = set()  # loggers with events that are not written yet


class EventLogger:
    """Logs the work of agents to a storage. No method waits or raises; `flush` waits for all.

    Without `flush`, the rest is written when the event loop ends or the program exits. These
    events are for people and for recovery. The runtime itself records the facts that an effect
    depends on, and raises if it cannot.
    """

    def __init__(
        self, storage: SessionStorage, session_id: str, *, clock: Clock | None = None
    ) -> None:
        self.storage = storage
        self.session_id = session_id
        self._clock = clock or WallClock()
        self._queue: deque[Event] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # which writes
        self._end: AsyncGenerator[None, None] | None = None
        self._is_uncertain = False  # whether the first event of the queue was written
        self._process = os.getpid()
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
        text = error if isinstance(error, str) else error_line(error)
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
        text = error_text(error) if isinstance(error, BaseException) else error
        self._log("agent_error", {"agent": agent, "error": text})

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
            event["metadata"] = metadata
        # As JSON now: the caller may change its objects before the event is written.
        self._queue.append(event_value(event))
        _unwritten.add(self)
        try:
            self._start_writer()
        except RuntimeError:  # in a thread without an event loop
            self._wake_loop()

    def _wake_loop(self) -> None:
        """Have the loop of an earlier event write; without one, a later call or the exit does."""
        loop = self._loop
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(self._start_writer)

    def _start_writer(self) -> None:
        """Start to write in the background. Raises RuntimeError without an event loop."""
        loop = asyncio.get_running_loop()
        if self._writer is not None and not self._writer.done() and self._loop is loop:
            return
        if self._loop is not loop:
            self._loop = loop
            self._end = self._write_at_end()
            _start(self._end)
        # No caller waits for this task: a method that logs returns at once.
        self._writer = loop.create_task(self._write())

    async def _write_at_end(self) -> AsyncGenerator[None, None]:
        """Write the rest when the event loop closes its async generators, its last work."""
        try:
            yield
        finally:
            if self._writer is not None and not self._writer.done():
                await asyncio.wait([self._writer])
            await self._write()

    async def _write(self) -> None:
        if self._is_uncertain:
            await self._drop_written()
        while self._queue:
            self._is_uncertain = True
            try:
                with CONTAINED:
                    await self.storage.append_event(self.session_id, self._queue[0])
            except Exception:
                logger.exception("an event of session %s was not written", self.session_id)
            self._queue.popleft()
            self._is_uncertain = False
        _unwritten.discard(self)

    async def _drop_written(self) -> None:
        """Drop the first event if it was written although the writer was cancelled."""
        try:
            with CONTAINED:
                stored = await self.storage.read_events(self.session_id)
            if self._queue[0] in stored[-_RECENT:]:
                self._queue.popleft()
        except Exception:
            logger.exception("the events of session %s cannot be read", self.session_id)
        self._is_uncertain = False

    async def write_rest(self) -> None:
        """Write the events that are left when the program exits."""
        if self._process != os.getpid():
            return  # a fork copied them; the first process writes them
        try:
            async with asyncio.timeout(EXIT_S):
                await self._write()
        except TimeoutError:
            count, session_id = len(self._queue), self.session_id
            logger.warning("%d events of session %s were not written at exit", count, session_id)
            self._queue.clear()
            _unwritten.discard(self)


def _start(generator: AsyncGenerator[None, None]) -> None:
    """Run a generator to its first `yield`, so that the event loop knows it and closes it."""
    step = generator.__anext__()
    try:
        step.send(None)
    except StopIteration:
        return


@atexit.register
def _write_all() -> None:
    for event_logger in tuple(_unwritten):
        try:
            asyncio.run(event_logger.write_rest())
        except Exception:
            logger.exception("events of session %s were not written", event_logger.session_id)
