"""File size of one session as its history grows: perdure, LangGraph and bare rows."""

from bench.contenders import FLOOR, LANGGRAPH, OURS, NotMeasured, available, run_job
from bench.report import Section, Table
from bench.svg import Bars, chart

TURNS = (100, 400, 1600)
MOST_TURNS = {LANGGRAPH.name: 400}  # 1,600 turns would take 8 GB
TURN_BYTES = 2000  # a message and a model response of 1,000 bytes each
TARGET = 1.3

METHOD = """\
One session, turn after turn: a message of 1,000 bytes and a model response of 1,000 bytes, both
random base64, which compresses by a quarter; English text would take half of that. The size is that
of all files after closing; in parentheses, its ratio to the size of the text. An empty database of
perdure has 0.13 MB."""


def measure(*, quick: bool = False) -> Section:
    """Measure file sizes after 100, 400 and 1,600 turns; `quick` uses a fifth of them."""
    turns = tuple(count // 5 for count in TURNS) if quick else TURNS
    sizes: dict[str, list[int | None]] = {}
    for contender in available((OURS, LANGGRAPH, FLOOR)):
        most = MOST_TURNS.get(contender.name, TURNS[-1]) // (5 if quick else 1)
        counts = [count for count in turns if count <= most]
        try:
            result = run_job(contender, "growth", turns=counts)["sizes"]
        except NotMeasured:
            continue
        sizes[contender.name] = [result.get(str(count)) for count in turns]
    head = ["", *(f"{count:,} turns" for count in turns), "growth at 4 x the turns"]
    rows = [
        [
            name,
            *(_format_size(size, count) for size, count in zip(file_sizes, turns, strict=True)),
            _growth(file_sizes),
        ]
        for name, file_sizes in sizes.items()
    ]
    bars = [
        Bars(name, [None if size is None else size / 1e6 for size in file_sizes], name == OURS.name)
        for name, file_sizes in sizes.items()
    ]
    plot = chart("File size of one session", "MB", [f"{count} turns" for count in turns], bars)
    verdicts = _verdicts(sizes.get(OURS.name, []), turns)
    parts: list[str | Table] = [METHOD, Table(head, rows), verdicts]
    return Section("History growth", parts, {"growth.svg": plot})


def _verdicts(sizes: list[int | None], turns: tuple[int, ...]) -> str:
    """Return one line per target, met or missed."""
    return "\n".join(
        f"- {count:,} turns: {size / (count * TURN_BYTES):.2f} x the text; target ≤ {TARGET} x: "
        f"{'met' if size <= TARGET * count * TURN_BYTES else 'missed'}"
        for size, count in zip(sizes, turns, strict=False)
        if size is not None and count != turns[0]
    )


def _growth(sizes: list[int | None]) -> str:
    """Return the last ratio between two sizes that were measured."""
    short, long = [size for size in sizes if size is not None][-2:]
    return f"{long / short:.1f} x"


def _format_size(size: int | None, turns: int) -> str:
    return "-" if size is None else f"{size / 1e6:.2f} MB ({size / (turns * TURN_BYTES):.1f} x)"
