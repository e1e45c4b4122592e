"""`perdure config …`."""

import json

import click

from perdure.cli.settings import Settings, shared, with_settings


@click.group()
@shared
def config() -> None:
    """Check the configuration."""


@config.command()
@click.argument("file", required=False)
@shared
@with_settings
def validate(settings: Settings, file: str | None) -> int:
    """Say whether a configuration is right, and what it means."""
    from perdure.cli.actions import agents as checking

    return checking.validate(settings, file or settings.config or "perdure.yaml")


@config.command()
@shared
def schema() -> int:
    """Print the JSON schema of perdure.yaml, for editors."""
    from perdure.config import schema as made

    click.echo(json.dumps(made(), indent=2))
    return 0
