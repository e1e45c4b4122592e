"""What the page about histories shows, runs."""

import re

import pytest
from tests.support.paths import DOCS

PAGE = (DOCS / "histories.md").read_text("utf-8")


def test_the_program_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "histories.md", "exec"), {})  # noqa: S102
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "message 1: tool_call call_b missing matching tool_result"
    assert last.startswith("Sanitized 2 issue(s): [incomplete_tool_call] Removed 1 incomplete")
