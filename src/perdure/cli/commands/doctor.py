"""`perdure doctor`."""

import click

from perdure.cli.settings import Settings, with_settings


@click.command()
@click.argument("session", required=False)
@click.option(
    "--full", is_flag=True, help="Compare indexes with their tables in a large file, too."
)
@click.option("--fix", is_flag=True, help="Fix what the findings name. The originals are kept.")
@click.option("--dry-run", is_flag=True, help="With --fix: say what it would do, and do nothing.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask for confirmation.")
@with_settings
def doctor(
    settings: Settings, session: str | None, *, full: bool, fix: bool, dry_run: bool, yes: bool
) -> int:
    """Check the store, or one SESSION.

    Each finding says what to do about it. Without --fix the command changes nothing. It may run
    beside workers. The exit code is 1 if there are findings, and 7 if data is damaged.

    Before --fix rebuilds a session, it says what becomes of each open call, and asks at a terminal.
    It starts no call that may have run.
    """
    from perdure.cli.local import doctor as actions

    fixes = actions.Fix(dry_run, yes) if fix or dry_run else None
    if session is not None:
        return actions.doctor_session(settings, session, fix=fixes)
    return actions.doctor_store(settings, full=full, fix=fixes)
