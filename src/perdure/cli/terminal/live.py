"""Live output of a run: streamed text, and a line for each call and event."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import anyio

from perdure.cli.terminal.activity import Activity
from perdure.cli.terminal.findings import pending_line
from perdure.cli.terminal.status_line import STATUS
from perdure.cli.terminal.terminal import (
    Terminal,
    age,
    call_text,
    line,
    plural,
)
from perdure.core.log.events import RAISED
from perdure.views.events import Delta, Event

Json = Mapping[str, Any]

STATUS_S: Final = 0.2  # how often the status line is written again
_LONGEST_ARGS: Final = 1_000  # characters of a call's arguments that are printed while streamed


class LivePrinter:
    """Printer of the events and deltas of one session."""

    def __init__(
        self, terminal: Terminal, *, thinking: bool = False, is_driven_here: bool = True
    ) -> None:
        self._terminal = terminal
        self._activity = Activity(is_driven_here=is_driven_here)
        self._kinds = ("text", "args", "thinking") if thinking else ("text", "args")
        self._current: tuple[str, str | None] = ("text", None)  # kind and call id of the last delta
        self._args_left = 0  # characters of that call's arguments that may still be printed
        self._streamed_kinds: set[str] = set()  # kinds of deltas of this model response
        self._calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._started_at: dict[str, int] = {}
        self._attempts: dict[str, int] = {}  # of each call
        self._requests: dict[str, tuple[int, str]] = {}  # attempt and kind of what a tool asked for
        self._pending: dict[str, Mapping[str, Any]] = {}
        self._is_mid_line = False
        self.last_text = ""
        self._printers: Final[Mapping[str, Callable[[Json, int], None]]] = {
            "assistant": self._on_assistant,
            "tool_started": self._on_tool_started,
            "tool_result": self._on_tool_result,
            "pending": self._on_pending,
            "progress": self._on_progress,
            "vote": self._on_vote,
            "retry": self._on_retry,
            "compacted": self._on_compacted,
            "compaction_failed": self._on_compaction_failed,
            "agent_changed": self._on_agent_changed,
            "safety_limit": self._on_safety_limit,
        }

    def load(self, events: Iterable[Event]) -> None:
        """Record earlier events without printing them."""
        for event in events:
            self._record(event)
        self.last_text = ""  # only text that was printed counts

    def print_item(self, item: Event | Delta) -> None:
        """Print an event or delta, if it is of interest to a person."""
        if isinstance(item, Delta):
            self._print_delta(item)
            return
        self._record(item)
        printer = self._printers.get(item.type)
        if printer is not None:
            printer(item.data, item.at_ms)

    async def show_status(self) -> None:
        """Show what runs in the status line, until cancelled; do nothing without a terminal."""
        while self._terminal.has_status_line:
            text = None if self._is_mid_line else self._activity.text()
            if text is not None:
                STATUS.show(text)
            await anyio.sleep(STATUS_S)

    # --- recording ----------------------------------------------------------------------------

    def _record(self, event: Event) -> None:
        data = event.data
        self._activity.record(event)
        match event.type:
            case "tool_call":
                self._calls[data["id"]] = (data["tool"], data.get("params") or {})
            case "tool_started":
                self._started_at[data["id"]] = event.at_ms
                self._attempts[data["id"]] = data["attempt"]
            case "pending":
                self._pending[data["pendingID"]] = data
                if data.get("reason") == RAISED:
                    call_id = data["callID"]
                    self._requests[call_id] = (self._attempts.get(call_id, 1), data["kind"])
            case "decision" if data.get("args"):
                tool, args = self._calls.get(data["callID"], ("", {}))
                self._calls[data["callID"]] = (tool, {**args, **data["args"]})
            case "assistant":
                self.last_text = data.get("content") or ""
            case _:
                pass

    def _call_text(self, call_id: str) -> str:
        tool, args = self._calls.get(call_id, (call_id, {}))
        return call_text(tool, args)

    # --- printing -----------------------------------------------------------------------------

    def _print_line(self, text: str, *, dim: bool = False) -> None:
        if self._is_mid_line:
            self._terminal.print()
            self._is_mid_line = False
        self._terminal.print(text, dim=dim)

    def _print_delta(self, delta: Delta) -> None:
        if delta.kind in self._kinds and self._terminal.is_live:
            self._print_part(delta.kind, delta.text, delta.call_id)
        elif delta.kind == "reset" and self._is_mid_line:
            self._streamed_kinds.clear()
            text = delta.text or "the model request was repeated"
            self._print_line(f"({line(text, 80)})", dim=True)
        elif delta.kind == "progress":
            self._print_line(f"  … {line(delta.text, 200)}", dim=True)

    def _print_part(self, kind: str, text: str, call_id: str | None) -> None:
        begins = not self._is_mid_line or self._current != (kind, call_id)
        if self._is_mid_line and begins:
            self._terminal.print()
        if kind == "args":
            text = self._shorten_args(text, begins=begins)
        self._terminal.print_part(text, dim=kind != "text")
        self._is_mid_line, self._current = True, (kind, call_id)
        self._streamed_kinds.add(kind)

    def _shorten_args(self, text: str, *, begins: bool) -> str:
        """Return a delta of arguments, cut where all arguments become too long."""
        if begins:
            self._args_left = _LONGEST_ARGS
        shown, room = text[: self._args_left], self._args_left
        self._args_left -= len(shown)
        more = "…" if room and len(text) >= room else ""
        return f"{'  → ' if begins else ''}{shown}{more}"

    def _on_assistant(self, data: Mapping[str, Any], _: int) -> None:
        streamed, self._streamed_kinds = self._streamed_kinds, set()
        if self._is_mid_line:
            self._terminal.print()
            self._is_mid_line = False
        if "text" in streamed or "thinking" in streamed:
            return
        if data.get("thinking") and "thinking" in self._kinds:
            self._terminal.print(data["thinking"], dim=True)
        if data.get("content"):
            self._terminal.print(data["content"])

    def _on_tool_started(self, data: Mapping[str, Any], _: int) -> None:
        asked_at, kind = self._requests.get(data["id"], (0, ""))
        attempt = data["attempt"] - asked_at  # as the tool sees it
        if attempt > 1:
            text = f"with the same effect id (attempt {attempt})"
        elif asked_at:
            text = f"from its beginning, with the {'answer' if kind == 'question' else 'approval'}"
        else:
            return
        self._print_line(f"↻ {self._call_text(data['id'])} runs again {text}")

    def _on_tool_result(self, data: Mapping[str, Any], now: int) -> None:
        call_id = data["toolCallId"]
        started_at = self._started_at.get(call_id)
        took = f"  {age(now - started_at)}" if started_at is not None else ""
        if not data.get("isError"):
            self._print_line(f"✓ {self._call_text(call_id)}{took}")
            return
        result = data["result"]
        reason = result if isinstance(result, str) else "it failed"
        self._print_line(f"✗ {self._call_text(call_id)}{took}  {line(reason, 160)}")

    def _on_pending(self, data: Mapping[str, Any], now: int) -> None:
        # A deferred call is printed once its work has started; nothing starts an external one.
        if data["kind"] != "tool" or data.get("external"):
            self._print_line(pending_line(data, data.get("expiresAt"), now))

    def _on_progress(self, data: Mapping[str, Any], now: int) -> None:
        pending = self._pending.get(data["pendingID"], {})
        if data.get("returned") and pending:
            expires_at = data.get("expiresAt", pending.get("expiresAt"))
            self._print_line(pending_line({**pending, **data}, expires_at or None, now))
        elif data.get("message") or data.get("percent") is not None:
            percent = "" if data.get("percent") is None else f"{data['percent']:g}% "
            self._print_line(f"  … {percent}{line(data.get('message') or '', 200)}", dim=True)

    def _on_vote(self, data: Mapping[str, Any], _: int) -> None:
        missing = data.get("missing", 0)
        more = f"; {plural(missing, 'more approval')} needed" if missing else ""
        tool, args = self._calls.get(data["callID"], (data["callID"], {}))
        call = call_text(tool, {**args, **(data.get("args") or {})})
        self._print_line(f"  {line(data['by'])} approved {call}{more}")

    def _on_retry(self, data: Mapping[str, Any], now: int) -> None:
        other = data.get("model")
        if other:
            then = f"continuing with {line(other, 80)}"
        else:
            then = f"attempt {data['attempt'] + 1} in {age(data['next'] - now)}"
        self._print_line(f"↻ the model request failed ({line(data['message'], 160)}); {then}")

    def _on_compacted(self, data: Mapping[str, Any], _: int) -> None:
        text = f"  the model continues from a summary of the events up to {data['upTo']}"
        self._print_line(text, dim=True)

    def _on_compaction_failed(self, data: Mapping[str, Any], _: int) -> None:
        self._print_line(f"✗ the summary failed: {line(data['error'], 160)}")

    def _on_agent_changed(self, data: Mapping[str, Any], _: int) -> None:
        parts = [f"{kind} {', '.join(names)}" for kind, names in data.items() if names]
        details = f": {'; '.join(parts)}" if parts else ""
        self._print_line(f"  the agent has changed since the session last ran{details}", dim=True)

    def _on_safety_limit(self, data: Mapping[str, Any], _: int) -> None:
        self._print_line(
            f"! the limit {data['limit']} of the agent was reached ({data['value']:g})"
        )
