"""Reference of the command line, from the click commands themselves."""

from collections.abc import Iterator

import click
from scripts.docs.python import NOTE

from perdure.cli.root import cli


def page() -> str:
    """Every command with its help."""
    parts = [NOTE, "# Command line", *_commands(cli, ["perdure"], None)]
    return "\n\n".join(parts) + "\n"


def _commands(
    command: click.Command, path: list[str], parent: click.Context | None
) -> Iterator[str]:
    context = click.Context(
        command, info_name=path[-1], parent=parent, terminal_width=100, max_content_width=100
    )
    yield f"## `{' '.join(path)}`"
    yield f"```text\n{command.get_help(context).rstrip()}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _commands(child, [*path, name], context)
