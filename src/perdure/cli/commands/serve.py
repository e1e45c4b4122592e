"""`perdure serve`."""

import click

from perdure.cli.settings import Settings, with_settings


@click.command()
@click.option("--host", metavar="H", help="Listen on this address.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Listen on this port; 0 means any free one.  [default: 4747]",
)
@click.option("--no-worker", is_flag=True, help="Do not run a worker in this process.")
@click.option(
    "--wait-ready",
    type=click.FloatRange(min=0),
    is_flag=False,
    flag_value=30.0,
    metavar="[SECONDS]",
    help="Do not serve, but wait until a running server is ready.  [default: 30 seconds]",
)
@with_settings
def serve(
    settings: Settings,
    *,
    host: str | None,
    port: int | None,
    no_worker: bool,
    wait_ready: float | None,
) -> int:
    """Serve sessions, approvals and results over HTTP.

    The server runs until SIGTERM or Ctrl-C, with a worker in the same process. Without any token
    (server.tokens, or PERDURE_TOKEN) only this machine can reach it.

    A script can start the server in the background and wait for it with the same options:
    perdure serve & perdure serve --wait-ready. The exit code is 6 if this takes too long.
    """
    if wait_ready is not None:
        from perdure.cli.local.readiness import wait_until_ready

        return wait_until_ready(settings, host=host, port=port, seconds=wait_ready)
    from perdure.cli.local.serve import serve_until_stopped

    return serve_until_stopped(settings, host=host, port=port, worker=not no_worker)
