"""`perdure sessions export` and `import`, which need the store itself."""

import click

from perdure.cli.commands.sessions.group import sessions
from perdure.cli.settings import Settings, with_settings


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
    from perdure.cli.local.transfer import export_sessions

    return export_sessions(settings, session_ids, every=every, secrets=secrets)


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
    from perdure.cli.local.transfer import import_sessions

    return import_sessions(settings, file, agent, as_id)
