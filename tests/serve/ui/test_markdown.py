"""Markdown of models: formatted, and harmless."""

import pytest

from perdure.serve.ui.markdown import MAX_LENGTH, render_markdown


def test_emphasis_lists_tables_and_links_are_formatted() -> None:
    html = str(
        render_markdown("**paid** twice\n\n- one\n\n|a|b|\n|-|-|\n|1|2|\n\n[x](https://a.b)")
    )
    for part in ("<strong>paid</strong>", "<li>one</li>", "<td>1</td>"):
        assert part in html
    assert 'rel="noopener noreferrer nofollow" target="_blank" href="https://a.b"' in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![i](http://evil.example/x.png)",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "[x](data:text/html,x)",
        "<a href=javascript:alert(1)>x</a>",
        "<!-- x --><iframe src=//evil.example>",
        '[x](https://a.b "onmouseover=alert(1)")',
    ],
)
def test_nothing_of_a_text_runs_or_is_loaded(text: str) -> None:
    html = str(render_markdown(text)).lower()
    for tag in ("<script", "<img", "<iframe", "<!--"):
        assert tag not in html
    assert 'href="javascript' not in html
    assert 'href="data' not in html
    assert " onmouseover" not in html.replace("&quot;", '"').split("title=")[0]


def test_a_very_long_text_is_shown_as_it_is() -> None:
    html = str(render_markdown("<b>" * MAX_LENGTH))
    assert html.startswith('<pre class="plain">&lt;b&gt;')
