"""A mistake that perdure itself finds while a user's module is imported is told as such."""

from pathlib import Path

import pytest

from perdure.config.load_object import load_object
from perdure.errors import ConfigError


def test_an_error_of_ours_keeps_its_code_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keyless_shop.py").write_text(
        "from perdure import Agent, Runtime\n"
        "rt = Runtime('memory:', agents=[Agent('a', model='anthropic:claude-sonnet-4-6')])\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_object("keyless_shop:rt", tmp_path)
    assert "ANTHROPIC_API_KEY" in (caught.value.hint or "")
    assert "keyless_shop.py:2" in caught.value.message
    assert caught.value.code != "MODULE_RAISES"
