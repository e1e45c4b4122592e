"""Sessions out of one store and into another, as lines of JSON."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.actions.adopt import import_foreign
from perdure.cli.open import known_session, opened
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line
from perdure.errors import Corrupt, Refused
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.transfer.archive import ImportReport, export_lines, import_lines


def export_sessions(settings: Settings, given: Sequence[str], *, every: bool, secrets: bool) -> int:
    """Write sessions to stdout. What cannot be read ends its session, not the others."""
    out = sys.stdout.buffer

    async def main(runtime: Runtime) -> list[Corrupt]:
        service, damaged = service_of(runtime), []
        for known in await _chosen(runtime, given, every=every):
            try:
                async for text in export_lines(service, known, secrets=secrets):
                    out.write(text)
            except Corrupt as error:
                damaged.append(error)
        out.flush()
        return damaged

    damaged = opened(settings, main)
    if damaged:
        raise Corrupt(
            "; ".join(error.message for error in damaged),
            hint="everything before these events was written",
            details={"damaged": [error.details for error in damaged]},
        )
    return 0


async def _chosen(runtime: Runtime, given: Sequence[str], *, every: bool) -> list[SessionEntry]:
    if every:
        tenant = tenant_of(runtime)
        return [known async for known in service_of(runtime).sessions(tenant)]
    found = [await known_session(runtime, one) for one in given]
    return list({known.stream: known for known in found}.values())


def import_sessions(settings: Settings, file: str, agent: str | None, as_id: str | None) -> int:
    """Make the sessions of a file, all of them new here."""
    data = _content(file)
    if not _is_export(data):
        return import_foreign(settings, file, data, agent, as_id)
    if agent is not None or as_id is not None:
        raise Refused(
            "--agent and --as are for sessions of other programs; this is an export",
            code="OPTIONS_CLASH",
        )
    lines = data.split(b"\n")

    async def main(runtime: Runtime) -> ImportReport:
        try:
            return await import_lines(service_of(runtime), lines, tenant_of(runtime))
        except Refused as error:
            where = "stdin" if file == "-" else file
            hint = error.hint or "nothing was written"
            raise Refused(f"{where}: {error.message}", code=error.code, hint=hint) from error

    report = opened(settings, main, need="existing" if settings.store is None else "any")
    terminal = Terminal(settings)
    terminal.either(_report_json(report), lambda: _report_lines(terminal, report))
    return 0


def _content(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}", code="FILE_UNREADABLE") from error


def _is_export(data: bytes) -> bool:
    """Whether it begins as our own exports do; a file of which nothing is left counts as one."""
    first = data.lstrip().split(b"\n", 1)[0]
    try:
        found = msgspec.json.decode(first)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return not first
    if not isinstance(found, dict):
        return False
    return isinstance(found.get("perdure"), int) or bool(found.keys() & {"pending", "blob"})


def _report_json(report: ImportReport) -> dict[str, Any]:
    return {
        "imported": [
            {
                "sessionID": one.session_id,
                "tenant": one.tenant,
                "events": one.events,
                "pending": one.pending,
            }
            for one in report.sessions
        ],
        "orphans": [
            {"pendingID": one.id, "sessionID": one.session_id, "status": "cancelled"}
            for one in report.orphans
        ],
    }


def _report_lines(terminal: Terminal, report: ImportReport) -> None:
    for one in report.sessions:
        calls = "1 call waits" if one.pending == 1 else f"{one.pending} calls wait"
        waits = f", {calls}" if one.pending else ""
        terminal.say(f"✓ {line(one.session_id)}: {one.events} events{waits}")
    for orphan in report.orphans:
        terminal.say(
            f"✗ {line(orphan.tool)} ({line(orphan.id)}): its session {line(orphan.session_id)} "
            "is not in the file; cancelled"
        )
    if not report.sessions:
        terminal.say("no sessions in it")
