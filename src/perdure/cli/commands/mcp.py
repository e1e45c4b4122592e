"""`perdure mcp …`."""

from typing import Any

import click

from perdure.cli.settings import Settings, with_settings


@click.group(invoke_without_command=True)
@click.option("--no-worker", is_flag=True, help="Do not run a worker in this process.")
@click.option(
    "--approve",
    is_flag=True,
    help="Let the client decide pending calls of sessions that others have started.",
)
@with_settings
@click.pass_context
def mcp(ctx: click.Context, settings: Settings, *, no_worker: bool, approve: bool) -> int:
    """Serve tasks and agents to one MCP client, on stdin and stdout.

    A client such as Claude Code, opencode or Codex starts this command: perdure mcp install. It
    runs until the client closes stdin, with a worker in the same process.

    A client may start it in a folder that you do not trust. So without --config, --app or --store
    it does not read perdure.yaml of the current folder, but only your own configuration,
    perdure/perdure.yaml in $XDG_CONFIG_HOME (~/.config), if it exists. Unless that names a store,
    the store is perdure/perdure.db in $XDG_DATA_HOME (~/.local/share).
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from perdure.cli.local.mcp.serve import serve_on_stdio

    return serve_on_stdio(settings, worker=not no_worker, approve=approve)


_CLIENTS = ("claude", "opencode", "codex")
_client = click.argument("client", type=click.Choice(_CLIENTS))
_scope = click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="user",
    show_default=True,
    help="Change your own configuration, or that of the project in this folder.",
)


@mcp.command()
@_client
@click.option("--http", "url", metavar="URL", help="Connect to this perdure server.")
@_scope
@click.option("--print", "only_print", is_flag=True, help="Print the entry and change nothing.")
@click.option(
    "--own", is_flag=True, help="Use your own configuration, not that of this folder; do not ask."
)
@click.option(
    "--run-as",
    metavar="USER",
    help="As root: write your own configuration, so that commands in tasks run as this user.",
)
@click.option("--yes", is_flag=True, help="Replace another entry without asking.")
@with_settings
def install(settings: Settings, /, client: str, **options: Any) -> int:
    """Add perdure to an MCP client.

    One entry is added to the client's configuration, and nothing else is changed. If a perdure
    server runs at http://127.0.0.1:4747, the client connects to it; otherwise the client starts
    perdure mcp. A token is written as the name of a variable, PERDURE_TOKEN.

    Commands in tasks do not run as root. If you are root and have no configuration of your own, you
    are asked for a user of commands; without a terminal, say --run-as USER.

    In a folder with a perdure.yaml you are asked whether the client's server should use it; then
    the entry has its full path. Without a terminal, say --config perdure.yaml or --own.
    """
    from perdure.cli.local.mcp import install as actions

    return actions.install(settings, actions.InstallOptions(client, **options))


@mcp.command()
@_client
@_scope
@with_settings
def uninstall(settings: Settings, client: str, *, scope: str) -> int:
    """Remove perdure from an MCP client."""
    from perdure.cli.local.mcp import install as actions

    return actions.uninstall(settings, client, scope)


@mcp.command()
@with_settings
def status(settings: Settings) -> int:
    """Show which MCP clients have an entry for perdure."""
    from perdure.cli.local.mcp import install as actions

    return actions.status(settings)
