"""`perdure doctor`: checks of the store or of one session, and `--fix`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from perdure.app import Runtime, service_of, store_of
from perdure.cli.actions.database import inspection
from perdure.cli.backend.local import reap_dead_workers
from perdure.cli.open import load_runtime, with_runtime
from perdure.cli.process import run_async
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line, plural
from perdure.core.session.naming import parse_session_stream
from perdure.errors import Refused
from perdure.runtime.doctor.checks import CheckResult, exit_code
from perdure.runtime.doctor.database import Checkup
from perdure.runtime.doctor.rebuild import Rebuild, RebuiltSession, rebuild_session
from perdure.runtime.doctor.session import SessionCheckup, find_stream
from perdure.runtime.doctor.tasks import TaskCheckup, sandbox_check
from perdure.runtime.records.entries import session_not_found
from perdure.store.files.inspect import FilesInspector
from perdure.store.inspect import StoreInspector, StreamInspection

_MARKS: Final = {"ok": "✓", "finding": "✗", "corrupt": "✗"}


def doctor_store(settings: Settings, *, full: bool, fix: "Fix | None") -> int:
    """Check the whole store, with `fix` after rebuilding the sessions that need it."""
    terminal = Terminal(settings)
    if fix is not None:
        streams = inspection(settings)[0].streams()
        sessions = [name for name in streams if parse_session_stream(name) is not None]
        for session in fix.sessions(settings, sessions):
            terminal.print(_rebuilt_text(session))
    inspector, now = inspection(settings)
    checks = list(Checkup(inspector, now, settings, full=full).checks())
    tasks = service_of(load_runtime(settings, "existing")).tasks
    if not any(check.level == "corrupt" for check in checks):
        checks += TaskCheckup(inspector, tasks.place, full=full).checks()
    if tasks.place.marker is not None or tasks.sandbox.options.require_sandbox:
        probe = run_async(tasks.sandbox.probe)
        is_required = tasks.sandbox.options.require_sandbox
        checks.append(sandbox_check(probe, is_required=is_required))
    report = _checks_json(checks)
    terminal.print_either(report, lambda: _print_checks(terminal, checks))
    return exit_code(checks)


def doctor_session(settings: Settings, typed_id: str, *, fix: "Fix | None") -> int:
    """Check one session; with `fix`, rebuild it if it needs that and check it again."""
    inspector, now = inspection(settings)
    checkup = SessionCheckup.create(_find(inspector, settings.tenant, typed_id), now, settings)
    rebuilt = [] if fix is None else fix.sessions(settings, [checkup.stream.stream])
    if fix is not None:
        checkup = SessionCheckup.create(_find(inspector, *checkup.names[:2]), now, settings)
    checks = list(checkup.checks())
    terminal = Terminal(settings)
    report = {
        "sessionID": checkup.names[1],
        "tenant": checkup.names[0],
        **_checks_json(checks),
        "mended": [_rebuilt_json(session) for session in rebuilt],
    }
    terminal.print_either(report, lambda: _print_session(terminal, checks, rebuilt))
    return exit_code(checks)


def _checks_json(checks: list[CheckResult]) -> dict[str, Any]:
    findings = sum(check.level != "ok" for check in checks)
    return {
        "ok": not findings,
        "findings": findings,
        "checks": [check.to_json() for check in checks],
    }


def _print_checks(terminal: Terminal, checks: list[CheckResult]) -> None:
    for check in checks:
        code = "" if check.level == "ok" else f"{check.code}: "
        # A remedy beside a check without a finding: something optional cannot be used here.
        mark = "-" if check.level == "ok" and check.remedy else _MARKS[check.level]
        terminal.print_result(f"{mark} {code}{line(check.text)}")
        if check.remedy:
            terminal.print_result(f"    {line(check.remedy)}")
    findings = sum(check.level != "ok" for check in checks)
    terminal.print_gap()
    text = plural(findings, "finding") if findings else "There are no findings."
    terminal.print(text, bold=True)


@dataclass(frozen=True, slots=True)
class Fix:
    """`--fix`: rebuilds sessions after saying what becomes of their calls."""

    dry_run: bool = False  # only say it
    yes: bool = False  # do not ask

    def sessions(self, settings: Settings, streams: list[str]) -> list[RebuiltSession]:
        """Open the store, which repairs torn writes, and rebuild the sessions that need it."""
        inspector, now = inspection(settings)
        if self.dry_run:
            checkups = _rebuildable(settings, inspector, streams, now)
            rebuilds = [Rebuild.create(checkup, now) for checkup in checkups]
            return [RebuiltSession(item) for item in rebuilds if self._is_accepted(settings, item)]

        async def main(runtime: Runtime) -> list[RebuiltSession]:
            await reap_dead_workers(runtime)
            store = store_of(runtime)
            return [
                await rebuild_session(store, inspector, checkup)
                for checkup in _rebuildable(settings, inspector, streams, store.now())
                if self._is_accepted(settings, Rebuild.create(checkup, store.now()))
            ]

        return with_runtime(settings, main)

    def _is_accepted(self, settings: Settings, rebuild: Rebuild) -> bool:
        """Say how a session will continue, and ask at a terminal whether to rebuild it."""
        terminal = Terminal(settings)
        if settings.as_json:
            return True
        for text in _rebuild_lines(rebuild):
            terminal.print(text)
        if self.dry_run or self.yes or not sys.stdin.isatty():
            return True
        return click.confirm(f"Rebuild {line(rebuild.session_id)}?", err=True)


def _rebuildable(
    settings: Settings, inspector: StoreInspector, streams: list[str], now: int
) -> Iterator[SessionCheckup]:
    for stream in streams:
        stream_inspection = inspector.stream(stream)
        if stream_inspection is None:
            continue
        checkup = SessionCheckup.create(stream_inspection, now, settings)
        if checkup.is_torn and isinstance(inspector, FilesInspector):
            inspector.cut_tail(stream)
        if checkup.is_rebuildable():
            yield checkup


def _rebuild_lines(rebuild: Rebuild) -> list[str]:
    events, lost = plural(len(rebuild.checkup.log.events), "readable event"), rebuild.lost
    lines = [f"{line(rebuild.session_id)} continues with its {events}; {lost:,} lost"]
    return lines + [f"    {line(text)}" for text in rebuild.texts()]


def _find(inspector: StoreInspector, tenant: str | None, typed_id: str) -> StreamInspection:
    """Return the stream of the session with this id or unique prefix, without opening the store."""
    names = [name for stream in inspector.streams() if (name := parse_session_stream(stream))]
    visible = [name for name in names if tenant in (None, name[0])]
    exact = [name for name in visible if name[1] == typed_id]
    candidates = exact or [name for name in visible if name[1].startswith(typed_id)]
    if len(candidates) > 1 and ("", typed_id) in candidates:
        candidates = [("", typed_id)]
    if len(candidates) > 1:
        ids = ", ".join(sorted(session_id for _, session_id in candidates)[:10])
        raise Refused(
            f"{typed_id!r} matches {len(candidates)} sessions: {ids}",
            code="AMBIGUOUS_ID",
            hint="type more of the id, or name the --tenant",
        )
    stream_inspection = find_stream(inspector, *candidates[0]) if candidates else None
    if stream_inspection is None:
        raise session_not_found(typed_id)
    return stream_inspection


def _rebuilt_json(session: RebuiltSession) -> dict[str, Any]:
    original = None if session.original is None else str(session.original)
    return {**session.rebuild.to_json(), "original": original}


def _rebuilt_text(session: RebuiltSession) -> str:
    rebuild = session.rebuild
    if session.original is None:
        return f"- {line(rebuild.session_id)} was not changed"
    events, original = plural(len(rebuild.salvaged.events), "event"), line(str(session.original))
    return f"✓ rebuilt {line(rebuild.session_id)}: {events}; the original is in {original}"


def _print_session(
    terminal: Terminal, checks: list[CheckResult], rebuilt: list[RebuiltSession]
) -> None:
    for session in rebuilt:
        terminal.print(_rebuilt_text(session))
    _print_checks(terminal, checks)
