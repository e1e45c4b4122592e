"""The command line: a thin door to the runtime. Heavy imports happen inside the commands."""


def main() -> None:
    """What `holdfast` runs."""
    from holdfast.cli.process import collect_rarely

    collect_rarely()

    from holdfast.cli.process import ending
    from holdfast.cli.root import cli

    with ending():
        cli()
