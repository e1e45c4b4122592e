"""`perdure config …`."""

import json
from pathlib import Path

import click

from perdure.cli.settings import CONFIG, Settings, shared_options, with_settings
from perdure.cli.terminal.terminal import Terminal


@click.group()
@shared_options
def config() -> None:
    """Check the configuration."""


@config.command()
@click.argument("file", required=False)
@with_settings
def validate(settings: Settings, file: str | None) -> int:
    """Check a configuration, and describe what it means."""
    from perdure import config as configuration
    from perdure.app import Runtime

    path = file or settings.config or CONFIG
    lines = configuration.describe(configuration.load(Path(path)))
    Runtime.from_config(path)  # imports the objects that it names, and opens nothing
    terminal = Terminal(settings)
    report = {"valid": True, "file": path, "lines": lines}
    terminal.print_either(report, lambda: terminal.print_result("\n".join(lines)))
    return 0


@config.command()
@shared_options
def schema() -> int:
    """Print the JSON schema of perdure.yaml, for editors."""
    from perdure import config as configuration

    click.echo(json.dumps(configuration.schema(), indent=2))
    return 0
