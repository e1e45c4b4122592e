"""`perdure sessions export` and `import`, which need the store itself."""

import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.backend.console import Console, with_store
from perdure.cli.backend.find import find_session
from perdure.cli.backend.inspection import inspection
from perdure.cli.commands.sessions.group import sessions
from perdure.cli.local.adopt import import_foreign
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import Terminal, line, plural
from perdure.core.json_depth import check_body_depth
from perdure.core.session.naming import session_label
from perdure.core.transfer.salvage import INCOMPLETE_TEXT
from perdure.errors import Corrupt, Refused
from perdure.runtime.doctor.find import session_streams
from perdure.runtime.doctor.rows import session_names
from perdure.runtime.sessions.transfers import SessionExport
from perdure.runtime.transfer.checksum import plain_line
from perdure.runtime.transfer.imports import ImportReport
from perdure.runtime.transfer.readable import read_readable, session_record_of
from perdure.runtime.transfer.salvaged import salvaged_session
from perdure.store.base import Gone, NoStream
from perdure.store.inspect import StoreInspector
from perdure.store.sqlite.inspect import SqliteInspector

_EXPORT_LINES: Final = (b'{"end":"', b'{"perdure":1,"sessionID":')


@sessions.command()
@click.argument("session_ids", metavar="ID...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Export every session.")
@click.option("--secrets", is_flag=True, help="Include secret arguments; an import needs them.")
@with_settings
def export(settings: Settings, session_ids: tuple[str, ...], *, every: bool, secrets: bool) -> int:
    """Export sessions to stdout, as lines of JSON.

    `perdure sessions import` reads them.
    """
    if bool(session_ids) == every:
        raise click.UsageError("give either the IDs of sessions or --all")
    sessions_out = _ExportedSessions(secrets)

    async def main(console: Console, runtime: Runtime) -> None:
        chosen = [await find_session(console, typed_id) for typed_id in session_ids]
        names = None if every else [(item.tenant, item.session_id) for item in chosen]
        service, tenant = service_of(runtime), tenant_of(runtime)
        async for item in service.transfers.exports(tenant, names, secrets=secrets):
            await sessions_out.add(item)

    try:
        with_store(settings, main)
    except Corrupt as error:  # the store cannot even be opened
        if not every:
            raise
        sessions_out.damaged.append(error)
    if every:
        _salvage(sessions_out, settings)
    sessions_out.finish()
    return 0


def _salvage(export: "_ExportedSessions", settings: Settings) -> None:
    """Export what a list has not found, if the database is damaged."""
    try:
        inspector, _ = inspection(settings)
    except Refused:  # a store in memory
        return
    damage = inspector.damage() if isinstance(inspector, SqliteInspector) else []
    if damage and not export.damaged:
        export.damaged.append(Corrupt(f"SQLite: {damage[0]}"))
    # Without an error, too: sessions that an index has lost are in no list.
    export.salvage(inspector, settings.tenant)


class _ExportedSessions:
    """Sessions written to stdout; those that are damaged last, with as many events as possible."""

    def __init__(self, secrets: bool) -> None:
        self.damaged: list[Corrupt] = []
        self._secrets = secrets
        self._complete: set[tuple[str, str]] = set()
        self._partial: dict[tuple[str, str], list[bytes]] = {}

    async def add(self, export: SessionExport) -> None:
        """Write a session; one that is damaged is kept until the end."""
        names, lines = (export.tenant, export.session_id), list[bytes]()
        try:
            async for text in export.lines:
                lines.append(text)
        except Gone:
            return  # deleted meanwhile
        except (Corrupt, NoStream) as error:
            # An entry without its stream is damage too.
            self.damaged.append(Corrupt(error.message, details=error.details))
            self._partial[names] = lines
        else:
            self._complete.add(names)
            sys.stdout.buffer.writelines(lines)

    def salvage(self, inspector: StoreInspector, tenant: str | None) -> None:
        """Look for more events of damaged sessions, and for sessions that were not found."""
        for stream in session_streams(inspector):
            inspection = inspector.stream(stream)
            if inspection is None or inspection.gone:
                continue
            names = session_names(inspection, read_readable(inspection).events)
            key = (names.tenant, names.session_id)
            if key in self._complete or tenant not in (None, names.tenant):
                continue
            # One with an entry was created after the list was read.
            if key not in self._partial and session_record_of(inspection) is None:
                self.damaged.append(Corrupt(f"{session_label(*key)} is in no list"))
            lines = list(salvaged_session(inspector, stream, names, secrets=self._secrets))
            if len(lines) > len(self._partial.get(key, ())):
                self._partial[key] = lines

    def finish(self) -> None:
        """Write the damaged sessions. Raises Corrupt if there are any."""
        for lines in self._partial.values():
            if len(lines) > 2:  # between the first line and the last there are events
                sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
        if self.damaged:
            raise Corrupt(
                "; ".join(dict.fromkeys(error.message for error in self.damaged)),
                hint="everything that can be read was exported, and an import starts no call that "
                "may have run; see perdure doctor",
                details={"damaged": [error.details for error in self.damaged]},
            )


@sessions.command("import")
@click.argument("file")
@click.option("--agent", metavar="NAME", help="Agent for a session of another program.")
@click.option("--as", "as_id", metavar="ID", help="Id for a session of another program.")
@with_settings
def import_(settings: Settings, file: str, agent: str | None, as_id: str | None) -> int:
    """Import the sessions in FILE, or from stdin if FILE is "-".

    FILE is an export, whose pending calls stay open, or a session of another program: Claude Code,
    Codex, opencode, a list of Anthropic or OpenAI messages, or an event log. The format is
    detected, and the messages are repaired so that the session can continue.
    """
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

    async def main(console: Console, runtime: Runtime) -> None:
        try:
            report = await service_of(runtime).transfers.import_lines(lines, tenant_of(runtime))
        except Refused as error:
            source = "stdin" if file == "-" else file
            hint = error.hint or "nothing was imported"
            raise Refused(f"{source}: {error.message}", code=error.code, hint=hint) from error
        console.print_either(_report_json(report), lambda: _print_report(console, report))

    return with_store(settings, main, need="existing" if settings.store is None else "any")


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
    """Return True if the data has a line that only exports have; empty data counts as one."""
    first, *others = map(plain_line, data.strip().split(b"\n"))
    if any(text.startswith(_EXPORT_LINES) for text in others):
        return True  # also if its first line is lost
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
                "lost": item.lost,
                "calls": [call.to_json() for call in item.calls],
                "incomplete": item.is_incomplete,
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
        lost = f", {session.lost:,} lost" if session.lost else ""
        terminal.print(f"✓ imported {line(session.session_id)}: {events}{lost}{pending}")
        for call in session.calls:
            terminal.print(f"    {line(call.text)}")
        if session.is_incomplete:
            terminal.print(f"    {INCOMPLETE_TEXT}")
    for orphan in report.orphans:
        terminal.print(
            f"✗ cancelled {line(orphan.tool)} ({line(orphan.id)}): its session "
            f"{line(orphan.session_id)} is not in the file"
        )
    if not report.sessions:
        terminal.print("There are no sessions in the file.")
