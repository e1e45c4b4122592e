"""Reading commands about the calls that wait."""

import json
from typing import Any, Final

from holdfast.cli import finding
from holdfast.cli.backend import Backend, Given, Json
from holdfast.cli.live import waiting_line
from holdfast.cli.opening import working
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, age, call_text, line, value_text
from holdfast.cli.why import commands_for
from holdfast.core.pending.record import became_of

_LONGEST: Final = 160
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})


def list_pending(settings: Settings, wanted: Given) -> int:
    """The calls that wait, oldest first."""

    async def main(backend: Backend) -> None:
        session = None
        if wanted["session"] is not None:
            session = await finding.session(backend, wanted["session"])
        found = [
            call
            async for call in backend.pending(session, wanted["status"])
            if wanted["kind"] in (None, call["kind"]) and wanted["tool"] in (None, call["tool"])
        ]
        found.sort(key=lambda call: (call["time"]["created"], call["partID"]))
        terminal = Terminal(settings)
        listed = {"pending": found, "count": len(found), "next": None}
        terminal.either(listed, lambda: _pending_table(terminal, found, backend.now()))

    working(settings, main)
    return 0


def _pending_table(terminal: Terminal, found: list[Json], now: int) -> None:
    if not found:
        terminal.say("nothing waits")
        return
    rows = []
    for call in found:
        until = "-" if call["timeout"] is None else age(call["timeout"] - now)
        kind = f"{call['kind']} ({call['externalRef']})" if call["externalRef"] else call["kind"]
        kind = f"{kind} {call['problem']}" if call.get("problem") else kind
        waiting = _since(call, now)
        rows.append((call["id"], call["tool"], call["sessionID"], waiting, until, kind))
    terminal.table(("ID", "TOOL", "SESSION", "WAITING", "EXPIRES", "KIND"), rows)


def _since(call: Json, now: int) -> str:
    if call["time"].get("completed") is None:
        return age(now - call["time"]["created"])
    return str(call["status"])


def show_pending(settings: Settings, given: str) -> int:
    """One pending call, with what to type about it."""

    async def main(backend: Backend) -> None:
        call = await finding.pending(backend, given)
        terminal = Terminal(settings)
        terminal.either(call, lambda: _one_pending(terminal, call, backend.now()))

    working(settings, main)
    return 0


def _one_pending(terminal: Terminal, call: Json, now: int) -> None:
    if call["status"] not in _ENDED:
        terminal.say(waiting_line(call, call["timeout"], now), bold=True)
        for text in commands_for(call, terminal.settings):
            terminal.say(text)
    else:
        told = call_text(call["tool"], call["input"])
        terminal.say(f"{told} {line(became_of(_winner(call)))}", bold=True)
    terminal.say()
    skipped = {"webhookURL", "input", "tool", "partID", "messageID", "by", "via"}
    for name, value in call.items():
        if value not in (None, [], "") and name not in skipped:
            terminal.say(f"  {name:<12} {line(value_text(value), _LONGEST)}")
    terminal.say(f"  {'input':<12} {json.dumps(call['input'], ensure_ascii=False)}")


def _winner(call: Json) -> dict[str, Any]:
    """What settled the call, as a loser is told it."""
    return {"status": call["status"], "by": call.get("by"), **(call["decision"] or {})}
