"""`perdure sessions export` and `perdure sessions import`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.actions.adopt import import_foreign
from perdure.cli.open import find_entry, with_runtime
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line, plural
from perdure.core.json_depth import check_body_depth
from perdure.errors import Corrupt, Refused
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.transfer.imports import ImportReport


def export_sessions(
    settings: Settings, typed_ids: Sequence[str], *, every: bool, secrets: bool
) -> int:
    """Export sessions to stdout. A damaged event ends its session, but not the others."""
    out = sys.stdout.buffer

    async def main(runtime: Runtime) -> list[Corrupt]:
        service, damaged = service_of(runtime), []
        for entry in await _select_entries(runtime, typed_ids, every=every):
            try:
                async for text in service.export(entry, secrets=secrets):
                    out.write(text)
            except Corrupt as error:
                damaged.append(error)
        out.flush()
        return damaged

    damaged = with_runtime(settings, main)
    if damaged:
        raise Corrupt(
            "; ".join(error.message for error in damaged),
            hint="all events before these were exported; see perdure doctor SESSION",
            details={"damaged": [error.details for error in damaged]},
        )
    return 0


async def _select_entries(
    runtime: Runtime, typed_ids: Sequence[str], *, every: bool
) -> list[SessionEntry]:
    if every:
        tenant = tenant_of(runtime)
        return [entry async for entry in service_of(runtime).sessions(tenant)]
    entries = [await find_entry(runtime, typed_id) for typed_id in typed_ids]
    return list({entry.stream: entry for entry in entries}.values())


def import_sessions(settings: Settings, file: str, agent: str | None, as_id: str | None) -> int:
    """Import the sessions of a file. None of them may exist yet."""
    data = _read_file(file)
    if not _is_export(data):
        return import_foreign(settings, file, data, agent, as_id)
    if agent is not None or as_id is not None:
        raise Refused(
            "--agent and --as are for sessions of other programs, but this file is an export",
            code="OPTIONS_CLASH",
            hint="leave these options out",
        )
    lines = data.split(b"\n")

    async def main(runtime: Runtime) -> ImportReport:
        try:
            return await service_of(runtime).import_lines(lines, tenant_of(runtime))
        except Refused as error:
            source = "stdin" if file == "-" else file
            hint = error.hint or "nothing was imported"
            raise Refused(f"{source}: {error.message}", code=error.code, hint=hint) from error

    report = with_runtime(settings, main, need="existing" if settings.store is None else "any")
    terminal = Terminal(settings)
    terminal.print_either(_report_json(report), lambda: _print_report(terminal, report))
    return 0


def _read_file(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise Refused(
            f"the file {file} cannot be read: {error.strerror}",
            code="FILE_UNREADABLE",
            hint="check the path, or type - to read from stdin",
        ) from error


def _is_export(data: bytes) -> bool:
    """Return True if the data begins like an export; empty data counts as one."""
    first = data.lstrip().split(b"\n", 1)[0]
    check_body_depth(first, "the first line")
    try:
        value = msgspec.json.decode(first)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return not first
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("perdure"), int) or bool(value.keys() & {"pending", "blob"})


def _report_json(report: ImportReport) -> dict[str, Any]:
    return {
        "imported": [
            {
                "sessionID": item.session_id,
                "tenant": item.tenant,
                "events": item.events,
                "pending": item.pending,
            }
            for item in report.sessions
        ],
        "orphans": [
            {"pendingID": item.id, "sessionID": item.session_id, "status": "cancelled"}
            for item in report.orphans
        ],
    }


def _print_report(terminal: Terminal, report: ImportReport) -> None:
    for session in report.sessions:
        pending = f", {plural(session.pending, 'call', 'wait')}" if session.pending else ""
        events = plural(session.events, "event")
        terminal.print(f"✓ imported {line(session.session_id)}: {events}{pending}")
    for orphan in report.orphans:
        terminal.print(
            f"✗ cancelled {line(orphan.tool)} ({line(orphan.id)}): its session "
            f"{line(orphan.session_id)} is not in the file"
        )
    if not report.sessions:
        terminal.print("There are no sessions in the file.")
