"""`perdure db stats`."""

from typing import Any

from perdure.cli.backend.inspection import inspection
from perdure.cli.commands.db.group import db
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import Terminal, age, line, plural
from perdure.core.session.queues import DEFAULT
from perdure.runtime.doctor.statistics import statistics


@db.command()
@with_settings
def stats(settings: Settings) -> int:
    """Print statistics of the database."""
    inspector, now = inspection(settings)
    report, terminal = statistics(inspector, now), Terminal(settings)
    terminal.print_either(report, lambda: _print_stats(terminal, report, now))
    return 0


def _print_stats(terminal: Terminal, stats: dict[str, Any], now: int) -> None:
    oldest = stats["oldestWait"]
    oldest_text = "none"
    if oldest is not None:
        since = age(now - oldest["since"])
        oldest_text = f"{since}, {line(oldest['tool'])} of {line(oldest['sessionID'])}"
    for name, value in (
        ("Database", f"{line(stats['file'])}, schema {stats['schema']}"),
        ("Sessions", f"{_counts(stats['sessions'])}; {stats['due']} due"),
        ("Lag", age(stats["lagMs"])),
        ("Workers", str(stats["workers"])),
        *_queue_lines(stats["queues"]),
        (
            "Pending",
            f"{_counts(stats['pending'])}; {plural(stats['settledCalls'], 'settled call')}",
        ),
        ("Oldest", oldest_text),
        ("Records", f"{stats['records']:,}"),
        *(_file_lines(stats) if stats["diskFreeBytes"] is not None else []),
        *(_table_lines(stats) if stats["tables"] else []),
    ):
        terminal.print_result(f"{name:<9} {value}")


def _file_lines(stats: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("File", f"{size_text(stats['fileBytes'])}, log {size_text(stats['walBytes'])}"),
        (
            "Pages",
            f"{stats['pages']:,} of {stats['pageBytes']:,} bytes, {stats['freePages']:,} free",
        ),
        ("Disk", f"{size_text(stats['diskFreeBytes'])} free"),
    ]


def _table_lines(stats: dict[str, Any]) -> list[tuple[str, str]]:
    size = sum(table["bytes"] + table["indexBytes"] for table in stats["tables"])
    lines = [("Tables", f"{size_text(size)}, including indexes")]
    for table in stats["tables"]:
        sizes = f"{size_text(table['bytes'])}, indexes {size_text(table['indexBytes'])}"
        rows = plural(table["rows"], "row")
        if stats["diskFreeBytes"] is None:  # a database server only estimates the rows
            rows = f"about {rows}, {table['deadRows']:,} dead"
        lines.append(("", f"{line(table['name'])}: {sizes}, {rows}"))
    return lines


def _queue_lines(queues: dict[str, dict[str, int]]) -> list[tuple[str, str]]:
    if not set(queues) - {DEFAULT}:
        return []
    return [
        (
            "Queues" if index == 0 else "",
            f"{line(name)}: {queue['due']} due, {plural(queue['workers'], 'worker')}",
        )
        for index, (name, queue) in enumerate(queues.items())
    ]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def size_text(count: int) -> str:
    """Return a number of bytes in MiB."""
    return f"{count / 2**20:,.1f} MiB"
