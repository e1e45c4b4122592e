"""What a benchmark has to say: a title, lines, tables and pictures; as text and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PLOTS = "benchmarks"


@dataclass(frozen=True)
class Table:
    """A head and rows of cells, all text."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """As a pipe table, padded so that it also reads as plain text."""
        lines = [list(self.head), *(list(row) for row in self.rows)]
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.head))]
        shown = [
            "| " + " | ".join(_put(cell, widths[n], n) for n, cell in enumerate(line)) + " |"
            for line in lines
        ]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        return "\n".join([shown[0], "| " + " | ".join(rule) + " |", *shown[1:]])


def _put(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


@dataclass(frozen=True)
class Section:
    """One benchmark's part of the report."""

    title: str
    parts: Sequence[str | Table]
    plots: dict[str, str] = field(default_factory=dict)  # file name -> SVG
    measured: str = ""  # when, and on what

    def text(self) -> str:
        """As it is printed and, but for the pictures, written."""
        shown = [part.markdown() if isinstance(part, Table) else part for part in self.parts]
        when = [f"*{self.measured}*"] if self.measured else []
        return "\n\n".join([f"## {self.title}", *when, *shown])

    def markdown(self) -> str:
        """With its pictures."""
        pictures = [f"![{self.title}]({PLOTS}/{name})" for name in self.plots]
        return "\n\n".join([self.text(), *pictures])


def write(sections: Sequence[Section], facts: Sequence[str], docs: Path = DOCS) -> Path:
    """Write `benchmarks.md` and its pictures; answers the page's path.

    A section of the page that was not measured this time stays as it is, under its own date.
    """
    folder = docs / PLOTS
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for name, svg in section.plots.items():
            (folder / name).write_text(svg, encoding="utf-8")
    page = docs / "benchmarks.md"
    bodies = _bodies(page.read_text(encoding="utf-8")) if page.exists() else {}
    bodies |= {section.title: section.markdown() for section in sections}
    head = "# Benchmarks\n\n`make bench` measured and wrote this page; run it on your own machine."
    about = "\n".join(f"- {fact}" for fact in facts)
    page.write_text("\n\n".join([head, about, *bodies.values()]) + "\n", encoding="utf-8")
    return page


def _bodies(page: str) -> dict[str, str]:
    """The sections of a page by their titles."""
    parts = page.rstrip("\n").split("\n\n## ")[1:]
    return {part.split("\n", 1)[0]: f"## {part}" for part in parts}


def number(value: float | None) -> str:
    """As many digits as are worth reading; a dash for what was not measured."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
