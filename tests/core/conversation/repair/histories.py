"""Random broken histories of several agents and providers.

Nothing here shares code with the repair.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from perdure.core.conversation.messages import (
    AssistantMessage,
    RequestedCall,
    ToolMessage,
    UserMessage,
)

MODEL = "claude-x"
SHARES = ("parallel calls", "interleaved agents", "reused ids", "a cut tail", "damaged thinking")

TEXTS = (
    "hello",
    "a longer text, with words",
    "line\nline",
    "naïve café",
    "日本語",
    "😀",
    "half \ud83d",
    "\udc00 low",
    "\ud83d\ude00 in two halves",
    "",
    " ",
    "\n\t",
    "\u2028",
    "\x00",
    '{"json": 1}',
)
IDS = ("a", "b", "call_1", "toolu_01", "functions.Bash:0", "", "x" * 41, "x" * 80, "é", "\ud800")
NAMES = ("read", "write", "read file", "", "n" * 70, "mcp__github__search")
VALUES: tuple[Any, ...] = (
    {},
    {"path": "/srv/x"},
    {"n": 1.5, "list": [1, None, True]},
    {"bad": float("nan")},
    {"bad": float("inf"), "half": "\ud83d"},
    {"deep": [[[[{}]]]]},
)
MEDIA: tuple[tuple[Any, ...], ...] = (
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},),
    ({"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}},),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},),
    ({"type": "input_image", "image_url": "https://example.org/x.png"},),
    ({"type": "file", "mediaType": "application/pdf", "name": "x.pdf", "data": "AAAA"},),
    ({"type": "file", "mediaType": "text/plain", "name": "x.txt", "blob": "sha256:00"},),
    ({"type": "file", "file": {"file_id": "file-1"}},),
    ({"type": "document", "source": {"type": "text", "data": "x", "media_type": "text/plain"}},),
    ({"type": "search_result", "source": "x", "title": "y", "content": [{"type": "text"}]},),
    ({"type": "image", "source": {"type": "base64"}}, {"type": "image"}, {"type": "file"}),
)


class Hostile(dict[str, Any]):
    """Message-like object that raises at every access."""

    def __init__(self) -> None:
        super().__init__(role="user", content="hi")

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)

    def get(self, key: str, default: Any = None) -> Any:
        raise RuntimeError(key)

    def items(self) -> Any:
        raise RuntimeError

    def __iter__(self) -> Any:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __repr__(self) -> str:
        return "Hostile()"  # for the report of a failed test

    __hash__ = None


class Evil:
    """Object that raises at every access."""

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError

    def __repr__(self) -> str:
        return "Evil()"  # for the report of a failed test

    __eq__ = __hash__ = __bool__ = __str__ = __len__ = __iter__ = _refuse


def cyclic() -> Any:
    message: dict[str, Any] = {"role": "user", "content": []}
    message["content"].append(message)
    return message


OBJECTS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: 3,
    lambda: "text",
    list,
    dict,
    lambda: [None, {"role": "user"}],
    lambda: {"role": 3, "content": "x"},
    lambda: {"role": "user"},
    lambda: {"role": "robot", "content": "x"},
    lambda: {"role": "tool", "content": "x"},
    lambda: {"role": "user", "content": {"type": "text"}},
    lambda: {"role": "assistant", "content": "", "tool_calls": "no list"},
    lambda: {"role": "assistant", "content": None, "tool_calls": [None, 3, {}, {"id": "a"}]},
    lambda: {"role": "user", "content": [None, 3, "x", {"type": 3}, {"type": "video"}]},
    lambda: {"type": "function_call"},
    lambda: {"type": "reasoning", "encrypted_content": None},
    lambda: {"type": "user", "timestamp": "now", "data": {}},
    lambda: {"type": "unheard_of", "timestamp": 1, "data": {}},
    lambda: {"type": "tool_result", "timestamp": 1, "data": {"toolCallId": ["a"]}},
    lambda: {1: 2, None: ()},
    lambda: {"role": "user", "content": "x", "meta": {1, 2}},
    lambda: {"role": "user", "content": b"bytes"},
    object,
    Hostile,
    Evil,
    lambda: {"role": Evil(), "content": [Evil()]},
    lambda: {"role": "user", "content": [{"type": Evil(), "text": Evil()}]},
    lambda: {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": Evil()}]},
    lambda: {"role": "user", "content": [{"type": "tool_result", "content": [Evil(), {}]}]},
    cyclic,
)


def sign(thinking: str, model: str) -> str:
    return f"{model}:{len(thinking)}:{thinking.encode('utf-8', 'replace').hex()[:16]}"


def signed(block: Any) -> bool:
    """Return True for a private block as the requested model issued it."""
    if block["type"] == "redacted_thinking":
        return bool(block.get("data") == f"redacted by {MODEL}")
    return bool(block.get("signature") == sign(block["thinking"], MODEL))


@dataclass
class History:
    """List to repair: of events if `is_log`, else of messages."""

    items: list[Any]
    is_log: bool
    shares: set[str] = field(default_factory=set)


@dataclass
class Step:
    """Turn of one agent."""

    agent: str
    user: str | None
    text: str | None
    thinking: list[Any]
    model: str
    calls: list[tuple[str, str, Any]]
    results: list[tuple[str, Any]]


class Maker:
    """Generator of one history from one random source."""

    def __init__(self, random: Random, *, clean: bool = False) -> None:
        self.random = random
        self.clean = clean
        self.shares: set[str] = set()
        self._ids = 0

    def one_in(self, n: int) -> bool:
        return self.random.randrange(n) == 0

    # --- content -------------------------------------------------------------------------

    def text(self) -> str:
        if self.clean:
            return f"{self.random.choice(TEXTS[:6])} {self.random.randrange(1000)}"
        return self.random.choice(TEXTS) if self.one_in(2) else f"text {self.random.randrange(99)}"

    def call_id(self) -> str:
        self._ids += 1
        if self.clean or not self.one_in(4):
            return f"call_{self._ids:03d}"
        return self.random.choice(IDS)

    def value(self) -> Any:
        return self.random.choice(VALUES[:3] if self.clean else VALUES)

    def thinking(self, model: str) -> list[Any]:
        said = f"let me think {self.random.randrange(99)}"
        block: dict[str, Any] = {"type": "thinking", "thinking": said}
        block["signature"] = sign(said, model)
        blocks = [block]
        if self.one_in(4):
            blocks.append({"type": "redacted_thinking", "data": f"redacted by {model}"})
        if not self.clean and self.one_in(2):
            self.shares.add("damaged thinking")
            broken = dict(self.random.choice(blocks))
            key = self.random.choice([key for key in broken if key != "type"])
            broken[key] = self.random.choice([None, "", 3, "\ud800"])
            blocks[self.random.randrange(len(blocks))] = broken
        return blocks

    def step(self, agent: str, used: list[str]) -> Step:
        """Return a turn: maybe a user text, a response, calls, and results in any order."""
        random = self.random
        calls = []
        for _ in range(random.choice((0, 1, 1, 2, 3))):
            again = not self.clean and used and self.one_in(4)
            call_id = random.choice(used) if again else self.call_id()
            if call_id in used:
                self.shares.add("reused ids")
            used.append(call_id)
            name = random.choice(NAMES[:2] if self.clean else NAMES)
            calls.append((call_id, name, self.value()))
        if len(calls) > 1:
            self.shares.add("parallel calls")
        results = [(call_id, self.text()) for call_id, _, _ in calls]
        random.shuffle(results)
        model = MODEL if self.clean or not self.one_in(4) else "claude-y"
        thinking = self.thinking(model) if self.one_in(2) else []
        text = self.text() if not calls or self.one_in(2) else None
        user = self.text() if self.one_in(2) or not used else None
        return Step(agent, user, text, thinking, model, calls, results)


def random_history(seed: int) -> History:
    """Return a broken history: a log of several agents, or messages of several providers."""
    random = Random(seed)  # noqa: S311 - the same histories every time
    maker = Maker(random)
    is_log = not maker.one_in(3)
    agents = ["main", "helper", "reader"][: random.choice((1, 2, 2, 3)) if is_log else 1]
    used: dict[str, list[str]] = {agent: [] for agent in agents}
    if maker.one_in(3):
        used = dict.fromkeys(agents, used["main"])
    steps = [
        maker.step(agent, used[agent]) for agent in agents for _ in range(random.randrange(1, 4))
    ]
    write = log_of if is_log else messages_of
    items = write(maker, steps)
    if len(items) > 2 and maker.one_in(3):
        maker.shares.add("a cut tail")
        items = items[: random.randrange(1, len(items))]
    for _ in range(random.choice((0, 0, 1, 1, 2, 4))):
        break_one(maker, items)
    return History(items, is_log, maker.shares)


def break_one(maker: Maker, items: list[Any]) -> None:
    """Drop, duplicate, move or damage an item, or insert another."""
    random = maker.random
    place = random.randrange(len(items)) if items else 0
    what = random.randrange(6)
    if what == 0 and items:
        del items[place]
    elif what == 1 and items:
        items.insert(random.randrange(len(items) + 1), items[place])
    elif what == 2 and items:
        items.insert(random.randrange(len(items)), items.pop(place))
    elif what == 3 and items and type(items[place]) is dict and items[place]:
        spoiled = dict(items[place])
        spoiled[random.choice(list(spoiled))] = random.choice(OBJECTS)()
        items[place] = spoiled
    else:
        items.insert(place, random.choice(OBJECTS)())


# --- as a log of events -----------------------------------------------------------------------


def log_of(maker: Maker, steps: list[Step]) -> list[Any]:
    """Return the steps of all agents, interleaved as if they ran concurrently."""
    queues: dict[str, list[Any]] = {}
    for step in steps:
        queues.setdefault(step.agent, []).extend(_events(step))
    log: list[Any] = [_event("agent_start", agent="main", depth=0)]
    agents = [agent for agent, queue in queues.items() if queue]
    order: list[str] = []
    while agents:
        agent = maker.random.choice(agents)
        order.append(agent)
        log.append(queues[agent].pop(0))
        agents = [agent for agent, queue in queues.items() if queue]
    if len({(one, two) for one, two in pairwise(order) if one != two}) > 1:
        maker.shares.add("interleaved agents")
    return log


def _event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": 1_700_000_000_000, "data": data}


def _events(step: Step) -> list[Any]:
    made = []
    if step.user is not None:
        if step.agent != "main":
            task = _event("delegation", parent="main", child=step.agent, task=step.user)
            made += [task, _event("agent_start", agent=step.agent, depth=1)]
        made.append(_event("user", role="user", content=step.user))
    if step.text is not None or step.thinking:
        said = _event("assistant", role="assistant", content=step.text or "", agent=step.agent)
        if step.thinking:
            calls = [_tool_use(call) for call in step.calls]
            text = [{"type": "text", "text": step.text}] if step.text else []
            native = [*step.thinking, *text, *calls]
            said["data"] |= {"native": native, "provider": "anthropic", "model": step.model}
        made.append(said)
    for call_id, name, value in step.calls:
        made.append(_event("tool_call", id=call_id, tool=name, params=value, agent=step.agent))
    for call_id, said in step.results:
        made.append(_event("tool_result", toolCallId=call_id, result={"content": said}))
    return made


def _tool_use(call: tuple[str, str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call[0], "name": call[1], "input": call[2]}


# --- as messages ------------------------------------------------------------------------------


def messages_of(maker: Maker, steps: list[Step]) -> list[Any]:
    """Return each turn in the format of a random provider, or all in the same format."""
    dialects = (anthropic, openai_chat, openai_responses, own)
    one = maker.random.choice(dialects)
    mixed = maker.one_in(2)
    made: list[Any] = []
    for step in steps:
        made += (maker.random.choice(dialects) if mixed else one)(step)
    if maker.one_in(4):
        system = {"role": "system", "content": maker.text()}
        made.insert(maker.random.randrange(len(made) + 1), system)
    if maker.one_in(4):
        shown = {"role": "user", "content": list(maker.random.choice(MEDIA))}
        made.insert(maker.random.randrange(len(made) + 1), shown)
    return made


def anthropic(step: Step) -> list[Any]:
    made: list[Any] = [] if step.user is None else [{"role": "user", "content": step.user}]
    blocks = list(step.thinking)
    if step.text is not None:
        blocks.append({"type": "text", "text": step.text})
    blocks += [_tool_use(call) for call in step.calls]
    origin = {"provider": "anthropic", "model": step.model} if step.thinking else {}
    if blocks:
        made.append({"role": "assistant", "content": blocks, **origin})
    results = [
        {"type": "tool_result", "tool_use_id": call_id, "content": said}
        for call_id, said in step.results
    ]
    return [*made, {"role": "user", "content": results}] if results else made


def openai_chat(step: Step) -> list[Any]:
    made: list[Any] = [] if step.user is None else [{"role": "user", "content": step.user}]
    answer: dict[str, Any] = {"role": "assistant", "content": step.text}
    if step.calls:
        answer["tool_calls"] = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": _json(value)}}
            for one, name, value in step.calls
        ]
    if step.calls or step.text is not None:
        made.append(answer)
    for call_id, said in step.results:
        made.append({"role": "tool", "tool_call_id": call_id, "content": said})
    return made


def openai_responses(step: Step) -> list[Any]:
    made: list[Any] = []
    if step.user is not None:
        made.append({"role": "user", "content": [{"type": "input_text", "text": step.user}]})
    origin = {"provider": "openai", "model": step.model} if step.thinking else {}
    for thought in step.thinking:
        sealed = thought.get("signature", "sealed")
        item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}
        made.append({**item, **origin})
    if step.text is not None:
        part = {"type": "output_text", "text": step.text}
        made.append({"type": "message", "role": "assistant", "content": [part], **origin})
    for call_id, name, value in step.calls:
        call = {"type": "function_call", "call_id": call_id, "name": name}
        made.append({**call, "arguments": _json(value), **origin})
    for call_id, said in step.results:
        made.append({"type": "function_call_output", "call_id": call_id, "output": said})
    return made


def own(step: Step) -> list[Any]:
    made: list[Any] = [] if step.user is None else [UserMessage(step.user)]
    asked = tuple(RequestedCall(one, name, value) for one, name, value in step.calls)
    said = [{"type": "text", "text": step.text}] if step.text else []
    # Only what was sent counts: a thought without text was withheld by the provider.
    thinking = [
        {**one, "signature": sign("", step.model)} if one.get("thinking") == "" else one
        for one in step.thinking
    ]
    native = json.dumps([*thinking, *said, *map(_tool_use, step.calls)]).encode()
    if asked or step.text is not None:
        text = step.text or ""
        made.append(AssistantMessage(text, asked, None, "anthropic", step.model, native))
    for call_id, said in step.results:
        made.append(ToolMessage(call_id, "read", said))
    return made


def _json(value: Any) -> str:
    return json.dumps(value)


def valid_history(seed: int) -> list[Any]:
    """Return messages in one format that the provider accepts unchanged."""
    random = Random(seed)  # noqa: S311 - the same histories every time
    maker = Maker(random, clean=True)
    write = random.choice((anthropic, openai_chat, own))
    used: list[str] = []
    steps = [maker.step("main", used) for _ in range(random.randrange(1, 5))]
    steps[0].user = maker.text()
    for step in steps:
        if not step.calls and step.text is None:
            step.text = maker.text()
    return [message for step in steps for message in write(step)]
