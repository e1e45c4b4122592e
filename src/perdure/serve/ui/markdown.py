"""Markdown of models as HTML: raw HTML stays text, and nothing is loaded from elsewhere."""

from functools import cache
from typing import Final
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markupsafe import Markup

MAX_LENGTH: Final = 50_000  # characters; a longer text is shown as it is
_SCHEMES: Final = ("http", "https", "mailto")


@cache
def _renderer() -> MarkdownIt:
    renderer = MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True})
    renderer.enable("table").disable(["image", "html_block", "html_inline"])
    renderer.validateLink = _is_harmless  # type: ignore[method-assign]
    return renderer


def _is_harmless(url: str) -> bool:
    try:
        return urlsplit(url.strip()).scheme.lower() in _SCHEMES
    except ValueError:
        return False


def render_markdown(text: str) -> Markup:
    """Return the HTML of a text; links open without a reference to this page."""
    if len(text) > MAX_LENGTH:
        return Markup('<pre class="plain">{}</pre>').format(text)
    html = _renderer().render(text)
    html = html.replace("<a href=", '<a rel="noopener noreferrer nofollow" target="_blank" href=')
    return Markup(html)  # noqa: S704 - the renderer escapes everything that is not its own
