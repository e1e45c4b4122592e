"""Groups of commands that are loaded when one of them is typed."""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import click
from click.shell_completion import CompletionItem


class LateGroup(click.Group):
    """Group whose commands are in modules of a package, each loaded when a command is typed.

    `contents` has the module of each command and the first line of its help, so that --help and
    completion load none of them.
    """

    def __init__(
        self, *args: Any, package: str, contents: Mapping[str, tuple[str, str]], **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.package = package
        self.contents = contents

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        del ctx
        return sorted(self.contents)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, which its module adds to the group."""
        self.load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def load(self, cmd_name: str) -> ModuleType | None:
        """Return the module of a command."""
        if cmd_name not in self.contents:
            return None
        return import_module(f"{self.package}.{self.contents[cmd_name][0]}")

    def stand_ins(self) -> dict[str, click.Command]:
        """Return commands with only the first lines of their help."""
        return {name: click.Command(name, help=text) for name, (_, text) in self.contents.items()}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first lines of the commands."""
        click.Group(commands=self.stand_ins()).format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin so."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self.contents[name][1]) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]
