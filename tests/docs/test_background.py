"""The page on background agents says what users must know, and its example runs."""

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "background.md").read_text("utf-8")


def test_the_page_says_when_to_clear_tasks_and_what_they_cost() -> None:
    """S1.45"""
    _, _, costs = PAGE.partition("## What finished tasks cost\n")
    for text in ("never expire", "one index entry", "background_clear", "perdure tasks delete"):
        assert text in costs.replace("\n", " "), text


def test_the_page_shows_the_example_as_it_is() -> None:
    example = (ROOT / "examples" / "researchers.py").read_text("utf-8")
    assert f"```python\n{example}```" in PAGE
