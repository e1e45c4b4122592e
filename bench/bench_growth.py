"""File size of one session as its history grows: perdure, LangGraph and bare rows."""

from bench.contenders import FLOOR, LANGGRAPH, OURS, NotMeasured, available, run_job
from bench.report import Section, Table
from bench.svg import Bars, chart

TURNS = (100, 400)
TURN_BYTES = 2000  # a message and a model response of 1,000 bytes each

METHOD = """\
One session, turn after turn: a message of 1,000 bytes and a model response of 1,000 bytes. The size
is that of all files after closing; in parentheses, its ratio to the size of the text."""


def measure(*, quick: bool = False) -> Section:
    """Measure file sizes after 100 and 400 turns; `quick` uses 20 and 80 turns."""
    turns = tuple(count // 5 for count in TURNS) if quick else TURNS
    sizes: dict[str, list[int]] = {}
    for contender in available((OURS, LANGGRAPH, FLOOR)):
        try:
            result = run_job(contender, "growth", turns=turns)["sizes"]
        except NotMeasured:
            continue
        sizes[contender.name] = [result[str(count)] for count in turns]
    head = ["", *(f"{count} turns" for count in turns), "growth at 4 x the turns"]
    rows = [
        [
            name,
            *(_format_size(size, count) for size, count in zip(file_sizes, turns, strict=True)),
            f"{file_sizes[1] / file_sizes[0]:.1f} x",
        ]
        for name, file_sizes in sizes.items()
    ]
    bars = [
        Bars(name, [size / 1e6 for size in file_sizes], name == OURS.name)
        for name, file_sizes in sizes.items()
    ]
    plot = chart("File size of one session", "MB", [f"{count} turns" for count in turns], bars)
    return Section("History growth", [METHOD, Table(head, rows)], {"growth.svg": plot})


def _format_size(size: int, turns: int) -> str:
    return f"{size / 1e6:.2f} MB ({size / (turns * TURN_BYTES):.1f} x)"
