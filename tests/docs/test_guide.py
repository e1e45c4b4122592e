"""Every program of the guide runs, in the order of the page, and prints what its comments say."""

import re
from pathlib import Path

import pytest
from tests.support.paths import DOCS

PAGE = (DOCS / "guide.md").read_text()


def test_the_programs_of_the_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "guide"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "guide.md", "exec"), names)  # noqa: S102 - our own page
    output = capsys.readouterr().out
    for promised in (
        "The file has 3 rows.",
        "Hello!",
        "waiting",
        "Both are done.",
        "cancelled",
        "Hello 1",
        "Looked it up.",
        "completed",
    ):
        assert f"{promised}\n" in output
