"""The command line: a thin door to the runtime. Heavy imports happen inside the commands."""


def main() -> None:
    """What `holdfast` runs."""
    import gc

    gc.set_threshold(50_000, 20, 100)  # libraries make many objects, and none that is garbage

    from holdfast.cli.ending import ending
    from holdfast.cli.root import cli

    with ending():
        cli()
