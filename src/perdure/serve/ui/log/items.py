"""Items of the list of events and bars of the timeline, as HTML.

A page has hundreds of them: a template would take most of the CPU of a page for them. Everything
that comes from an event passes `escape`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

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


def clock_html(ms: int) -> Markup:
    """Return the time of day of an instant, in UTC, with the exact one on hover."""
    iso = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return Markup(  # noqa: S704 - digits
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


def event_html(row: EventRow, icon: Markup, links: EventLinks) -> Markup:
    """Return one event as an item of a list."""
    seq = int(row.event.seq)
    idle = f' <span class="tag">after {escape(row.idle)}</span>' if row.idle else ""
    link = f' <a href="{escape(links.pending(row.link))}">open</a>' if row.link else ""
    child = f' <a href="{escape(links.session(row.child))}">open</a>' if row.child else ""
    fork = (
        f'<button class="plain" form="fork" name="at" value="{seq}" data-key="f">'
        "Fork from here</button>"
        if links.may_fork and row.is_forkable
        else ""
    )
    state = f"{escape(links.state)}&amp;at={seq}&amp;with={max(seq - 1, 1)}"
    return Markup(  # noqa: S704 - escaped above and here
        f'<li class="event {escape(row.tone)}" id="e{seq}" data-row>\n'
        f"{clock_html(row.event.timestamp)}{icon}\n"
        f'<p><span class="kind">{escape(row.name)}</span>'
        f' <span class="text">{escape(row.text)}</span>{idle}{link}{child}</p>\n'
        f'<a class="seq" href="#e{seq}" aria-label="Event {seq}">{seq}</a>\n'
        f'<details id="d{seq}"><summary>{escape(row.event.type)}</summary>'
        f'<pre tabindex="0">{escape(row.data_text)}</pre>\n'
        f'<div class="tools-line">{fork}<a href="{state}">State here</a></div></details>\n</li>'
    )


def bar_html(drawn: DrawnBar) -> Markup:
    """Return one bar of a timeline, which leads to its event."""
    bar, x, y = drawn.bar, drawn.x, drawn.y
    label = ""
    if drawn.label:
        kind = " tl-label-machine" if bar.kind == "machine" else ""
        kind = kind if bar.is_wait else " tl-label-bar"
        label = (
            f'<text class="tl-label{kind}" x="{x + 7:g}" y="{y + 17}">{escape(drawn.label)}</text>'
        )
    return Markup(  # noqa: S704 - escaped above and here
        f'<a href="#e{int(bar.seq)}" tabindex="-1"><rect class="{_BARS[bar.kind]}" x="{x:g}"'
        f' y="{y + 4}" width="{drawn.width:.1f}" height="18" rx="4">'
        f"<title>{escape(drawn.title)}</title></rect>{label}</a>"
    )
