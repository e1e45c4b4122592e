"""Reading commands about the calls that wait."""

import json
from collections.abc import Mapping
from typing import Any, Final

from holdfast.app import Runtime, service_of
from holdfast.cli import finding
from holdfast.cli.live import waiting_line
from holdfast.cli.opening import opened
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, age, call_text, line, value_text
from holdfast.cli.why import commands_for
from holdfast.core.pending import PendingRecord, became
from holdfast.runtime.results import pending_json

_LONGEST: Final = 160


def list_pending(settings: Settings, wanted: Mapping[str, Any]) -> int:
    """The calls that wait, oldest first."""

    async def main(runtime: Runtime) -> None:
        service = service_of(runtime)
        stream = None
        if wanted["session"] is not None:
            stream = (await finding.session(runtime, wanted["session"])).stream
        tenant = finding.runtime_tenant(runtime)
        found = [
            record
            async for record in service.pending(tenant, status=wanted["status"], stream=stream)
            if wanted["kind"] in (None, record.kind) and wanted["tool"] in (None, record.tool)
        ]
        found.sort(key=lambda one: (one.time.created, one.part_id))
        terminal = Terminal(settings)
        shown = [_pending_json(runtime, one) for one in found]
        listed = {"pending": shown, "count": len(shown), "next": None}
        now = service.desk.store.now()
        terminal.either(listed, lambda: _pending_table(terminal, found, now))

    opened(settings, main)
    return 0


def _pending_json(runtime: Runtime, record: PendingRecord) -> dict[str, Any]:
    desk = service_of(runtime).desk
    return pending_json(record, desk.pending_call(record).callback_url)


def _pending_table(terminal: Terminal, found: list[PendingRecord], now: int) -> None:
    if not found:
        terminal.say("nothing waits")
        return
    rows = []
    for one in found:
        until = "-" if one.timeout is None else age(one.timeout - now)
        kind = f"{one.kind} ({one.external_ref})" if one.external_ref else one.kind
        kind = kind if one.problem is None else f"{kind} {one.problem}"
        ended = one.time.completed
        waiting = age(now - one.time.created) if ended is None else str(one.status)
        rows.append((one.id, one.tool, one.session_id, waiting, until, kind))
    terminal.table(("ID", "TOOL", "SESSION", "WAITING", "EXPIRES", "KIND"), rows)


def show_pending(settings: Settings, given: str) -> int:
    """One pending call, with what to type about it."""

    async def main(runtime: Runtime) -> None:
        record = await finding.pending(runtime, given)
        now = service_of(runtime).desk.store.now()
        terminal = Terminal(settings)
        shown = _pending_json(runtime, record)
        terminal.either(shown, lambda: _one_pending(terminal, record, shown, now))

    opened(settings, main)
    return 0


def _one_pending(
    terminal: Terminal, record: PendingRecord, shown: Mapping[str, Any], now: int
) -> None:
    if record.is_open:
        terminal.say(waiting_line(shown, record.timeout, now), bold=True)
        for text in commands_for(record, terminal.settings):
            terminal.say(text)
    else:
        call = call_text(record.tool, record.input)
        terminal.say(f"{call} {line(became(record))}", bold=True)
    terminal.say()
    skipped = {"webhookURL", "input", "tool", "partID", "messageID"}
    for name, value in shown.items():
        if value not in (None, [], "") and name not in skipped:
            terminal.say(f"  {name:<12} {line(value_text(value), _LONGEST)}")
    terminal.say(f"  {'input':<12} {json.dumps(record.input, ensure_ascii=False)}")
