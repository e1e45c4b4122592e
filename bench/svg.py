"""Horizontal bar charts as SVG: one group of bars per contender, perdure in color."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 760, 170, 90
BAR, GAP, TOP = 18, 12, 64
INK, PALE = "#1f2933", "#6b7280"
OURS = ("#0f766e", "#5eb5ac")
OTHERS = ("#64748b", "#b6c0cd")


@dataclass(frozen=True)
class Bars:
    """Group of bars: a name and one value per series; None is drawn as `not measured`."""

    name: str
    values: Sequence[float | None]
    is_ours: bool = False


def chart(title: str, unit: str, series: Sequence[str], rows: Sequence[Bars]) -> str:
    """Return the SVG document; all bars share one scale, which starts at 0."""
    maximum = max((v for row in rows for v in row.values if v is not None), default=0.0) or 1.0
    step = len(series) * BAR + GAP
    height = TOP + len(rows) * step + 8
    box = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 24, f"{title} ({unit})", INK, size=15, weight="bold"),
        *_legend(series),
    ]
    for index, row in enumerate(rows):
        parts += _row(row, TOP + index * step, maximum, len(series))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(series: Sequence[str]) -> list[str]:
    if len(series) < 2:
        return []
    parts: list[str] = []
    x = 16
    for index, name in enumerate(series):
        parts += [
            f'<rect x="{x}" y="37" width="11" height="11" fill="{_color(OTHERS, index)}"/>',
            _text(x + 17, 47, name, PALE),
        ]
        x += 40 + 7 * len(name)
    return parts


def _row(row: Bars, y: int, maximum: float, series: int) -> list[str]:
    middle = y + series * BAR / 2 + 4
    weight = "bold" if row.is_ours else "normal"
    parts = [_text(LEFT - 10, middle, row.name, INK, anchor="end", weight=weight)]
    for index, value in enumerate(row.values):
        top = y + index * BAR
        if value is None:
            parts.append(_text(LEFT + 4, top + 13, "not measured", PALE))
            continue
        width = max(1.0, value / maximum * (WIDTH - LEFT - RIGHT))
        fill = _color(OURS if row.is_ours else OTHERS, index)
        parts += [
            f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR - 2}" fill="{fill}"/>',
            _text(LEFT + width + 6, top + 13, _format_value(value), INK),
        ]
    return parts


def _color(shades: Sequence[str], index: int) -> str:
    return shades[index % len(shades)]


def _format_value(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _text(
    x: float,
    y: float,
    text: str,
    fill: str,
    *,
    size: int = 12,
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{fill}" font-size="{size}" '
        f'text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
    )
