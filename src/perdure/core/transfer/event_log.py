"""The conversations in a log of plain events, separated by agent.

The events are those of `events.jsonl`: `{type, timestamp, data}` as any program may have written
them, with the events of delegated agents in between. This module only groups events and drops
nothing that `repair` could still use.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.conversation.approvals import Approvals, preceded_by
from perdure.core.conversation.repair.json_values import json_value, to_text

SYSTEM: Final = "system"  # messages of the program itself, which the model never sees
MAIN: Final = ""  # the log's own agent, if the log does not name it
_MESSAGE_TYPES: Final = frozenset({"user", "assistant", "tool_call", "tool_result"})
_CONTENT: Final = frozenset({"content", "isError", "is_error"})
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Times:
    """Timestamps of one message: of its first event, and of its calls or results by id."""

    at: float
    by_id: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conversations:
    """Messages of each agent, Anthropic-shaped and not yet repaired; `top` is the log's agent."""

    by_agent: Mapping[str, list[Message]]
    top: str
    warnings: tuple[str, ...] = ()
    times: Mapping[str, list[Times]] = field(default_factory=dict)  # as `by_agent`

    def messages(self, agent: str | None = None) -> list[Message]:
        """Return one agent's messages, by default those of the log's own agent."""
        return self.by_agent.get(self.top if agent is None else agent, [])


def conversations(events: object) -> Conversations:
    """Separate a log's conversations. Never raises; items that are not events give `warnings`."""
    if type(events) is not list:
        return Conversations({}, MAIN, ("the log is not a list of events",))
    reader = _LogReader(events)
    for index, event in enumerate(events):
        reader.read_event(index, event)
    messages = {agent: log.messages() for agent, log in reader.agents.items()}
    times = {agent: log.times for agent, log in reader.agents.items()}
    return Conversations(messages, reader.top, tuple(reader.warnings), times)


def is_event(event: object) -> bool:
    """Return True if a value has the form of an event: a type, an instant, and data."""
    if type(event) is not dict or type(event.get("type")) is not str:
        return False
    return type(event.get("timestamp")) in (int, float) and type(event.get("data")) is dict


class _LogReader:
    """Reader of a log from its beginning, which assigns each message to an agent."""

    def __init__(self, events: list[Any]) -> None:
        valid = [event for event in events if is_event(event)]
        self.top = _top_agent(valid)
        self.agents: dict[str, _AgentLog] = {}
        self.warnings: list[str] = []
        self._tasks = _delegated_agents(valid)
        self._started: dict[str, None] = {}  # agents that have not received their task yet
        self._callers: dict[str, list[str]] = {}  # by call id, the agents that wait for its result
        self._calls: dict[str, dict[str, Any]] = {}  # by call id
        self._approvals: dict[str, Approvals] = {}  # by call id

    def read_event(self, index: int, event: Any) -> None:
        """Read the next event."""
        if not is_event(event):
            self.warnings.append(f"event {index} has no type, timestamp and data: ignored")
            return
        kind, data = event["type"], event["data"]
        if kind == "agent_start":
            self._start(data)
        elif kind == "decision":
            self._decide(data)
        elif kind == "vote":
            self._vote(data)
        elif kind in _MESSAGE_TYPES and SYSTEM not in (_text(data, "role"), _text(data, "agent")):
            self._add_message(kind, data, event["timestamp"])

    def _start(self, data: dict[str, Any]) -> None:
        agent = _text(data, "agent")
        if agent is None:
            return
        if _is_top(data):
            self._started.clear()
        self._started.pop(agent, None)
        self._started[agent] = None

    def _decide(self, data: dict[str, Any]) -> None:
        call_id, changes = _key(data.get("callID")), data.get("args")
        self._approvals[call_id] = self._approvals.get(call_id, Approvals()).add(
            _text(data, "kind") or "",
            json_value(changes) if type(changes) is dict else None,
            _text(data, "note"),
        )

    def _vote(self, data: dict[str, Any]) -> None:
        call_id = _key(data.get("callID"))
        approvals = self._approvals.get(call_id, Approvals())
        self._approvals[call_id] = approvals.add_note(_text(data, "note"))

    def _add_message(self, kind: str, data: dict[str, Any], at: float) -> None:
        if kind == "user":
            self._agent_log(self._addressee(data)).add_user(data, at)
        elif kind == "assistant":
            self._agent_log(self._author(data)).add_response(data, at)
        elif kind == "tool_call":
            author = self._author(data)
            self._callers.setdefault(_key(data.get("id")), []).append(author)
            self._calls[_key(data.get("id"))] = data
            self._agent_log(author).add_call(data, at)
        else:
            self._agent_log(self._caller(data)).add_result(data, at, self._approval_text(data))

    def _approval_text(self, result: dict[str, Any]) -> str | None:
        """Return the text about the approval of a call, which precedes its result."""
        call_id = _key(result.get("toolCallId"))
        approvals, call = self._approvals.pop(call_id, None), self._calls.get(call_id, {})
        params, redact = call.get("params"), call.get("redact")
        if approvals is None or type(params) is not dict:
            return None
        names = [name for name in redact if type(name) is str] if type(redact) is list else []
        return approvals.text(_text(call, "tool") or "", json_value(params), names)

    def _caller(self, data: dict[str, Any]) -> str:
        """Return the agent that a result is for: the last caller with its id that still waits."""
        waiting = self._callers.get(_key(data.get("toolCallId")))
        if not waiting:
            return self._author(data)
        return waiting.pop() if len(waiting) > 1 else waiting[0]

    def _agent_log(self, agent: str) -> "_AgentLog":
        return self.agents.setdefault(agent, _AgentLog())

    def _author(self, data: dict[str, Any]) -> str:
        return _text(data, "agent") or self.top

    def _addressee(self, data: dict[str, Any]) -> str:
        """Return the agent a message is for: the log's own, unless it is a delegated task."""
        if type(data.get("agent")) is str:
            return str(data["agent"])
        children = self._tasks.get(_key(data.get("content")))
        latest = next(reversed(self._started), self.top)
        addressee = children.popleft() if children else latest
        self._started.pop(addressee, None)
        return addressee


@dataclass(slots=True)
class _AgentLog:
    """One agent's conversation while it is read."""

    _messages: list[Message] = field(default_factory=list)
    _natives: dict[int, list[Any]] = field(default_factory=dict)
    _results: list[int] = field(default_factory=list)  # indexes of the messages with results
    times: list[Times] = field(default_factory=list)

    def add_user(self, data: dict[str, Any], at: float) -> None:
        self._add({"role": "user", "content": _copy_content(data.get("content"))}, at)

    def _add(self, message: Message, at: float) -> None:
        self._messages.append(message)
        self.times.append(Times(at))

    def add_response(self, data: dict[str, Any], at: float) -> None:
        origin = {key: data[key] for key in ("provider", "model") if type(data.get(key)) is str}
        for key in ("native", "raw_content"):
            if type(data.get(key)) is list:
                self._natives[len(self._messages)] = data[key]
        content = _copy_content(data.get("content"))
        self._add({"role": "assistant", "content": content, **origin}, at)

    def add_call(self, data: dict[str, Any], at: float) -> None:
        """Add a call to the message with the text and the other calls of its turn."""
        block = {
            "type": "tool_use",
            "id": data.get("id"),
            "name": data.get("tool"),
            "input": data.get("params"),
        }
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant":
            self._add({"role": "assistant", "content": [block]}, at)
        elif type(last["content"]) is list:
            last["content"].append(block)
        else:
            last["content"] = [*_as_blocks(last["content"]), block]
        self.times[-1].by_id.setdefault(_key(data.get("id")), at)

    def add_result(self, data: dict[str, Any], at: float, approval: str | None) -> None:
        """Add a result to the message with the other results of its turn."""
        content = _result(data.get("result"))
        block = {
            "type": "tool_result",
            "tool_use_id": data.get("toolCallId"),
            "content": content if approval is None else preceded_by(approval, content),
        }
        if _is_error(data):
            block["is_error"] = True
        if data.get("replaces") is True and self._replace_result(block):
            return
        if self._results and self._results[-1] == len(self._messages) - 1:
            self._messages[-1]["content"].append(block)
        else:
            self._results.append(len(self._messages))
            self._add({"role": "user", "content": [block]}, at)
        self.times[-1].by_id.setdefault(_key(data.get("toolCallId")), at)

    def _replace_result(self, block: dict[str, Any]) -> bool:
        """Put a result in the place of the one that turned out to be invalid, if it is there."""
        blocks = self._messages[self._results[-1]]["content"] if self._results else []
        for index, other in enumerate(blocks):
            if other["tool_use_id"] == block["tool_use_id"]:
                blocks[index] = block
                return True
        return False

    def messages(self) -> list[Message]:
        """Return the messages: results in the order of their calls, native responses unchanged."""
        for index in self._results:
            previous = self._messages[index - 1] if index else {"content": []}
            order = {key: n for n, key in reversed(list(enumerate(_call_ids(previous))))}
            self._messages[index]["content"].sort(
                key=lambda block, order=order: order.get(_key(block["tool_use_id"]), len(order))
            )
        for index, native in self._natives.items():
            has_same_calls = _call_ids({"content": native}) == _call_ids(self._messages[index])
            if has_same_calls and all(map(_is_block, native)):
                self._messages[index]["content"] = native
        return self._messages


def _copy_content(content: Any) -> Any:
    """Return a copy of the content of an event, which calls can be appended to."""
    return list(content) if type(content) is list else content


def _call_ids(message: Message) -> list[str]:
    content = message["content"]
    blocks = content if type(content) is list else []
    calls = (
        block for block in blocks if type(block) is dict and _text(block, "type") == "tool_use"
    )
    return [_key(call.get("id")) for call in calls]


def _is_block(item: Any) -> bool:
    """Return True if it is a content block and not an OpenAI message."""
    return type(item) is dict and _text(item, "type") not in (None, "message")


def _as_blocks(content: Any) -> list[Any]:
    if type(content) is str:
        return [{"type": "text", "text": content}] if content.strip() else []
    return [] if content is None else [content]


def _text(data: dict[str, Any], key: str) -> str | None:
    return data[key] if type(data.get(key)) is str else None


def _is_top(data: dict[str, Any]) -> bool:
    return type(data.get("depth")) is int and data["depth"] == 0


def _key(value: Any) -> str:
    return value if type(value) is str else to_text(value)


def _result(result: Any) -> Any:
    """Return the result of a tool: text, a list of blocks, or the JSON of any other value.

    An object with nothing but text `content` is that text; with more keys, all of it is JSON.
    """
    if type(result) is dict and type(result.get("content")) is str and not result.keys() - _CONTENT:
        return result["content"]
    if result is None:
        return ""
    is_blocks = type(result) is list and all(
        type(block) is dict and type(block.get("type")) is str for block in result
    )
    return result if result and is_blocks else to_text(result)


def _is_error(data: dict[str, Any]) -> bool:
    result = data.get("result")
    flags = [data.get("isError")]
    if type(result) is dict:
        flags += [result.get("isError"), result.get("is_error")]
    return any(flag is True for flag in flags)


def _delegated_agents(events: list[Any]) -> dict[str, deque[str]]:
    """Return the agents that each task was delegated to, by the text of the task."""
    tasks: dict[str, deque[str]] = {}
    for event in events:
        data = event["data"]
        if event["type"] == "delegation" and type(data.get("child")) is str and "task" in data:
            tasks.setdefault(_key(data["task"]), deque()).append(data["child"])
    return tasks


def _top_agent(events: list[Any]) -> str:
    """Return the log's own agent: started at depth 0, else the first one not delegated to."""
    delegations = (event["data"] for event in events if event["type"] == "delegation")
    children = {_key(data.get("child")) for data in delegations}
    agents: list[str] = []
    for event in events:
        agent = event["data"].get("agent")
        if type(agent) is not str or agent == SYSTEM:
            continue
        if event["type"] == "agent_start" and _is_top(event["data"]):
            return agent
        if event["type"] in _MESSAGE_TYPES or event["type"] == "agent_start":
            agents.append(agent)
    return next((name for name in agents if name not in children), agents[0] if agents else MAIN)
