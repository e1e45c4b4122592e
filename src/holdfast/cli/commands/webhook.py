"""`holdfast webhook …`."""

import click

from holdfast.cli.settings import Settings, shared, with_settings


@click.group()
@shared
def webhook() -> None:
    """Sign what is sent to us."""


@webhook.command()
@click.option("--secret", metavar="S", help="Others on the machine can see it; better: see below.")
@click.option("--pending", metavar="ID", help="Sign for this call: with its own secret.")
@click.option("--id", "message_id", metavar="ID", help="Of the message (default: a new one).")
@shared
@with_settings
def sign(
    settings: Settings, secret: str | None, pending: str | None, message_id: str | None
) -> int:
    """Print the header lines that sign the body on stdin, in both ways.

    The secret is --secret, else HOLDFAST_WEBHOOK_SECRET, else that of the configuration. With
    --pending the secret of that call is derived from it. The lines are as curl takes them:

    holdfast webhook sign --pending ID < body.json > headers

    curl -H @headers -H 'Content-Type: application/json' --data-binary @body.json URL
    """
    from holdfast.cli import signing

    return signing.sign(settings, secret, pending, message_id)
