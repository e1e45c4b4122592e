"""`perdure config …`."""

import json

import click

from perdure.cli.settings import Settings, shared_options, with_settings


@click.group()
@shared_options
def config() -> None:
    """Check the configuration."""


@config.command()
@click.argument("file", required=False)
@with_settings
def validate(settings: Settings, file: str | None) -> int:
    """Check a configuration, and describe what it means."""
    from perdure.cli.local import agents as actions

    return actions.validate(settings, file or settings.config or "perdure.yaml")


@config.command()
@shared_options
def schema() -> int:
    """Print the JSON schema of perdure.yaml, for editors."""
    from perdure import config as configuration

    click.echo(json.dumps(configuration.schema(), indent=2))
    return 0
