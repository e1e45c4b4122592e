"""Report of a benchmark: a title, paragraphs, tables and charts, as text and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PLOTS = "benchmarks"


@dataclass(frozen=True)
class Table:
    """Table of text cells with a header row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return a Markdown table, padded so that it is readable as plain text."""
        lines = [list(self.head), *(list(row) for row in self.rows)]
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.head))]
        rows = [
            "| " + " | ".join(_pad(cell, widths[n], n) for n, cell in enumerate(line)) + " |"
            for line in lines
        ]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        return "\n".join([rows[0], "| " + " | ".join(rule) + " |", *rows[1:]])


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


@dataclass(frozen=True)
class Section:
    """Section of the report for one benchmark."""

    title: str
    parts: Sequence[str | Table]
    plots: dict[str, str] = field(default_factory=dict)  # file name -> SVG
    run_label: str = ""  # date, version and load average

    def text(self) -> str:
        """Return the section without its charts, as it is printed."""
        texts = [part.markdown() if isinstance(part, Table) else part for part in self.parts]
        when = [f"*{self.run_label}*"] if self.run_label else []
        return "\n\n".join([f"## {self.title}", *when, *texts])

    def markdown(self) -> str:
        """Return the section with its charts, as it is written to the page."""
        charts = [f"![{self.title}]({PLOTS}/{name})" for name in self.plots]
        return "\n\n".join([self.text(), *charts])


def write_page(sections: Sequence[Section], facts: Sequence[str], docs: Path = DOCS) -> Path:
    """Write `benchmarks.md` and its charts; return the path of the page.

    Sections of the page that this run did not measure stay unchanged, with their own dates.
    """
    folder = docs / PLOTS
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for name, svg in section.plots.items():
            (folder / name).write_text(svg, encoding="utf-8")
    page = docs / "benchmarks.md"
    bodies = _bodies(page.read_text(encoding="utf-8")) if page.exists() else {}
    bodies |= {section.title: section.markdown() for section in sections}
    head = "# Benchmarks\n\n`make bench` generates this page; run it to measure your own machine."
    about = "\n".join(f"- {fact}" for fact in facts)
    page.write_text("\n\n".join([head, about, *bodies.values()]) + "\n", encoding="utf-8")
    return page


def _bodies(page: str) -> dict[str, str]:
    """Return the sections of a page by their titles."""
    parts = page.rstrip("\n").split("\n\n## ")[1:]
    return {part.split("\n", 1)[0]: f"## {part}" for part in parts}


def number(value: float | None) -> str:
    """Format with two decimals below 10, one below 100, none above; a dash for a missing value."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
