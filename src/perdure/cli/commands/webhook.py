"""`perdure webhook …`."""

import click

from perdure.cli.settings import Settings, login_name, shared, with_settings


@click.group()
@shared
def webhook() -> None:
    """Sign what is sent to us, and see what we send."""


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

    The secret is --secret, else PERDURE_WEBHOOK_SECRET, else that of the configuration. With
    --pending the secret of that call is derived from it. The lines are as curl takes them:

    perdure webhook sign --pending ID < body.json > headers

    curl -H @headers -H 'Content-Type: application/json' --data-binary @body.json URL
    """
    from perdure.cli.actions import webhooks as signing

    return signing.sign(settings, secret, pending, message_id)


@webhook.command(name="list")
@click.option("--status", type=click.Choice(["waiting", "delivered", "dead", "withdrawn"]))
@click.option("--session", metavar="S", help="Of this session only.")
@shared
@with_settings
def list_(settings: Settings, status: str | None, session: str | None) -> int:
    """List what is told to others, oldest first."""
    from perdure.cli.actions import webhooks as telling

    return telling.list_deliveries(settings, status, session)


@webhook.command()
@click.argument("delivery", metavar="ID")
@shared
@with_settings
def show(settings: Settings, delivery: str) -> int:
    """Show one delivery with its body and the log of its attempts."""
    from perdure.cli.actions import webhooks as telling

    return telling.show_delivery(settings, delivery)


@webhook.command()
@click.argument("delivery", metavar="ID")
@click.option("--by", default=login_name, show_default="login name", metavar="NAME")
@shared
@with_settings
def redeliver(settings: Settings, delivery: str, by: str) -> int:
    """Send a delivery again, under the same id, as soon as a worker can."""
    from perdure.cli.actions import webhooks as telling

    return telling.redeliver(settings, delivery, by)
