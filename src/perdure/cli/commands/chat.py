"""`perdure chat`."""

import click

from perdure.cli.backend.console import Console, with_api
from perdure.cli.exit_codes import INTERRUPTED
from perdure.cli.recent import remember_session
from perdure.cli.settings import Settings, by_option, with_settings
from perdure.cli.terminal.terminal import Terminal, line


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
    from perdure.cli.commands.chat_loop import Chat
    from perdure.cli.commands.foreground import resolve_last
    from perdure.cli.terminal.prompt import DecisionPrompt, StdinLines
    from perdure.ids import new_id

    names = [new_id("s") if session is None else session]
    terminal = Terminal(settings)

    async def main(console: Console) -> None:
        names[0], tenant = await resolve_last(console, names[0])
        handle = console.in_tenant(tenant).session(names[0], agent=agent)
        remember_session(settings, handle.id)
        prompt = DecisionPrompt(console.api.pending_call, console, StdinLines(), by)
        await Chat(console, handle, prompt, agent).run()

    code = INTERRUPTED
    try:
        code = with_api(settings, main, need="any")
    except KeyboardInterrupt:
        terminal.print()
    terminal.print(f"Session {line(names[0])} is saved.")
    terminal.print(f"  continue   {settings.command('chat', agent, '-s', names[0])}")
    return code
