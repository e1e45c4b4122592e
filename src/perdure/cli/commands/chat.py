"""`perdure chat`."""

import click

from perdure.cli.settings import Settings, shared, who, with_settings


@click.command()
@click.argument("agent")
@click.option("-s", "--session", metavar="SESSION", help="Its id; a new one if not given.")
@click.option("--by", metavar="NAME", help="Who decides; else the login name, or the token's.")
@shared
@with_settings
def chat(settings: Settings, agent: str, session: str | None, by: str | None) -> int:
    """Talk with AGENT, deciding inline; leave with Ctrl-D or Ctrl-C and go on later."""
    from perdure.cli.actions import chat as chatting

    return chatting.chat(settings, agent, session, who(by, settings.server))
