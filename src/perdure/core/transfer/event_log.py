"""The conversations that a log of plain events holds, each agent's by itself.

The events are those of `events.jsonl`: `{type, timestamp, data}` as any writer may have left them,
agents that were delegated to in between. Nothing is thrown away here that `repair` could still
make sense of: this only groups and tells apart.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.conversation.repair.json_values import shown

SYSTEM: Final = "system"  # speaks for the program, never to the model
MAIN: Final = ""  # whoever the log belongs to, where it does not say
_TOLD: Final = frozenset({"user", "assistant", "tool_call", "tool_result"})
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Times:
    """The timestamps of one message: of its first event, and by id of its calls or results."""

    at: float
    by_id: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conversations:
    """The messages of each agent, Anthropic-shaped and not yet repaired; `top` is who began."""

    by_agent: Mapping[str, list[Message]]
    top: str
    warnings: tuple[str, ...] = ()
    times: Mapping[str, list[Times]] = field(default_factory=dict)  # as `by_agent`

    def of(self, agent: str | None = None) -> list[Message]:
        """One agent's messages, by default those of the agent that the log belongs to."""
        return self.by_agent.get(self.top if agent is None else agent, [])


def conversations(events: object) -> Conversations:
    """Tell a log's conversations apart. Never raises; what is no event is named in `warnings`."""
    if type(events) is not list:
        return Conversations({}, MAIN, ("the log is not a list of events",))
    recall = _LogReader(events)
    for place, event in enumerate(events):
        recall.take(place, event)
    made = {agent: told.messages() for agent, told in recall.agents.items()}
    times = {agent: told.times for agent, told in recall.agents.items()}
    return Conversations(made, recall.top, tuple(recall.warnings), times)


def is_event(event: object) -> bool:
    """Whether something has the form of an event: a type, an instant, and data."""
    if type(event) is not dict or type(event.get("type")) is not str:
        return False
    return type(event.get("timestamp")) in (int, float) and type(event.get("data")) is dict


class _LogReader:
    """Who said what, while a log is read from its beginning."""

    def __init__(self, events: list[Any]) -> None:
        known = [event for event in events if is_event(event)]
        self.top = _top_agent(known)
        self.agents: dict[str, _Told] = {}
        self.warnings: list[str] = []
        self._tasks = _delegated(known)
        self._started: dict[str, None] = {}  # agents that have not been told their task yet
        self._callers: dict[str, list[str]] = {}  # by call id, who waits for its result

    def take(self, place: int, event: Any) -> None:
        """The next event."""
        if not is_event(event):
            self.warnings.append(f"event {place} has no type, timestamp and data: ignored")
            return
        kind, data = event["type"], event["data"]
        if kind == "agent_start":
            self._start(data)
        elif kind in _TOLD and SYSTEM not in (_word(data, "role"), _word(data, "agent")):
            self._told(kind, data, event["timestamp"])

    def _start(self, data: dict[str, Any]) -> None:
        agent = _word(data, "agent")
        if agent is None:
            return
        if _is_top(data):
            self._started.clear()
        self._started.pop(agent, None)
        self._started[agent] = None

    def _told(self, kind: str, data: dict[str, Any], at: float) -> None:
        if kind == "user":
            self._of(self._addressee(data)).said(data, at)
        elif kind == "assistant":
            self._of(self._speaker(data)).answered(data, at)
        elif kind == "tool_call":
            speaker = self._speaker(data)
            self._callers.setdefault(_key(data.get("id")), []).append(speaker)
            self._of(speaker).called(data, at)
        else:
            self._of(self._caller(data)).heard(data, at)

    def _caller(self, data: dict[str, Any]) -> str:
        """Who a result is for: the last who called with its id and still waits."""
        waiting = self._callers.get(_key(data.get("toolCallId")))
        if not waiting:
            return self._speaker(data)
        return waiting.pop() if len(waiting) > 1 else waiting[0]

    def _of(self, agent: str) -> "_Told":
        return self.agents.setdefault(agent, _Told())

    def _speaker(self, data: dict[str, Any]) -> str:
        return _word(data, "agent") or self.top

    def _addressee(self, data: dict[str, Any]) -> str:
        """Who a message was for: the log's own agent, unless it is the task of a delegation."""
        if type(data.get("agent")) is str:
            return str(data["agent"])
        children = self._tasks.get(_key(data.get("content")))
        latest = next(reversed(self._started), self.top)
        addressee = children.popleft() if children else latest
        self._started.pop(addressee, None)
        return addressee


@dataclass(slots=True)
class _Told:
    """One agent's conversation while it is read."""

    _messages: list[Message] = field(default_factory=list)
    _natives: dict[int, list[Any]] = field(default_factory=dict)
    _heard: list[int] = field(default_factory=list)  # the places of results
    times: list[Times] = field(default_factory=list)

    def said(self, data: dict[str, Any], at: float) -> None:
        self._add({"role": "user", "content": _own(data.get("content"))}, at)

    def _add(self, message: Message, at: float) -> None:
        self._messages.append(message)
        self.times.append(Times(at))

    def answered(self, data: dict[str, Any], at: float) -> None:
        origin = {key: data[key] for key in ("provider", "model") if type(data.get(key)) is str}
        for key in ("native", "raw_content"):
            if type(data.get(key)) is list:
                self._natives[len(self._messages)] = data[key]
        content = _own(data.get("content"))
        self._add({"role": "assistant", "content": content, **origin}, at)

    def called(self, data: dict[str, Any], at: float) -> None:
        """A call stands with the text of its turn and the calls beside it."""
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
            last["content"] = [*_texts(last["content"]), block]
        self.times[-1].by_id.setdefault(_key(data.get("id")), at)

    def heard(self, data: dict[str, Any], at: float) -> None:
        """A result stands with those of the same turn."""
        block = {
            "type": "tool_result",
            "tool_use_id": data.get("toolCallId"),
            "content": _result(data.get("result")),
        }
        if _is_error(data):
            block["is_error"] = True
        if self._heard and self._heard[-1] == len(self._messages) - 1:
            self._messages[-1]["content"].append(block)
        else:
            self._heard.append(len(self._messages))
            self._add({"role": "user", "content": [block]}, at)
        self.times[-1].by_id.setdefault(_key(data.get("toolCallId")), at)

    def messages(self) -> list[Message]:
        """All of it: results in the order of their calls, native answers as they came."""
        for place in self._heard:
            before = self._messages[place - 1] if place else {"content": []}
            order = {key: n for n, key in reversed(list(enumerate(_call_ids(before))))}
            self._messages[place]["content"].sort(
                key=lambda block, order=order: order.get(_key(block["tool_use_id"]), len(order))
            )
        for place, native in self._natives.items():
            same_calls = _call_ids({"content": native}) == _call_ids(self._messages[place])
            if same_calls and all(map(_is_block, native)):
                self._messages[place]["content"] = native
        return self._messages


def _own(content: Any) -> Any:
    """The content of an event, so that adding to it does not add to the event."""
    return list(content) if type(content) is list else content


def _call_ids(message: Message) -> list[str]:
    content = message["content"]
    blocks = content if type(content) is list else []
    calls = (one for one in blocks if type(one) is dict and _word(one, "type") == "tool_use")
    return [_key(call.get("id")) for call in calls]


def _is_block(item: Any) -> bool:
    """Whether it is a content block, and not a message of OpenAI."""
    return type(item) is dict and _word(item, "type") not in (None, "message")


def _texts(content: Any) -> list[Any]:
    if type(content) is str:
        return [{"type": "text", "text": content}] if content.strip() else []
    return [] if content is None else [content]


def _word(data: dict[str, Any], key: str) -> str | None:
    return data[key] if type(data.get(key)) is str else None


def _is_top(data: dict[str, Any]) -> bool:
    return type(data.get("depth")) is int and data["depth"] == 0


def _key(value: Any) -> str:
    return value if type(value) is str else shown(value)


def _result(result: Any) -> Any:
    """What a tool said: text, or a list of blocks, or the JSON of whatever it is."""
    if type(result) is dict and type(result.get("content")) is str:
        return result["content"]
    is_blocks = type(result) is list and all(
        type(one) is dict and type(one.get("type")) is str for one in result
    )
    return result if result is None or is_blocks else shown(result)


def _is_error(data: dict[str, Any]) -> bool:
    result = data.get("result")
    flags = [data.get("isError")]
    if type(result) is dict:
        flags += [result.get("isError"), result.get("is_error")]
    return any(flag is True for flag in flags)


def _delegated(events: list[Any]) -> dict[str, deque[str]]:
    """By the text of a task, the agents that it was given to."""
    tasks: dict[str, deque[str]] = {}
    for event in events:
        data = event["data"]
        if event["type"] == "delegation" and type(data.get("child")) is str and "task" in data:
            tasks.setdefault(_key(data["task"]), deque()).append(data["child"])
    return tasks


def _top_agent(events: list[Any]) -> str:
    """Whose log it is: who was started at the top, else who spoke first and was not sent for."""
    children = {_key(one["data"].get("child")) for one in events if one["type"] == "delegation"}
    spoke: list[str] = []
    for event in events:
        named = event["data"].get("agent")
        if type(named) is not str or named == SYSTEM:
            continue
        if event["type"] == "agent_start" and _is_top(event["data"]):
            return named
        if event["type"] in _TOLD or event["type"] == "agent_start":
            spoke.append(named)
    return next((name for name in spoke if name not in children), spoke[0] if spoke else MAIN)
