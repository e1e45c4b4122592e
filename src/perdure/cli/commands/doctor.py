"""`perdure doctor`."""

import click

from perdure.cli.settings import Settings, shared, with_settings


@click.command()
@click.argument("session", required=False)
@click.option("--full", is_flag=True, help="Also compare every index with its table; slower.")
@click.option("--fix", is_flag=True, help="Do what the findings say; originals are kept.")
@shared
@with_settings
def doctor(settings: Settings, session: str | None, *, full: bool, fix: bool) -> int:
    """Say what is wrong with the store and what waits in it, or with one SESSION; what to type.

    Changes nothing without --fix, and may run beside workers. Exits with 1 if it finds something,
    with 7 if something is damaged.
    """
    from perdure.cli.actions import database as caring
    from perdure.cli.actions import doctor as doctoring

    if session is not None:
        return doctoring.doctor_of_session(settings, session, fix=fix)
    return doctoring.doctor_fix(settings, full=full) if fix else caring.doctor(settings, full=full)
