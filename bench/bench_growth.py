"""How one session's file grows with its history: ours, LangGraph's, and bare rows."""

from bench.contenders import FLOOR, LANGGRAPH, OURS, NotMeasured, do, present
from bench.report import Section, Table
from bench.svg import Bars, chart

TURNS = (100, 400)
TURN_BYTES = 2000  # a message of 1,000 bytes and an answer of 1,000 bytes

METHOD = """\
One session, turn after turn: a message of 1,000 bytes, answered by 1,000 bytes. The size is that of
all files after closing; in brackets, how many times the text itself."""


def measure(*, quick: bool = False) -> Section:
    """File sizes after 100 and 400 turns; `quick` is 20 and 80."""
    turns = tuple(count // 5 for count in TURNS) if quick else TURNS
    sizes: dict[str, list[int]] = {}
    for one in present((OURS, LANGGRAPH, FLOOR)):
        try:
            result = do(one, "growth", turns=turns)["sizes"]
        except NotMeasured:
            continue
        sizes[one.name] = [result[str(count)] for count in turns]
    head = ["", *(f"{count} turns" for count in turns), "4 x the turns cost"]
    rows = [
        [
            name,
            *(_shown(size, count) for size, count in zip(found, turns, strict=True)),
            f"{found[1] / found[0]:.1f} x",
        ]
        for name, found in sizes.items()
    ]
    bars = [
        Bars(name, [size / 1e6 for size in found], name == OURS.name)
        for name, found in sizes.items()
    ]
    plot = chart("File size of one session", "MB", [f"{count} turns" for count in turns], bars)
    return Section("History growth", [METHOD, Table(head, rows)], {"growth.svg": plot})


def _shown(size: int, turns: int) -> str:
    return f"{size / 1e6:.2f} MB ({size / (turns * TURN_BYTES):.1f} x)"
