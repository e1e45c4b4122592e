"""Items of the list of events and bars of the timeline, as HTML.

A page has hundreds of them: a template would take most of the CPU of a page for them, and so would
an object of `Markup` for each of their parts. Everything that comes from an event passes `escape`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from markupsafe import Markup

from perdure.serve.ui.log.rows import EventRow
from perdure.serve.ui.log.timeline import DrawnBar

_BARS: Final = {
    "model": "tl-model",
    "tool": "tl-bar",
    "error": "tl-error",
    "child": "tl-child",
    "user": "tl-user",
    "person": "tl-person",
    "machine": "tl-machine",
}


def _clock(ms: int) -> str:
    """Return the time of day of an instant, in UTC, with the exact one on hover."""
    iso = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return (
        f'<time datetime="{iso}" data-ms="{int(ms)}" data-kind="clock"'
        f' title="{iso[:10]} {iso[11:23]} UTC">{iso[11:19]}</time>'
    )


@dataclass(frozen=True, slots=True)
class EventLinks:
    """Addresses that items of one session link to, and whether its visitor may fork it."""

    state: str  # with a query already
    pending: Callable[[str], str]
    session: Callable[[str], str]
    may_fork: bool


def events_html(
    rows: Iterable[EventRow], icon: Callable[[str], Markup], links: EventLinks
) -> Markup:
    """Return events as items of a list."""
    icons: dict[str, str] = {}
    state, items = escape(links.state), []
    for row in rows:
        if row.icon not in icons:
            icons[row.icon] = str(icon(row.icon))
        items.append(_event(row, icons[row.icon], links, state))
    return Markup("".join(items))  # noqa: S704 - every item is escaped


def _event(row: EventRow, icon: str, links: EventLinks, state: str) -> str:
    seq = int(row.event.seq)
    idle = f' <span class="tag">after {row.idle}</span>' if row.idle else ""
    link = f' <a href="{escape(links.pending(row.link))}">open</a>' if row.link else ""
    child = f' <a href="{escape(links.session(row.child))}">open</a>' if row.child else ""
    fork = (
        f'<button class="plain" form="fork" name="at" value="{seq}" data-key="f">'
        "Fork from here</button>"
        if links.may_fork and row.is_forkable
        else ""
    )
    return (
        f'<li class="event {row.tone}" id="e{seq}" data-row>\n'
        f"{_clock(row.event.at_ms)}{icon}\n"
        f'<p><span class="kind">{escape(row.name)}</span>'
        f' <span class="text">{escape(row.text)}</span>{idle}{link}{child}</p>\n'
        f'<a class="seq" href="#e{seq}" aria-label="Event {seq}">{seq}</a>\n'
        f'<details id="d{seq}"><summary>{escape(row.event.type)}</summary>'
        f'<pre tabindex="0">{escape(row.data_text)}</pre>\n'
        f'<div class="tools-line">{fork}'
        f'<a href="{state}&amp;at={seq}&amp;with={max(seq - 1, 1)}">State here</a>'
        "</div></details>\n</li>"
    )


def bars_html(bars: Iterable[DrawnBar]) -> Markup:
    """Return the bars of a timeline, each of which leads to its event."""
    return Markup("".join(map(_bar, bars)))  # noqa: S704 - every bar is escaped


def _bar(drawn: DrawnBar) -> str:
    bar, x, y = drawn.bar, drawn.x, drawn.y
    label = ""
    if drawn.label:
        kind = " tl-label-machine" if bar.kind == "machine" else ""
        kind = kind if bar.is_wait else " tl-label-bar"
        label = (
            f'<text class="tl-label{kind}" x="{x + 7:g}" y="{y + 17}">{escape(drawn.label)}</text>'
        )
    return (
        f'<a href="#e{int(bar.seq)}" tabindex="-1"><rect class="{_BARS[bar.kind]}" x="{x:g}"'
        f' y="{y + 4}" width="{drawn.width:.1f}" height="18" rx="4">'
        f"<title>{escape(drawn.title)}</title></rect>{label}</a>"
    )
