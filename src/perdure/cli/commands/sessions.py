"""`perdure sessions …`."""

from typing import Any, get_args

import click

from perdure.cli.settings import Settings, actor_name, by_option, shared_options, with_settings
from perdure.views.literals import RunState


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
    "--older", metavar="DURATION", help="List only sessions unchanged for this long, such as 7d."
)
@click.option(
    "--search", metavar="TEXT", help="List only sessions with TEXT in the id or first message."
)
@with_settings
def list_(settings: Settings, /, **options: Any) -> int:
    """List sessions, newest first."""
    from perdure.cli.actions import sessions as actions

    return actions.list_sessions(settings, options)


@sessions.command()
@click.argument("session_id", metavar="ID")
@with_settings
def show(settings: Settings, session_id: str) -> int:
    """Show a session with its conversation.

    The first lines say what it waits for and which commands continue it.
    """
    from perdure.cli.actions import sessions as actions

    return actions.show_session(settings, session_id)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="SEQ",
    help="Print only events after this one.",
)
@click.option("--follow", is_flag=True, help="Keep printing events as they are recorded.")
@with_settings
def events(settings: Settings, session_id: str, after: int, *, follow: bool) -> int:
    """Print the log of a session."""
    from perdure.cli.actions import sessions as actions

    return actions.events(settings, session_id, after, follow=follow)


@sessions.command()
@click.argument("session_id", metavar="ID")
@with_settings
def state(settings: Settings, session_id: str) -> int:
    """Show a paused run with its open calls.

    With --json, print the complete execution state.
    """
    from perdure.cli.actions import sessions as actions

    return actions.state(settings, session_id)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option(
    "--revoke", type=int, metavar="N", help="Revoke permission N: its calls need approval again."
)
@by_option
@with_settings
def permissions(settings: Settings, session_id: str, revoke: int | None, by: str | None) -> int:
    """List or revoke the permissions of a session.

    Approvers grant them for the rest of the session with `perdure approve --remember`.
    """
    from perdure.cli.actions import permissions as actions

    return actions.permissions(settings, session_id, revoke, actor_name(by, settings.server))


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
    from perdure.cli.actions import transfer as actions

    return actions.export_sessions(settings, session_ids, every=every, secrets=secrets)


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
    from perdure.cli.actions import transfer as actions

    return actions.import_sessions(settings, file, agent, as_id)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option(
    "--timeout", metavar="DURATION", help="Follow the session for at most this long, such as 90s."
)
@with_settings
def resume(settings: Settings, session_id: str, timeout: str | None) -> int:
    """Continue a session here, even after it failed. Exit codes are those of run."""
    from perdure.cli.actions import run as actions

    return actions.resume(settings, session_id, timeout)


@sessions.command()
@click.argument("session_id", metavar="ID")
@by_option
@click.option("--reason", metavar="TEXT", help="Record this reason.")
@with_settings
def cancel(settings: Settings, session_id: str, by: str | None, reason: str | None) -> int:
    """Cancel the run of a session. No further step of it starts."""
    from perdure.cli.actions import sessions as actions

    return actions.cancel_session(settings, session_id, actor_name(by, settings.server), reason)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="Do not summarize the last N turns."
)
@click.option("--instructions", metavar="TEXT", help="Add these instructions for the summary.")
@by_option
@with_settings
def compact(settings: Settings, /, session_id: str, by: str | None, **options: Any) -> int:
    """Let the model summarize the older turns of a session.

    Later model requests contain the summary in their place. The log keeps every event.
    """
    from perdure.cli.actions import sessions as actions

    return actions.compact(settings, session_id, {**options, "by": actor_name(by, settings.server)})


@sessions.command()
@click.argument("session_id", metavar="ID")
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
@with_settings
def fork(
    settings: Settings, session_id: str, at: int | None, new_id: str | None, prompt: str | None
) -> int:
    """Copy a session up to an event where every call is settled. Nothing runs again."""
    from perdure.cli.actions import fork as actions

    return actions.fork_session(settings, session_id, actions.ForkOptions(at, new_id, prompt))


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@with_settings
def delete(settings: Settings, session_id: str, *, yes: bool) -> int:
    """Delete a session with its log and its pending calls. This cannot be undone."""
    from perdure.cli.actions import fork as actions

    return actions.delete_session(settings, session_id, yes=yes)
