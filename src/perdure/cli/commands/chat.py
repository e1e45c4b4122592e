"""`perdure chat`."""

import click

from perdure.cli.settings import Settings, actor_name, by_option, with_settings


@click.command()
@click.argument("agent")
@click.option("-s", "--session", metavar="SESSION", help="Use this session.  [default: a new one]")
@by_option
@with_settings
def chat(settings: Settings, agent: str, session: str | None, by: str | None) -> int:
    """Talk with AGENT, and decide approvals inline.

    Leave with /exit, Ctrl-D or Ctrl-C. The session is saved, and you can continue it later. Type
    /help inside the chat.
    """
    from perdure.cli.actions import chat as actions

    return actions.chat(settings, agent, session, actor_name(by, settings.server))
