"""`perdure db convert`: a folder of files of an earlier version becomes one of this version."""

from pathlib import Path

import anyio

from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line, plural
from perdure.store.files.convert import convert
from perdure.store.files.layout import LOG


def convert_folder(settings: Settings, folder: str) -> int:
    """Convert the folder, and say which streams were damaged."""
    path = Path(folder.removeprefix("files:").removeprefix("//")).absolute()
    converted = anyio.run(convert, path)
    terminal = Terminal(settings)
    report = {**converted._asdict(), "kept": str(converted.kept)}

    def show() -> None:
        terminal.print(
            f"✓ converted {plural(converted.streams, 'stream')} with "
            f"{plural(converted.records, 'record')} and {plural(converted.entries, 'entry')}"
        )
        terminal.print(
            f"  the files of the earlier version are kept in {line(str(converted.kept))}"
        )
        for name in converted.damaged:
            terminal.print(f"✗ {line(name)} is damaged, and was not converted")
        if converted.damaged:
            log = f"{line(str(converted.kept))}/SESSION/{LOG}"
            terminal.print(f"  import what can be read: perdure sessions import {log} --as ID")

    terminal.print_either(report, show)
    return 1 if converted.damaged else 0
