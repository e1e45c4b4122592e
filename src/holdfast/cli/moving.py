"""Sessions out of one store and into another, as lines of JSON."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.app import Runtime, service_of, tenant_of
from holdfast.cli.opening import known_session, opened
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, line
from holdfast.errors import Corrupt, Refused
from holdfast.runtime.entries import Known
from holdfast.runtime.exporting import export_lines
from holdfast.runtime.importing import ImportReport, import_lines


def export_sessions(settings: Settings, given: Sequence[str], *, every: bool) -> int:
    """Write sessions to stdout. What cannot be read ends its session, not the others."""
    out = sys.stdout.buffer

    async def main(runtime: Runtime) -> list[Corrupt]:
        service, damaged = service_of(runtime), []
        for known in await _chosen(runtime, given, every=every):
            try:
                async for text in export_lines(service, known):
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


async def _chosen(runtime: Runtime, given: Sequence[str], *, every: bool) -> list[Known]:
    if every:
        tenant = tenant_of(runtime)
        return [known async for known in service_of(runtime).sessions(tenant)]
    found = [await known_session(runtime, one) for one in given]
    return list({known.stream: known for known in found}.values())


def import_sessions(settings: Settings, file: str) -> int:
    """Make the sessions of a file, all of them new here."""
    lines = _lines(file)

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


def _lines(file: str) -> list[bytes]:
    if file == "-":
        return sys.stdin.buffer.readlines()
    try:
        return Path(file).read_bytes().split(b"\n")
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}", code="FILE_UNREADABLE") from error


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
