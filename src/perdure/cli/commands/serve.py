"""`perdure serve`."""

import click

from perdure.cli.settings import Settings, shared, with_settings


@click.command()
@click.option("--host", metavar="H", help="Address to listen on; default 127.0.0.1.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Default 4747; 0 takes a free one."
)
@click.option("--no-worker", is_flag=True, help="Drive nothing here; leave that to workers.")
@shared
@with_settings
def serve(settings: Settings, *, host: str | None, port: int | None, no_worker: bool) -> int:
    """Serve sessions, approvals and results over HTTP, until SIGTERM or Ctrl-C.

    Without any token (server.tokens, or PERDURE_TOKEN) only this machine can reach it. A worker
    runs in the same process.
    """
    from perdure.cli.actions import serve as serving

    return serving.serve(settings, host=host, port=port, worker=not no_worker)
