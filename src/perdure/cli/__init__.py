"""The command line. Modules here import the runtime only when a command runs."""

import sys


def main() -> None:
    """Run the `perdure` program."""
    try:
        _run()
    except KeyboardInterrupt:  # while modules are imported; commands handle it themselves
        sys.exit(130)


def _run() -> None:
    from perdure.cli.process import relax_collector

    relax_collector()

    from perdure.cli.process import exit_promptly
    from perdure.cli.root import cli

    with exit_promptly():
        cli()
