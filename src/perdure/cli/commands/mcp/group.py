"""`perdure mcp`: the server on stdio, and the module of the other commands."""

from typing import Final

import click

from perdure.cli.groups import LateGroup
from perdure.cli.settings import Settings, with_settings

CONTENTS: Final = {
    "install": ("entries", "Add perdure to an MCP client."),
    "status": ("entries", "Show which MCP clients have an entry for perdure."),
    "uninstall": ("entries", "Remove perdure from an MCP client."),
}


@click.group(cls=LateGroup, package=__package__, contents=CONTENTS, invoke_without_command=True)
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
