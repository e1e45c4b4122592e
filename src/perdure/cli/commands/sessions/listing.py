"""`perdure sessions list`."""

from collections.abc import Mapping
from typing import Any, Final, get_args

import click

from perdure.cli.backend.console import Console, api_command
from perdure.cli.commands.sessions.group import sessions
from perdure.cli.terminal.findings import problem_code
from perdure.cli.terminal.terminal import age, line
from perdure.views.durations import duration_ms, format_ms
from perdure.views.literals import RunState
from perdure.views.sessions import SessionSummary

LIMIT: Final = 50
_LARGEST_PAGE: Final = 500  # of a server


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
@click.option("--after", metavar="CURSOR", help='Continue a list: its "next" with --json.')
@api_command
async def list_(
    console: Console, /, *, older: int | None, limit: int, after: str | None, **filters: Any
) -> None:
    """List sessions, newest first."""
    now = console.now()
    typed = {**filters, "older": None if older is None else format_ms(older), "limit": limit}
    shown: list[SessionSummary] = []
    while True:
        size = min(limit - len(shown), _LARGEST_PAGE)
        page = await console.api.summary_page(limit=size, cursor=after, **filters)
        shown += [item for item in page.sessions if _is_older(item, older, now)]
        after = page.next
        if after is None or len(shown) == limit:
            break
    if console.settings.as_json:
        handles = [console.session(session.session_id, session.tenant) for session in shown]
        complete = [(await console.snapshot(handle)).to_json() for handle in handles]
        console.print_json({"sessions": complete, "next": after})
        return
    _print_table(console, shown, now)
    if after is not None:
        console.print(f"There are more: {_command(console, {**typed, 'after': after})}", dim=True)


def _is_older(session: SessionSummary, older: int | None, now: int) -> bool:
    return older is None or session.updated_at_ms <= now - older


def _command(console: Console, options: Mapping[str, Any]) -> str:
    """Return the command that lists sessions with these options."""
    chosen = {name: value for name, value in options.items() if value is not None}
    words = [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    return console.settings.command("sessions", "list", *words)


def _print_table(console: Console, shown: list[SessionSummary], now: int) -> None:
    if not shown:
        console.print("No sessions found.")
        return
    rows = [_row(session, now) for session in shown]
    console.print_table(("ID", "AGENT", "STATE", "UPDATED", "FIRST MESSAGE"), rows)


def _row(session: SessionSummary, now: int) -> tuple[str, ...]:
    code, name = problem_code(session), session.session_id
    state = session.state if code in (None, "FAILED") else f"{session.state} ({code})"
    shown = f"{session.tenant}/{name}" if session.tenant else name
    updated = f"{age(now - session.updated_at_ms)} ago"
    return shown, session.agent, state, updated, line(session.title, 60)
