"""`perdure sessions`: its commands, and the modules that have them."""

from typing import Final

import click

from perdure.cli.groups import LateGroup
from perdure.cli.settings import shared_options

CONTENTS: Final = {
    "cancel": ("changes", "Cancel the run of a session."),
    "compact": ("changes", "Let the model summarize the older turns of a session."),
    "delete": ("changes", "Delete a session with its log and its pending calls."),
    "events": ("log", "Print the log of a session."),
    "export": ("transfer", "Export sessions to stdout, as lines of JSON."),
    "fork": ("changes", "Copy a session up to an event where every call is settled."),
    "import": ("transfer", 'Import the sessions in FILE, or from stdin if FILE is "-".'),
    "list": ("listing", "List sessions, newest first."),
    "permissions": ("changes", "List or revoke the permissions of a session."),
    "resume": ("changes", "Continue a session here, even after it failed."),
    "show": ("log", "Show a session with its conversation."),
    "state": ("log", "Show a paused run with its open calls."),
}


@click.group(cls=LateGroup, package=__package__, contents=CONTENTS)
@shared_options
def sessions() -> None:
    """List, inspect, continue and change sessions.

    An ID may be shortened to a unique prefix; @last is the session that was used last.
    """
