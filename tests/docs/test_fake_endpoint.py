"""What the page about the fake endpoint shows, runs."""

import re

import pytest
from tests.support.paths import DOCS

from perdure.testing.endpoint.failures import CONNECTION_FAILURES, PROVIDER_FAILURES
from perdure.testing.endpoint.script import _KEYS

PAGE = (DOCS / "fake-endpoint.md").read_text("utf-8")


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
    assert {*_KEYS, *PROVIDER_FAILURES, *CONNECTION_FAILURES} <= named
