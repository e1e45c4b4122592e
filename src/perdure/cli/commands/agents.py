"""`perdure agents …`."""

import click

from perdure.cli.settings import Settings, shared, with_settings


@click.group()
@shared
def agents() -> None:
    """Look at the agents that are here."""


@agents.command("list")
@shared
@with_settings
def list_(settings: Settings) -> int:
    """List the agents with their models and tools."""
    from perdure.cli.actions import agents as checking

    return checking.list_agents(settings)


@agents.command()
@shared
@with_settings
def check(settings: Settings) -> int:
    """Compare every waiting call with the agents here; exits with 1 if one could not run.

    Worth running before a new version of the tools is deployed.
    """
    from perdure.cli.actions import agents as checking

    return checking.check(settings)
