"""What docs/mcp-tools.md shows is what there is."""

import dataclasses
import re
from pathlib import Path

import pytest
from tests.support.paths import DOCS

from perdure import Agent, Runtime
from perdure.config import load
from perdure.mcp import MCPServer, MCPTools
from perdure.testing import ScriptedModel

PAGE = (DOCS / "mcp-tools.md").read_text()


def code(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_configuration_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "a")
    monkeypatch.setenv("CRM_TOKEN", "b")
    (tmp_path / "turns.json").write_text("[]")
    (tmp_path / "perdure.yaml").write_text(code("yaml"))
    assert set(load(tmp_path / "perdure.yaml").mcp_servers) == {"github", "crm"}
    Runtime.from_config(tmp_path / "perdure.yaml", store="memory:")


def test_the_program_is_right() -> None:
    lines = code("python").replace('model="…"', "model=ScriptedModel([])")
    names = {"token": "a", "key": "b", "ScriptedModel": ScriptedModel}
    exec(lines.replace("Runtime(", 'Runtime("memory:", '), names)  # noqa: S102 - our own page
    assert isinstance(names["agent"], Agent)


@pytest.mark.parametrize("written", [MCPServer, MCPTools])
def test_every_option_is_told(written: type) -> None:
    for one in dataclasses.fields(written):
        assert one.name in ("name", "server") or f"`{one.name}`" in PAGE, one.name
