"""`perdure doctor`: checks of the store or of one session, and `--fix`."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from perdure.app import Runtime, service_of, store_of
from perdure.app.stores import without_index
from perdure.cli.backend.console import reap_dead_workers
from perdure.cli.backend.inspection import inspection
from perdure.cli.backend.open import load_runtime, with_runtime
from perdure.cli.process import run_async
from perdure.cli.settings import Settings
from perdure.cli.terminal.findings import completed
from perdure.cli.terminal.interrupts import asking
from perdure.cli.terminal.terminal import Terminal, line, plural
from perdure.cli.user_folders import STATE_HOME, user_folder
from perdure.core.session.naming import session_not_found
from perdure.errors import Corrupt
from perdure.findings.severities import exit_code, is_damage, is_fine
from perdure.findings.steps import finding_lines
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.doctor.agents import current_agents, store_findings
from perdure.runtime.doctor.database import Checkup
from perdure.runtime.doctor.files import files_findings
from perdure.runtime.doctor.find import find_session, session_streams
from perdure.runtime.doctor.integrity import IntegrityCheckup
from perdure.runtime.doctor.rebuild import Rebuild, RebuiltSession, rebuild_session
from perdure.runtime.doctor.restore import restore_rows
from perdure.runtime.doctor.session import SessionCheckup
from perdure.runtime.doctor.strays import is_stray, stray_finding, strays
from perdure.runtime.doctor.tasks import TaskCheckup, sandbox_check
from perdure.store.inspect import StoreInspector
from perdure.views.findings import Finding, worst_first

_SIGNS: Final = {"ok": "✓", "waiting": "✓", "warning": "✗", "error": "✗"}


def doctor_store(settings: Settings, *, full: bool, fix: "Fix | None") -> int:
    """Check the whole store, with `fix` after rebuilding the sessions that need it."""
    terminal = Terminal(settings)
    if fix is not None:
        fix.strays(settings)
        for session in fix.sessions(settings, session_streams(inspection(settings)[0])):
            terminal.print(_rebuilt_text(session))
    inspector, now = inspection(settings)
    runtime = load_runtime(settings, "existing")
    service = service_of(runtime)
    checks = list(Checkup(inspector, now, full, service.agents.names()).checks())
    tasks = service.tasks
    if not any(map(is_damage, checks)):
        checks += files_findings(without_index(store_of(runtime)))
        checks += TaskCheckup(inspector, tasks.place, full=full).checks()
    if tasks.place.marker is not None or tasks.sandbox.options.require_sandbox:
        probe = run_async(tasks.sandbox.probe)
        is_required = tasks.sandbox.options.require_sandbox
        checks.append(sandbox_check(probe, is_required=is_required))
    findings = store_findings(checks, inspector, agents_here(runtime), settings.tenant)
    report = findings_json(findings)
    terminal.print_either(report, lambda: print_findings(terminal, findings))
    return exit_code(findings)


def agents_here(runtime: Runtime) -> dict[str, ReadyAgent]:
    """Return the agents of a runtime with the tools of their MCP servers, and close these again."""
    agents = service_of(runtime).agents

    async def current() -> dict[str, ReadyAgent]:
        try:
            return await current_agents(agents)
        finally:
            await agents.servers.close()
            await agents.close()

    return run_async(current)


def doctor_session(settings: Settings, typed_id: str, *, fix: "Fix | None") -> int:
    """Check one session; with `fix`, rebuild it if it needs that and check it again."""
    checkup, damage = _session_checkup(settings, settings.tenant, typed_id)
    names = ("", typed_id) if checkup is None else checkup.names[:2]
    rebuilt: list[RebuiltSession] = []
    if fix is not None and checkup is not None:
        rebuilt = fix.sessions(settings, [checkup.stream.stream])
        checkup, damage = _session_checkup(settings, *names)
    checks = worst_first((*damage, *([] if checkup is None else checkup.checks())))
    terminal = Terminal(settings)
    report = {
        "sessionID": names[1],
        "tenant": names[0],
        **findings_json(checks),
        "mended": [_rebuilt_json(session) for session in rebuilt],
    }
    terminal.print_either(report, lambda: _print_session(terminal, checks, rebuilt))
    return exit_code(checks)


def _session_checkup(
    settings: Settings, tenant: str | None, typed_id: str
) -> tuple[SessionCheckup | None, list[Finding]]:
    """Return the checkup of a session, and the damage of the store itself.

    It is None if it cannot be found in a damaged store. Raises NotFound in a sound one.
    """
    inspector, now = inspection(settings)
    integrity = IntegrityCheckup(inspector, now)
    damage: list[Finding] = []
    try:
        damage += integrity.damage()
        stream = find_session(inspector, tenant, typed_id)
    except Corrupt as error:
        return None, damage or [integrity.unreadable(error)]
    if stream is None and not damage:
        raise session_not_found(typed_id)
    if stream is None:
        return None, damage
    is_writable = integrity.may_write(damage)
    return SessionCheckup.create(stream, now, is_writable=is_writable), damage


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return findings as JSON."""
    return {"ok": is_fine(findings), "findings": [finding.to_json() for finding in findings]}


def print_findings(terminal: Terminal, findings: Sequence[Finding]) -> None:
    """Print findings with a sign each, and how many need an operator."""
    for finding in findings:
        code = "" if finding.severity == "ok" else f"{finding.code}: "
        # A note beside a finding that is fine: something optional cannot be used here.
        is_optional = finding.severity == "ok" and "\n" in finding.text
        sentence, *more = finding_lines(completed(finding, terminal.settings))
        sign = "-" if is_optional else _SIGNS[finding.severity]
        terminal.print_result(f"{sign} {code}{line(sentence)}")
        for text in more:
            terminal.print_result(f"  {text}")
    terminal.print_gap()
    count = sum(finding.severity in ("warning", "error") for finding in findings)
    terminal.print(plural(count, "finding") if count else "There are no findings.", bold=True)


@dataclass(frozen=True, slots=True)
class Fix:
    """`--fix`: rebuilds sessions after saying what becomes of their calls."""

    dry_run: bool = False  # only say it
    yes: bool = False  # do not ask

    def strays(self, settings: Settings) -> None:
        """Move rows that belong to no session to files, after saying so."""
        inspector, now = inspection(settings)
        integrity, terminal = IntegrityCheckup(inspector, now), Terminal(settings)
        if not integrity.may_write(list(integrity.damage())):
            return
        for stray in strays(inspector):
            text, *_ = finding_lines(stray_finding(stray))
            terminal.print(line(text))
            if self.dry_run or not self._is_confirmed(settings, "Move them to a file?"):
                continue
            moved = inspector.move_rows(stray.number, user_folder(STATE_HOME) / "damaged")
            terminal.print(f"✓ moved them to {line(str(moved))}")

    def sessions(self, settings: Settings, streams: list[str]) -> list[RebuiltSession]:
        """Open the store, which repairs torn writes, and rebuild the sessions that need it.

        Nothing is written to a file whose pages are damaged.
        """
        inspector, now = inspection(settings)
        integrity = IntegrityCheckup(inspector, now)
        if not integrity.may_write(list(integrity.damage())):
            return []
        if self.dry_run:
            checkups = _damaged(inspector, streams, now)
            rebuilds = [Rebuild.create(checkup, now) for checkup in checkups]
            return [RebuiltSession(item) for item in rebuilds if self._is_accepted(settings, item)]

        async def main(runtime: Runtime) -> list[RebuiltSession]:
            await reap_dead_workers(runtime)
            store, rebuilt = store_of(runtime), list[RebuiltSession]()
            for checkup in _damaged(inspector, streams, store.now()):
                rebuild = Rebuild.create(checkup, store.now())
                if not self._is_accepted(settings, rebuild):
                    continue
                restored = restore_rows(inspector, checkup)
                if restored.is_rebuildable():
                    folder = user_folder(STATE_HOME) / "damaged"
                    rebuilt.append(await rebuild_session(store, inspector, restored, folder))
                else:
                    rebuilt.append(RebuiltSession(rebuild, is_written=True))
            return rebuilt

        return with_runtime(settings, main)

    def _is_accepted(self, settings: Settings, rebuild: Rebuild) -> bool:
        """Say how a session will continue, and ask at a terminal whether to rebuild it."""
        terminal = Terminal(settings)
        if settings.as_json:
            return True
        for text in _rebuild_lines(rebuild):
            terminal.print(text)
        if self.dry_run:
            return True
        return self._is_confirmed(settings, f"Rebuild {line(rebuild.session_id)}?")

    def _is_confirmed(self, settings: Settings, question: str) -> bool:
        """Ask at a terminal."""
        if self.yes or settings.as_json or not sys.stdin.isatty():
            return True
        with asking():
            return click.confirm(question, err=True)


def _damaged(inspector: StoreInspector, streams: list[str], now: int) -> Iterator[SessionCheckup]:
    """Yield the sessions that are damaged,"""
    for stream in streams:
        stream_inspection = inspector.stream(stream)
        if stream_inspection is None or is_stray(inspector, stream_inspection):
            continue
        checkup = SessionCheckup.create(stream_inspection, now)
        if any(checkup.damage()):
            yield checkup


def _rebuild_lines(rebuild: Rebuild) -> list[str]:
    events, lost = plural(len(rebuild.checkup.log.events), "readable event"), rebuild.lost
    lines = [f"{line(rebuild.session_id)} continues with its {events}; {lost:,} lost"]
    return lines + [f"    {line(text)}" for text in rebuild.texts()]


def _rebuilt_json(session: RebuiltSession) -> dict[str, Any]:
    original = None if session.original is None else str(session.original)
    return {**session.rebuild.to_json(), "original": original}


def _rebuilt_text(session: RebuiltSession) -> str:
    rebuild = session.rebuild
    if not session.is_written:
        return f"- {line(rebuild.session_id)} was not changed"
    if session.original is None:
        return f"✓ restored the row of {line(rebuild.session_id)}"
    events, original = plural(len(rebuild.salvaged.events), "event"), line(str(session.original))
    return f"✓ rebuilt {line(rebuild.session_id)}: {events}; the original is in {original}"


def _print_session(
    terminal: Terminal, findings: Sequence[Finding], rebuilt: list[RebuiltSession]
) -> None:
    for session in rebuilt:
        terminal.print(_rebuilt_text(session))
    print_findings(terminal, findings)
