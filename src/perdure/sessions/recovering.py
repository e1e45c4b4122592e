"""From a session's events back to messages that a model takes, whatever the log holds."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core.conversation.repair.json_values import shown
from perdure.core.session.todos import is_todo_tool, kept_todos
from perdure.core.transfer.event_log import conversations, is_event
from perdure.sessions.sanitizing import format_sanitization_issues, sanitize_recovered_messages
from perdure.sessions.storage import SessionStorage

logger = logging.getLogger("perdure")

Message = dict[str, Any]


class SimpleSessionManager:
    """Reads sessions from a storage. Reading changes nothing, and the same log reads the same."""

    def __init__(self, storage: SessionStorage) -> None:
        self.storage = storage

    async def recover_session(self, session_id: str, agent: str | None = None) -> list[Message]:
        """The conversation of the session's own agent, or of the named one, as valid messages.

        What had to be mended is told to the log. An unknown session has no messages.
        """
        found = conversations(await self.storage.read_events(session_id))
        for warning in found.warnings:
            logger.warning("Session %s recovery: %s", session_id, warning)
        mended = sanitize_recovered_messages(found.of(agent))
        if mended.issues:
            told = format_sanitization_issues(mended.issues)
            logger.warning("Session %s recovery: %s", session_id, told)
        return mended.messages

    async def recover_agents(self, session_id: str) -> list[str]:
        """The agents that have a conversation in the session's log, its own one first."""
        found = conversations(await self.storage.read_events(session_id))
        return sorted(found.by_agent, key=lambda agent: agent != found.top)

    async def recover_todos(self, session_id: str) -> list[dict[str, Any]]:
        """The todos of the last call that wrote a valid list, whether or not it has a result."""
        for event in reversed(await self.storage.read_events(session_id)):
            if not is_event(event) or event["type"] != "tool_call":
                continue
            data = event["data"]
            params = data.get("params")
            if is_todo_tool(data.get("tool")) and isinstance(params, dict):
                todos = kept_todos(params.get("todos"))
                if todos is not None:
                    return [todo.to_json() for todo in todos]
        return []

    def has_incomplete_tool_call(self, messages: Sequence[Any]) -> bool:
        """Whether the last message asks for a tool and nothing answers it."""
        return bool(_calls(messages[-1])) if messages else False

    def get_last_tool_call(self, messages: Sequence[Any]) -> dict[str, Any] | None:
        """The first call of the last message, if that asks for tools: id, name and input."""
        calls = _calls(messages[-1]) if messages else []
        return calls[0] if calls else None

    def create_tool_result_message(self, tool_call_id: str, result: Any) -> Message:
        """The message that answers a call; what is no text is written as JSON."""
        block = {"type": "tool_result", "tool_use_id": tool_call_id, "content": shown(result)}
        return {"role": "user", "content": [block]}

    def is_conversation_complete(self, messages: Sequence[Any]) -> bool:
        """Whether the last word is the assistant's, and asks for nothing."""
        if not messages or not isinstance(messages[-1], Mapping):
            return False
        last = messages[-1]
        return last.get("role") == "assistant" and bool(last.get("content")) and not _calls(last)


def _calls(message: Any) -> list[dict[str, Any]]:
    """The calls of a message, of whichever provider."""
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return []
    content, asked = message.get("content"), message.get("tool_calls")
    found = [
        {"id": block.get("id"), "name": block.get("name"), "input": _object(block.get("input"))}
        for block in (content if isinstance(content, list) else [])
        if isinstance(block, Mapping) and block.get("type") == "tool_use"
    ]
    for call in asked if isinstance(asked, list) else []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = _object(function.get("arguments"))
            found.append({"id": call.get("id"), "name": function.get("name"), "input": arguments})
    return found


def _object(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {}
