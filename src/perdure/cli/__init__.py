"""The command line. Modules here import the runtime only when a command runs."""


def main() -> None:
    """Run the `perdure` program."""
    from perdure.cli.process import relax_collector

    relax_collector()

    from perdure.cli.process import exit_promptly
    from perdure.cli.root import cli

    with exit_promptly():
        cli()
