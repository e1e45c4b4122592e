"""Recovery of a session's messages from its events, valid whatever the log contains."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core.conversation.repair import repair, without_origin
from perdure.core.conversation.repair.json_values import to_text
from perdure.core.session.todos import is_todo_tool, recovered_todos
from perdure.core.transfer.event_log import conversations, is_event
from perdure.core.transfer.stored_log import in_force
from perdure.sessions.sanitizer import format_sanitization_issues, sanitize_recovered_messages
from perdure.sessions.storage import SessionStorage

logger = logging.getLogger("perdure")

Message = dict[str, Any]


class SimpleSessionManager:
    """Reads sessions from a storage. Reading changes nothing."""

    def __init__(self, storage: SessionStorage) -> None:
        self.storage = storage

    async def recover_session(
        self, session_id: str, agent: str | None = None, *, origins: bool = False
    ) -> list[Message]:
        """Return the conversation of the session's own agent, or of another, as valid messages.

        Repairs are logged. An unknown session has no messages. With `origins`, responses have the
        keys `provider` and `model` for `render`, which no provider accepts in a message.
        """
        recovered = conversations(await self._events(session_id))
        for warning in recovered.warnings:
            logger.warning("Session %s recovery: %s", session_id, warning)
        messages = recovered.messages(agent)
        if origins:
            repaired = repair(messages)
            valid, issues = repaired.messages, list(repaired.issues)
        else:
            sanitized = sanitize_recovered_messages([without_origin(m) for m in messages])
            valid, issues = sanitized.messages, sanitized.issues
        if issues:
            text = format_sanitization_issues(issues)
            logger.warning("Session %s recovery: %s", session_id, text)
        return valid

    async def recover_agents(self, session_id: str) -> list[str]:
        """Return the agents that have a conversation in the session's log, its own one first."""
        recovered = conversations(await self._events(session_id))
        return sorted(recovered.by_agent, key=lambda agent: agent != recovered.top)

    async def recover_todos(self, session_id: str) -> list[dict[str, Any]]:
        """Return the todos of the last call that wrote a list, with or without a result.

        Items that break a rule are made valid, which is logged.
        """
        for event in reversed(await self._events(session_id)):
            if not is_event(event) or event["type"] != "tool_call":
                continue
            data = event["data"]
            params = data.get("params")
            if is_todo_tool(data.get("tool")) and isinstance(params, dict):
                recovered = recovered_todos(params.get("todos"))
                if recovered is not None:
                    for problem in recovered.problems:
                        logger.warning("Session %s recovery: %s", session_id, problem)
                    return [todo.to_json() for todo in recovered.todos]
        return []

    async def _events(self, session_id: str) -> list[Any]:
        """Return the events that count: not those of a commit that failed, or was repeated."""
        events = await self.storage.read_events(session_id)
        return in_force(events) if isinstance(events, list) else events

    def has_incomplete_tool_call(self, messages: Sequence[Any]) -> bool:
        """Report whether the last message requests a tool and has no result."""
        return bool(_calls(messages[-1])) if messages else False

    def get_last_tool_call(self, messages: Sequence[Any]) -> dict[str, Any] | None:
        """Return the first call of the last message as id, name and input; None without calls."""
        calls = _calls(messages[-1]) if messages else []
        return calls[0] if calls else None

    def create_tool_result_message(self, tool_call_id: str, result: Any) -> Message:
        """Return the message with the result of a call; a value that is not text becomes JSON."""
        block = {"type": "tool_result", "tool_use_id": tool_call_id, "content": to_text(result)}
        return {"role": "user", "content": [block]}

    def is_conversation_complete(self, messages: Sequence[Any]) -> bool:
        """Report whether the last message is the assistant's, and requests no tool."""
        if not messages or not isinstance(messages[-1], Mapping):
            return False
        last = messages[-1]
        return last.get("role") == "assistant" and bool(last.get("content")) and not _calls(last)


def _calls(message: Any) -> list[dict[str, Any]]:
    """Return the calls of a message in any provider's format."""
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return []
    content, tool_calls = message.get("content"), message.get("tool_calls")
    calls = [
        {"id": block.get("id"), "name": block.get("name"), "input": _object(block.get("input"))}
        for block in (content if isinstance(content, list) else [])
        if isinstance(block, Mapping) and block.get("type") == "tool_use"
    ]
    for call in tool_calls if isinstance(tool_calls, list) else []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = _object(function.get("arguments"))
            calls.append({"id": call.get("id"), "name": function.get("name"), "input": arguments})
    return calls


def _object(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {}
