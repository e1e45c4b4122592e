"""`perdure sessions …`."""

from typing import Any

import click

from perdure.cli.settings import Settings, shared, who, with_settings

STATES = ("pending", "running", "waiting", "completed", "failed", "cancelled")


@click.group()
@shared
def sessions() -> None:
    """Look at sessions and move them. IDs may be shortened; @last is the last one used."""


@sessions.command("list")
@click.option("--state", type=click.Choice(STATES))
@click.option("--agent", metavar="NAME")
@click.option("--older", metavar="DURATION", help="Not touched for that long, such as 7d.")
@click.option("--search", metavar="TEXT", help="In ids and first messages.")
@shared
@with_settings
def list_(settings: Settings, /, **wanted: Any) -> int:
    """List sessions, the newest first."""
    from perdure.cli.actions import sessions as showing

    return showing.list_sessions(settings, wanted)


@sessions.command()
@click.argument("session_id", metavar="ID")
@shared
@with_settings
def show(settings: Settings, session_id: str) -> int:
    """Show why a session does not move and what to type, and what was said so far."""
    from perdure.cli.actions import sessions as showing

    return showing.show_session(settings, session_id)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events after this seq.")
@click.option("--follow", is_flag=True, help="Also those to come.")
@shared
@with_settings
def events(settings: Settings, session_id: str, after: int, *, follow: bool) -> int:
    """Print the log of a session."""
    from perdure.cli.actions import sessions as showing

    return showing.events(settings, session_id, after, follow=follow)


@sessions.command()
@click.argument("session_id", metavar="ID")
@shared
@with_settings
def state(settings: Settings, session_id: str) -> int:
    """Show a paused run: its state, its open calls, and for how long; whole with --json."""
    from perdure.cli.actions import sessions as pausing

    return pausing.state(settings, session_id)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--revoke", type=int, metavar="N", help="Ask again about what N allows.")
@click.option("--by", metavar="NAME", help="Who; else the login name, or the token's.")
@shared
@with_settings
def permissions(settings: Settings, session_id: str, revoke: int | None, by: str | None) -> int:
    """List what was allowed for the rest of a session when a call was approved."""
    from perdure.cli.actions import permissions as permitting

    return permitting.permissions(settings, session_id, revoke, who(by, settings.server))


@sessions.command()
@click.argument("session_ids", metavar="ID...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every session.")
@click.option("--secrets", is_flag=True, help="With secret arguments, as an import needs them.")
@shared
@with_settings
def export(settings: Settings, session_ids: tuple[str, ...], *, every: bool, secrets: bool) -> int:
    """Write sessions to stdout as lines of JSON, for `perdure sessions import`."""
    if bool(session_ids) == every:
        raise click.UsageError("give the IDs of sessions, or --all")
    from perdure.cli.actions import transfer as moving

    return moving.export_sessions(settings, session_ids, every=every, secrets=secrets)


@sessions.command("import")
@click.argument("file")
@click.option("--agent", metavar="NAME", help="Who goes on with another program's session.")
@click.option("--as", "as_id", metavar="ID", help="What another program's session is called here.")
@shared
@with_settings
def import_(settings: Settings, file: str, agent: str | None, as_id: str | None) -> int:
    """Make the sessions of FILE (- is stdin), which an export or another program wrote.

    Of an export, calls that wait go on. Sessions of Claude Code, Codex and opencode, lists of
    Anthropic or OpenAI messages and logs of events are told apart by what is in them, and
    repaired, so that they can be gone on with.
    """
    from perdure.cli.actions import transfer as moving

    return moving.import_sessions(settings, file, agent, as_id)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--timeout", metavar="DURATION", help="How long to follow it, such as 90s.")
@shared
@with_settings
def resume(settings: Settings, session_id: str, timeout: str | None) -> int:
    """Go on with a session here, also after it failed; exits like run."""
    from perdure.cli.actions import run as driving

    return driving.resume(settings, session_id, timeout)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--by", metavar="NAME", help="Who; else the login name, or the token's.")
@click.option("--reason", metavar="TEXT")
@shared
@with_settings
def cancel(settings: Settings, session_id: str, by: str | None, reason: str | None) -> int:
    """End the run of a session: nothing of it is begun any more."""
    from perdure.cli.actions import sessions as showing

    return showing.cancel_session(settings, session_id, who(by, settings.server), reason)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Of the last turns.")
@click.option("--instructions", metavar="TEXT", help="What the model is told besides.")
@click.option("--by", metavar="NAME", help="Who; else the login name, or the token's.")
@shared
@with_settings
def compact(settings: Settings, /, session_id: str, by: str | None, **wanted: Any) -> int:
    """Let the model summarise what was said so far, and go on from that; the log stays whole."""
    from perdure.cli.actions import sessions as compacting

    return compacting.compact(settings, session_id, {**wanted, "by": who(by, settings.server)})


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--at", type=click.IntRange(min=1), metavar="SEQ", help="Up to this event.")
@click.option("--as", "new_id", metavar="NEW", help="The id of the fork.")
@click.option(
    "--run",
    "prompt",
    is_flag=False,
    flag_value="",
    metavar="[PROMPT]",
    help="Go on with the fork here, with a message or without; exits like run.",
)
@shared
@with_settings
def fork(
    settings: Settings, session_id: str, at: int | None, new_id: str | None, prompt: str | None
) -> int:
    """Copy a session up to a point where every call was settled; nothing is done again."""
    from perdure.cli.actions import fork as forking

    return forking.fork_session(settings, session_id, forking.Cut(at, new_id, prompt))


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared
@with_settings
def delete(settings: Settings, session_id: str, *, yes: bool) -> int:
    """Delete a session with its log and its calls; this cannot be undone."""
    from perdure.cli.actions import fork as forking

    return forking.delete_session(settings, session_id, yes=yes)
