"""What the page about the fake endpoint shows, runs."""

import re
from pathlib import Path

import pytest

from perdure.testing.endpoint.failures import BROKEN, REFUSED
from perdure.testing.endpoint.script import _KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "fake-endpoint.md").read_text("utf-8")


def test_the_program_on_the_page_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "")  # put back as it was, whatever the program sets
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "fake-endpoint.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.splitlines() == ["Here I am.", "[(0, 529), (0, 200)]"]


def test_every_key_and_every_failure_is_named_on_the_page() -> None:
    named = set(re.findall(r"`([a-z_]+)`", PAGE))
    assert {*_KEYS, *REFUSED, *BROKEN} <= named
