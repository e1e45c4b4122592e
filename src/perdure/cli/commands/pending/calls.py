"""`perdure pending list`, `show` and `stats`."""

import json
import sys
from datetime import UTC, datetime
from typing import Any, Final, get_args

import click

from perdure.cli.backend.console import Console, api_command
from perdure.cli.backend.find import find_pending, find_session
from perdure.cli.commands.pending.group import pending
from perdure.cli.recent import recent_session
from perdure.cli.terminal.findings import (
    call_line,
    call_step_lines,
    findings_of,
    problem_code,
)
from perdure.cli.terminal.prompt import choose_call
from perdure.cli.terminal.terminal import age, call_text, line, value_text
from perdure.core.pending.record import Verb
from perdure.errors import Refused
from perdure.views.calls import PendingCall
from perdure.views.health import Statistics
from perdure.views.literals import CallKind, PendingStatus

_LONGEST: Final = 160
_LONGEST_CALL: Final = 60
_DECIDED: Final = {
    "approve": "approved",
    "edit": "approved",
    "deny": "denied",
    "respond": "answered",
}


@pending.command("list")
@click.option("--kind", type=click.Choice(get_args(CallKind)), help="List only calls of this kind.")
@click.option("--tool", metavar="NAME", help="List only calls of this tool.")
@click.option("--session", metavar="ID", help="List only calls of this session.")
@click.option(
    "--status",
    type=click.Choice((*get_args(PendingStatus), "all")),
    help="List only calls with this status.  [default: all open calls]",
)
@api_command
async def list_(console: Console, /, *, session: str | None, **filters: Any) -> None:
    """List pending calls, oldest first."""
    api = console.api
    if session is not None:
        chosen = await find_session(console, session)
        api, session = console.in_tenant(chosen.tenant), chosen.session_id
    calls = [call async for call in api.pending(session=session, **filters)]
    calls.sort(key=lambda call: (call.time.created, call.part_id))
    report = {"pending": [call.to_json() for call in calls], "count": len(calls), "next": None}
    console.print_either(report, lambda: _print_table(console, calls))


def _print_table(console: Console, calls: list[PendingCall]) -> None:
    if not calls:
        console.print("No pending calls found.")
        return
    now, rows = console.now(), []
    for call in calls:
        expires = "-" if call.expires_at_ms is None else age(call.expires_at_ms - now)
        kind = f"{call.kind} ({call.external_ref})" if call.external_ref else call.kind
        kind = f"{kind} {code}" if (code := problem_code(call)) else kind
        text = line(call_text(call.tool, call.args), _LONGEST_CALL)
        rows.append((call.id, text, call.session_id, _age_or_status(call, now), expires, kind))
    console.print_table(("ID", "CALL", "SESSION", "WAITING", "EXPIRES", "KIND"), rows)


def _age_or_status(call: PendingCall, now: int) -> str:
    if call.time.completed is None:
        return age(now - call.time.created)
    return _DECIDED.get("" if call.decision is None else call.decision.kind, call.status)


@pending.command()
@click.argument("pending_id", metavar="ID")
@api_command
async def show(console: Console, pending_id: str) -> None:
    """Show a pending call, and the commands that settle it."""
    call = await find_call(console, pending_id)
    console.print_either(call, lambda: _print_pending(console, call))


async def find_call(console: Console, typed_id: str, verb: Verb | None = None) -> PendingCall:
    """Return the call of a typed id. Where @last is not clear, ask the person at the terminal."""
    settings = console.settings
    try:
        return await find_pending(console.api, typed_id, verb, recent_session(settings))
    except Refused as error:
        is_asked = sys.stdin.isatty() and sys.stdout.isatty() and not settings.as_json
        if error.code != "AMBIGUOUS_LAST" or not is_asked:
            raise
        reason, candidates = error.message, error.details["candidates"]
    calls = [await console.api.pending_call(pending_id) for pending_id in candidates]
    return choose_call(console, calls, reason.partition(": ")[2])


def _print_pending(console: Console, call: PendingCall) -> None:
    if call.is_open:
        console.print(call_line(call, console.now()), bold=True)
        for finding in findings_of(call, console.settings):
            if finding.severity != "waiting":
                console.print(f"  {finding.code}: {finding.text}".replace("\n", "\n  "))
        for text in call_step_lines(call, console.settings):
            console.print(text)
    else:
        console.print(line(call.findings[0].text), bold=True)
    console.print()
    skipped = {"webhookURL", "input", "tool", "partID", "messageID", "by", "via", "findings"}
    for name, value in call.to_json().items():
        if value not in (None, [], "") and name not in skipped:
            console.print(f"  {name:<12} {line(_field_text(name, value), _LONGEST)}")
    console.print(f"  {'input':<12} {json.dumps(call.args, ensure_ascii=False)}")


def _field_text(name: str, value: Any) -> str:
    """Return a field of a call as text, with its instants as dates."""
    if name == "timeout":
        return _date(value)
    if name == "time":
        return ", ".join(f"{step} {_date(at)}" for step, at in value.items() if at is not None)
    return value_text(value)


def _date(ms: int) -> str:
    """Return an instant in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@pending.command()
@click.option(
    "--hours",
    type=click.IntRange(1, 24 * 31),
    default=24,
    show_default=True,
    help="Count the calls of the last hours.",
)
@api_command
async def stats(console: Console, hours: int) -> None:
    """Print how many calls were created, settled and expired, and how fast people decided.

    With --json, also per hour. Settled calls count as long as retention keeps them.
    """
    report = await console.api.statistics(hours)
    console.print_either(report, lambda: _print_statistics(console, report))


def _print_statistics(console: Console, report: Statistics) -> None:
    total = report.total
    console.print_result(f"Created   {total.created:,}")
    console.print_result(f"Settled   {total.settled:,}")
    console.print_result(f"Expired   {total.expired:,}")
    times = (
        f"; median {age(total.p50)}, 90 % within {age(total.p90)}"
        if total.p50 is not None and total.p90 is not None
        else ""
    )
    console.print_result(f"Decided   {total.decided:,}{times}")
    if not report.complete:
        console.print("There are more calls than can be counted at once: the oldest are left out.")
