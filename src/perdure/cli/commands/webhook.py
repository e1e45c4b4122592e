"""`perdure webhook …`."""

import click

from perdure.cli.settings import Settings, login_name, shared_options, with_settings


@click.group()
@shared_options
def webhook() -> None:
    """Sign requests, and inspect webhook deliveries."""


@webhook.command()
@click.option(
    "--secret",
    metavar="SECRET",
    help="Sign with this secret. Other users of this machine can see it; prefer the variable.",
)
@click.option("--pending", metavar="ID", help="Sign with the secret of this pending call.")
@click.option("--id", "message_id", metavar="ID", help="Id of the message.  [default: a new id]")
@with_settings
def sign(
    settings: Settings, secret: str | None, pending: str | None, message_id: str | None
) -> int:
    """Print the headers that sign the body on stdin.

    The secret is taken from --secret, from PERDURE_WEBHOOK_SECRET, or from the configuration, in
    this order. With --pending, the secret of that call is derived from it. The output contains
    both kinds of signature headers, one per line, as curl reads them:

    perdure webhook sign --pending ID < body.json > headers

    curl -H @headers -H 'Content-Type: application/json' --data-binary @body.json URL
    """
    from perdure.cli.local import webhooks as actions

    return actions.sign(settings, secret, pending, message_id)


@webhook.command(name="list")
@click.option(
    "--status",
    type=click.Choice(["waiting", "delivered", "dead", "withdrawn"]),
    help="List only deliveries with this status.",
)
@click.option("--session", metavar="ID", help="List only deliveries of this session.")
@with_settings
def list_(settings: Settings, status: str | None, session: str | None) -> int:
    """List webhook deliveries, oldest first."""
    from perdure.cli.local import webhooks as actions

    return actions.list_deliveries(settings, status, session)


@webhook.command()
@click.argument("delivery", metavar="ID")
@with_settings
def show(settings: Settings, delivery: str) -> int:
    """Show a delivery with its body and the log of its attempts."""
    from perdure.cli.local import webhooks as actions

    return actions.show_delivery(settings, delivery)


@webhook.command()
@click.argument("delivery", metavar="ID")
@click.option(
    "--by",
    default=login_name,
    show_default="login name",
    metavar="NAME",
    help="Record this name.",
)
@with_settings
def redeliver(settings: Settings, delivery: str, by: str) -> int:
    """Let a worker send a delivery again, with the same id."""
    from perdure.cli.local import webhooks as actions

    return actions.redeliver(settings, delivery, by)
