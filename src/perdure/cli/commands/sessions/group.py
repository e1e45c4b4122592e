"""`perdure sessions`, and its list of sessions."""

from typing import Any, Final, get_args

import click

from perdure.cli.backend.console import Console, api_command
from perdure.cli.settings import shared_options
from perdure.cli.terminal.findings import problem_code
from perdure.cli.terminal.terminal import age, line
from perdure.views.durations import duration_ms
from perdure.views.literals import RunState
from perdure.views.sessions import SessionSummary

LIMIT: Final = 50


@click.group()
@shared_options
def sessions() -> None:
    """List, inspect, continue and change sessions.

    An ID may be shortened to a unique prefix; @last is the session that was used last.
    """


@sessions.command("list")
@click.option(
    "--state", type=click.Choice(get_args(RunState)), help="List only sessions in this state."
)
@click.option("--agent", metavar="NAME", help="List only sessions of this agent.")
@click.option(
    "--older",
    type=duration_ms,
    metavar="DURATION",
    help="List only sessions unchanged for this long, such as 7d.",
)
@click.option(
    "--search", metavar="TEXT", help="List only sessions with TEXT in the id or first message."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=LIMIT,
    show_default=True,
    metavar="N",
    help="List at most N sessions.",
)
@api_command
async def list_(console: Console, /, *, older: int | None, limit: int, **filters: Any) -> None:
    """List sessions, newest first."""
    now = console.now()
    newest: list[SessionSummary] = []
    async for session in console.api.summaries(**filters):
        if older is None or session.updated_at_ms <= now - older:
            newest.append(session)
        if len(newest) > limit:
            break
    shown = newest[:limit]
    if console.settings.as_json:
        handles = [console.session(session.session_id, session.tenant) for session in shown]
        complete = [(await console.snapshot(handle)).to_json() for handle in handles]
        console.print_json({"sessions": complete, "next": None})
    elif shown:
        rows = [_row(session, now) for session in shown]
        console.print_table(("ID", "AGENT", "STATE", "UPDATED", "FIRST MESSAGE"), rows)
    else:
        console.print("No sessions found.")
    if len(newest) > limit:
        console.print(f"There are more than {limit}; list more with --limit.", dim=True)


def _row(session: SessionSummary, now: int) -> tuple[str, ...]:
    code, name = problem_code(session), session.session_id
    state = session.state if code in (None, "FAILED") else f"{session.state} ({code})"
    shown = f"{session.tenant}/{name}" if session.tenant else name
    updated = f"{age(now - session.updated_at_ms)} ago"
    return shown, session.agent, state, updated, line(session.title, 60)
