"""Foreign messages as events of ours, repaired, so that the session can be gone on with."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from perdure.core.conversation.repair.json_values import plain, shown
from perdure.core.conversation.repair.model import Block, Issue, Part, Turn
from perdure.core.conversation.repair.rewrite import mend
from perdure.core.log import events
from perdure.core.pending.settlement import INTERRUPTED
from perdure.core.transfer.foreign.model import Foreign, ForeignMessage

_UNKNOWN_MEDIA: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ConvertedLog:
    """The events of a session that was taken over, each with its instant, and what was mended."""

    log: tuple[tuple[int, events.Event], ...]
    issues: tuple[Issue, ...]


def convert(foreign: Foreign, agent: str, now: int) -> ConvertedLog:
    """The session as its log begins here: complete, at rest, with what was wrong as an event."""
    turns, issues = mend([one.message for one in foreign.said], "tell")
    writer = _Writer(agent, foreign.said, now)
    for turn in turns:
        writer.take(turn)
    at = writer.at or now
    ends: list[tuple[int, events.Event]] = [(at, end) for end in writer.end()]
    if issues or foreign.notes:
        ends.append((at, events.SessionRecovery(issues=_shown(foreign, issues))))
    source = f"{foreign.format}:{foreign.session_id or ''}"
    ends.append((at, events.Forked(source=source, at=len(foreign.said))))
    return ConvertedLog((*writer.log, *ends), tuple(issues))


def _shown(foreign: Foreign, issues: Sequence[Issue]) -> list[Any]:
    notes = [{"type": "left_out", "details": note} for note in foreign.notes]
    return notes + [
        {key: value for key, value in asdict(issue).items() if key != "ids"} for issue in issues
    ]


class _Writer:
    """Writes turns as events; instants never go back."""

    def __init__(self, agent: str, said: Sequence[ForeignMessage], now: int) -> None:
        self.log: list[tuple[int, events.Event]] = []
        self.at = 0
        self._agent = agent
        self._said = said
        self._by_id: Mapping[str, int] = {}
        self._now = now
        self._turn = 0

    def take(self, turn: Turn) -> None:
        """The next turn; what a system said is the agent's own business now."""
        said = self._said[turn.at] if 0 <= turn.at < len(self._said) else ForeignMessage(None)
        self._by_id = said.by_id
        self._reach(said.at)
        if turn.role == "user":
            self._user(turn)
        elif turn.role == "assistant":
            self._assistant(turn)

    def end(self) -> list[events.Event]:
        """The run is over if the last word was an answer that asks for nothing."""
        last = self.log[-1][1] if self.log else None
        begun = [n for n, (_, e) in enumerate(self.log, 1) if isinstance(e, events.User)]
        if not isinstance(last, events.Assistant) or not begun:
            return []
        run = f"task_{begun[0]}"  # as the fold calls the run of a message that names none
        return [events.AgentComplete(run=run, output=events.raw(last.content), duration=0)]

    def _reach(self, at: int) -> None:
        self.at = max(self.at, min(at, self._now))

    def _write(self, event: events.Event, part: Part | None = None) -> None:
        if part is not None:
            self._reach(self._by_id.get(part.id, 0))
        self.log.append((self.at or self._now, event))

    def _user(self, turn: Turn) -> None:
        for part in turn.parts:
            if part.kind == "result":
                self._write(_result(part.block), part)
        said = [part.block for part in turn.parts if part.kind != "result"]
        if said:
            self._write(events.User(role="user", content=_content(said)))

    def _assistant(self, turn: Turn) -> None:
        self._turn += 1
        texts = [part.block["text"] for part in turn.parts if part.kind == "text"]
        thoughts = [part.block.get("thinking") for part in turn.parts if part.kind == "private"]
        provider, model = turn.more.get("provider"), turn.more.get("model")
        self._write(
            events.Assistant(
                role="assistant",
                content="\n\n".join(texts),
                agent=self._agent,
                turn=self._turn,
                provider=provider,
                model=model,
                thinking="\n\n".join(t for t in thoughts if isinstance(t, str) and t) or None,
                native=_native(turn.parts) if provider and model else UNSET,
            )
        )
        for part in turn.parts:
            if part.kind == "call":
                self._write(self._call(part.block), part)

    def _call(self, block: Block) -> events.ToolCall:
        params = plain(block["input"])
        return events.ToolCall(
            id=block["id"], tool=block["name"], params=params, agent=self._agent, turn=self._turn
        )


def _native(parts: Sequence[Part]) -> Raw | UnsetType:
    """The answer as its provider sent it, where it holds what only that provider can read."""
    if not any(part.kind == "private" for part in parts):
        return UNSET
    return Raw(msgspec.json.encode([part.block for part in parts]))


def _result(block: Block) -> events.ToolResult:
    content = block.get("content", "")
    cut_off = content == INTERRUPTED
    return events.ToolResult(
        tool_call_id=block["tool_use_id"],
        result=content if isinstance(content, str) else _content(content),
        is_error=cut_off or block.get("is_error") is True,
        interrupted=cut_off,
    )


def _content(blocks: Sequence[Block]) -> events.Content:
    """Blocks as text, or as parts where there is more than text."""
    parts = [_part(block) for block in blocks]
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(str(part["text"]) for part in parts)
    return parts


def _part(block: Block) -> events.Part:
    if block.get("type") == "text":
        return {"type": "text", "text": block["text"]}
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") in ("base64", "url"):
        made: events.Part = {"type": "file"}
        made["mediaType"] = source.get("media_type") or _media_type(block)
        if isinstance(block.get("title"), str):
            made["name"] = block["title"]
        key = "data" if source["type"] == "base64" else "url"
        return {**made, key: source.get(key)}
    return {"type": "text", "text": shown(block)}


def _media_type(block: Block) -> str:
    return {"image": "image/*", "document": "application/pdf"}.get(
        str(block.get("type")), _UNKNOWN_MEDIA
    )
