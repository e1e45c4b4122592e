"""A run as it happens: text as it comes, a line for each call, and where it stands at the end."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from perdure.cli.terminal.terminal import Terminal, age, call_text, line

Json = Mapping[str, Any]

_LONGEST_ARGS: Final = 1_000  # characters of a call's arguments that are shown as they come


class Live:
    """Prints events and deltas of one session."""

    def __init__(self, terminal: Terminal, *, thinking: bool = False) -> None:
        self._terminal = terminal
        self._kinds = ("text", "args", "thinking") if thinking else ("text", "args")
        self._saying: tuple[str, str | None] = ("text", None)  # the kind, and of which call
        self._room = 0  # for more of the arguments of that call
        self._seen: set[str] = set()  # kinds of pieces of this answer
        self._calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._begun: dict[str, int] = {}
        self._waits: dict[str, Mapping[str, Any]] = {}
        self._streamed = False
        self.last_text = ""
        self.events: list[Json] = []  # all that is known of the log

    def learn(self, past: Iterable[Json]) -> None:
        """Know what happened before, without printing it."""
        for event in past:
            self._note(event)
        self.last_text = ""  # of what was printed

    def take(self, item: Json) -> None:
        """Print what is worth printing of an event or delta."""
        if item["type"] == "delta":
            self._delta(item["data"])
            return
        self._note(item)
        show = getattr(self, f"_on_{item['type']}", None)
        if show is not None:
            show(item["data"], item["timestamp"])

    # --- what is known ------------------------------------------------------------------------

    def _note(self, event: Json) -> None:
        data = event["data"]
        self.events.append(event)
        match event["type"]:
            case "tool_call":
                self._calls[data["id"]] = (data["tool"], data.get("params") or {})
            case "tool_started":
                self._begun[data["id"]] = event["timestamp"]
            case "pending":
                self._waits[data["pendingID"]] = data
            case "decision" if data.get("args"):
                tool, args = self._calls.get(data["callID"], ("", {}))
                self._calls[data["callID"]] = (tool, {**args, **data["args"]})
            case "assistant":
                self.last_text = data.get("content") or ""
            case _:
                pass

    def _call(self, call_id: str) -> str:
        tool, args = self._calls.get(call_id, (call_id, {}))
        return call_text(tool, args)

    # --- what is printed ----------------------------------------------------------------------

    def _line(self, text: str, *, dim: bool = False) -> None:
        if self._streamed:
            self._terminal.say()
            self._streamed = False
        self._terminal.say(text, dim=dim)

    def _delta(self, delta: Json) -> None:
        if delta["kind"] in self._kinds and self._terminal.is_live:
            self._piece(delta["kind"], delta["text"], delta.get("callID"))
        elif delta["kind"] == "reset" and self._streamed:
            self._seen.clear()
            self._line(f"({line(delta['text'] or 'asked again', 80)})", dim=True)
        elif delta["kind"] == "progress":
            self._line(f"  … {line(delta['text'], 200)}", dim=True)

    def _piece(self, kind: str, text: str, call_id: str | None) -> None:
        begins = not self._streamed or self._saying != (kind, call_id)
        if self._streamed and begins:
            self._terminal.say()
        if kind == "args":
            text = self._shortened(text, begins=begins)
        self._terminal.piece(text, dim=kind != "text")
        self._streamed, self._saying = True, (kind, call_id)
        self._seen.add(kind)

    def _shortened(self, text: str, *, begins: bool) -> str:
        """A piece of arguments, as long as they are not too long to be watched."""
        if begins:
            self._room = _LONGEST_ARGS
        shown, room = text[: self._room], self._room
        self._room -= len(shown)
        more = "…" if room and len(text) >= room else ""
        return f"{'  → ' if begins else ''}{shown}{more}"

    def _on_assistant(self, data: Mapping[str, Any], _: int) -> None:
        seen, self._seen = self._seen, set()
        if self._streamed:
            self._terminal.say()
            self._streamed = False
        if "text" in seen or "thinking" in seen:
            return
        if data.get("thinking") and "thinking" in self._kinds:
            self._terminal.say(data["thinking"], dim=True)
        if data.get("content"):
            self._terminal.say(data["content"])

    def _on_tool_started(self, data: Mapping[str, Any], _: int) -> None:
        if data["attempt"] > 1:
            self._line(
                f"↻ {self._call(data['id'])} is run again with the same effect id "
                f"(attempt {data['attempt']})"
            )

    def _on_tool_result(self, data: Mapping[str, Any], now: int) -> None:
        call_id = data["toolCallId"]
        begun = self._begun.get(call_id)
        took = f"  {age(now - begun)}" if begun is not None else ""
        if not data.get("isError"):
            self._line(f"✓ {self._call(call_id)}{took}")
            return
        result = data["result"]
        why = result if isinstance(result, str) else "it failed"
        self._line(f"✗ {self._call(call_id)}{took}  {line(why, 160)}")

    def _on_pending(self, data: Mapping[str, Any], now: int) -> None:
        if data["kind"] != "tool":  # a deferred call is told once it has begun outside
            self._line(waiting_line(data, data.get("expiresAt"), now))

    def _on_progress(self, data: Mapping[str, Any], now: int) -> None:
        waits = self._waits.get(data["pendingID"], {})
        if data.get("returned") and waits:
            until = data.get("expiresAt", waits.get("expiresAt"))
            self._line(waiting_line({**waits, **data}, until or None, now))
        elif data.get("message") or data.get("percent") is not None:
            percent = "" if data.get("percent") is None else f"{data['percent']:g}% "
            self._line(f"  … {percent}{line(data.get('message') or '', 200)}", dim=True)

    def _on_retry(self, data: Mapping[str, Any], now: int) -> None:
        other = data.get("model")
        then = f"{line(other, 80)} is asked" if other else f"again in {age(data['next'] - now)}"
        self._line(f"↻ the model did not answer ({line(data['message'], 160)}); {then}")

    def _on_compacted(self, data: Mapping[str, Any], _: int) -> None:
        self._line(f"  the model goes on from a summary up to event {data['upTo']}", dim=True)

    def _on_compaction_failed(self, data: Mapping[str, Any], _: int) -> None:
        self._line(f"✗ there is no summary: {line(data['error'], 160)}")

    def _on_agent_changed(self, data: Mapping[str, Any], _: int) -> None:
        parts = [f"{kind} {', '.join(names)}" for kind, names in data.items() if names]
        said = f": {'; '.join(parts)}" if parts else ""
        self._line(f"  the agent's code has changed since it last ran{said}", dim=True)

    def _on_safety_limit(self, data: Mapping[str, Any], _: int) -> None:
        self._line(f"! the limit {data['limit']} of the agent was reached ({data['value']:g})")


def waiting_line(waits: Mapping[str, Any], until: int | None, now: int) -> str:
    """What one call waits for: `⏸ refund(order_id=991) needs approval, expires in 24h`."""
    call = call_text(waits["tool"], waits.get("input") or {})
    expires = f", expires in {age(until - now)}" if until else ""
    match waits["kind"]:
        case "approval":
            again = " again: it was interrupted" if waits.get("reason") == "interrupted" else ""
            return f"⏸ {call} needs approval{again}{expires}"
        case "question":
            return f"⏸ asks: {line(waits.get('prompt') or call, 300)}{expires}"
        case "timer":
            return f"⏲ {call} waits{f', {age(until - now)} more' if until else ''}"
        case "child":
            return f"⏳ {call} waits for its agent{expires}"
        case _:
            ref = waits.get("externalRef")
            outside = f" (ext ref {line(ref, 80)})" if ref else ""
            return f"⏳ {call} waits for its result{outside}{expires}"
