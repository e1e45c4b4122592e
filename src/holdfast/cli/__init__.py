"""The command line: a thin door to the runtime. Heavy imports happen inside the commands."""


def main() -> None:
    """What `holdfast` runs."""
    from holdfast.cli.collecting import collect_rarely

    collect_rarely()

    from holdfast.cli.ending import ending
    from holdfast.cli.root import cli

    with ending():
        cli()
