"""`perdure sessions permissions`, `resume`, `cancel`, `compact`, `fork` and `delete`."""

from collections.abc import Sequence
from typing import Any, Final

import click

from perdure.cli.backend.console import Console, api_command, with_api
from perdure.cli.backend.find import find_session
from perdure.cli.commands.foreground import DriveOptions, drive
from perdure.cli.commands.sessions.group import sessions
from perdure.cli.commands.sessions.log import session_command, session_of
from perdure.cli.recent import remember_session
from perdure.cli.settings import Settings, by_option, with_settings
from perdure.cli.terminal.interrupts import is_confirmed
from perdure.cli.terminal.terminal import age, call_text, line
from perdure.views.durations import duration_ms
from perdure.views.sessions import Permission

_OVER: Final = frozenset({"completed", "failed", "cancelled"})


@sessions.command()
@session_command
@click.option(
    "--revoke", type=int, metavar="N", help="Revoke permission N: its calls need approval again."
)
@by_option
@api_command
async def permissions(
    console: Console, session_id: str, *, revoke: int | None, by: str | None
) -> None:
    """List or revoke the permissions of a session.

    Approvers grant them for the rest of the session with `perdure approve --remember`.
    """
    handle = await session_of(console, session_id)
    if revoke is not None:
        await handle.revoke(revoke, by=by)
    granted = await handle.permissions()
    report = {"sessionID": handle.id, "permissions": [item.to_json() for item in granted]}
    console.print_either(report, lambda: _print_permissions(console, granted))


def _print_permissions(console: Console, permissions: Sequence[Permission]) -> None:
    if not permissions:
        console.print("The session has no permissions beyond the rules of its agent.")
        return
    now = console.now()
    rows = [
        (
            str(item.number),
            item.effect,
            line(item.rule or call_text(item.tool, item.args or {}), 80),
            line(item.by),
            f"{age(now - item.at_ms)} ago",
        )
        for item in permissions
    ]
    console.print_table(("N", "EFFECT", "CALLS", "BY", "SINCE"), rows)


@sessions.command()
@session_command
@click.option(
    "--timeout",
    type=duration_ms,
    metavar="DURATION",
    help="Follow the session for at most this long, such as 90s.",
)
@with_settings
def resume(settings: Settings, session_id: str, timeout: int | None) -> int:
    """Continue a session here, even after it failed. Exit codes are those of run."""

    async def main(console: Console) -> int:
        session = await find_session(console, session_id)
        handle = console.session(session.session_id, session.tenant)
        remember_session(settings, handle.id)
        if settings.server is None:  # with a server, streaming without a message resumes it
            await handle.resume()
        return await drive(console, handle, DriveOptions(timeout_ms=timeout, agent=session.agent))

    return with_api(settings, main, names=[session_id])


@sessions.command()
@session_command
@by_option
@click.option("--reason", metavar="TEXT", help="Record this reason.")
@api_command
async def cancel(console: Console, session_id: str, by: str | None, reason: str | None) -> None:
    """Cancel the run of a session. No further step of it starts."""
    before = await find_session(console, session_id)
    handle = console.session(before.session_id, before.tenant)
    session = await handle.cancel(by=by, reason=reason)
    name = line(session.session_id)
    if console.settings.as_json:
        console.print_json(session)
    elif before.state in _OVER:
        console.print(f"Session {name} was already {session.state}.")
    else:
        console.print(f"✓ cancelled session {name}; no further step of it starts")


@sessions.command()
@session_command
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="Do not summarize the last N turns."
)
@click.option("--instructions", metavar="TEXT", help="Add these instructions for the summary.")
@by_option
@with_settings
def compact(settings: Settings, /, session_id: str, **options: Any) -> int:
    """Let the model summarize the older turns of a session.

    Later model requests contain the summary in their place. The log keeps every event.
    """

    async def main(console: Console) -> None:
        before = await find_session(console, session_id)
        handle = console.session(before.session_id, before.tenant)
        session = await handle.compact(**options)
        name = line(session.session_id)
        if settings.as_json:
            console.print_json(session)
        elif session.compaction is not None:
            worker = settings.worker_command(session.agent)
            console.print(f"Recorded the request for session {name}. A worker will summarize it.")
            console.print(f"  start a worker   {worker}")
        else:
            log = await handle.events(after=before.seq)
            compacted = next(event.data for event in log if event.type == "compacted")
            up_to = compacted["upTo"]
            console.print(f"✓ {name} continues from a summary of the events up to {up_to}")
            console.print_result(compacted["summary"])

    return with_api(settings, main, names=[session_id])


@sessions.command()
@session_command
@click.option("--at", type=click.IntRange(min=1), metavar="SEQ", help="Copy up to this event.")
@click.option("--as", "new_id", metavar="NEW", help="Id of the fork.  [default: a new id]")
@click.option(
    "--run",
    "prompt",
    is_flag=False,
    flag_value="",
    metavar="[PROMPT]",
    help="Continue the fork here, with or without a message; exit codes are those of run.",
)
@api_command
async def fork(
    console: Console, session_id: str, at: int | None, new_id: str | None, prompt: str | None
) -> int:
    """Copy a session up to an event where every call is settled. Nothing runs again."""
    handle = await session_of(console, session_id)
    copy = await handle.fork(at=at, id=new_id)
    console.name_session(copy.id)
    forked_at = (await copy.events())[-1].data["at"]
    console.print(f"✓ forked {line(handle.id)} at event {forked_at} as {line(copy.id)}")
    if prompt is not None:
        return await drive(console, copy, DriveOptions(prompt or None))
    if console.settings.as_json:
        console.print_json(await console.snapshot(copy))
    return 0


@sessions.command()
@session_command
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@api_command
async def delete(console: Console, session_id: str, *, yes: bool) -> int:
    """Delete a session with its log and its pending calls. This cannot be undone."""
    session = await find_session(console, session_id)
    name = line(session.session_id)
    question = f"Delete session {name} ({session.state})?"
    if not is_confirmed("a session", question, yes=yes):
        return 1
    await console.session(session.session_id, session.tenant).delete()
    console.print(f"✓ deleted session {name}")
    if console.settings.as_json:
        names = {"sessionID": session.session_id, "tenant": session.tenant}
        console.print_json({**names, "deleted": True})
    return 0
