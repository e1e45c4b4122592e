"""The command line: a thin door to the runtime. Heavy imports happen inside the commands."""


def main() -> None:
    """What `perdure` runs."""
    from perdure.cli.process import collect_rarely

    collect_rarely()

    from perdure.cli.process import ending
    from perdure.cli.root import cli

    with ending():
        cli()
