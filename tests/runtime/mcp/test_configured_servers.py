"""MCP servers and their tools in a configuration."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.mcp.test_tools import results
from tests.runtime.mcp.world import PROGRAM, SECRET, World
from tests.support.paths import ROOT

from perdure import Runtime
from perdure.errors import ConfigError
from perdure.mcp import MCPTools

YAML = """
session_stores:
  main: {{backend: sql, sql: {{driver: sqlite, database: h.db}}}}
mcp_servers:
  shop: {{command: {command}, cwd: {cwd}, env: {env}, connect_timeout: 30s}}
agents:
  clerk:
    llm: scripted:turns.json
    session_store: main
    permissions: {{deny: ["s_charge:cents=1*"]}}
    tools:
      - {{mcp: shop, only: [look, charge], requires_approval: [charge], prefix: s_, timeout: 1m}}
"""


@pytest.fixture
def config(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    env = {**world.env, "TOKEN": "${SHOP_TOKEN}"}
    said = YAML.format(command=json.dumps(PROGRAM), cwd=json.dumps(str(ROOT)), env=json.dumps(env))
    calls = [{"tool": "s_look", "args": {"what": "x"}}, {"tool": "s_charge", "args": {"cents": 12}}]
    (tmp_path / "turns.json").write_text(json.dumps([{"calls": calls}, {"text": "Done."}]))
    (tmp_path / "perdure.yaml").write_text(said)
    return tmp_path / "perdure.yaml"


def perdure(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    run = "from perdure.cli import main; main()"
    command = [sys.executable, "-c", run, *words, "--config", str(config)]
    around = {**os.environ, "SHOP_TOKEN": SECRET}
    return subprocess.run(command, capture_output=True, text=True, env=around, check=False)


async def test_a_configuration_names_servers_and_tools(config: Path, world: World) -> None:
    """Rules about a tool that is listed only later are taken, and count."""
    async with Runtime.from_config(config) as rt:
        result = await rt.session("s", agent="clerk").run("Go")
        assert (result.output, world.tools()) == ("Done.", ["look"])
        denied, seen = await results(rt)
    assert seen == "seen x"
    assert "deny this call to s_charge" in denied


def test_the_tools_are_shown_as_the_server_lists_them(config: Path) -> None:
    shown = perdure(config, "agents", "list")
    assert shown.returncode == 0, shown.stderr
    assert "s_look  [idempotent]" in shown.stdout + shown.stderr
    assert "s_charge  [approval]" in shown.stdout + shown.stderr
    assert SECRET not in shown.stdout + shown.stderr


def test_a_server_that_is_down_is_one_line_where_the_tools_are_shown(config: Path) -> None:
    text = config.read_text().replace(json.dumps(PROGRAM), '["no-such-program"]')
    config.write_text(text)
    shown = perdure(config, "agents", "list", "--json")
    (agent,) = json.loads(shown.stdout)["agents"]
    assert agent["problem"]["code"] == "MCP_SERVER_DOWN"
    assert "there is no program 'no-such-program'" in agent["problem"]["error"]
    assert "Traceback" not in shown.stderr


def test_a_session_whose_server_is_down_says_what_to_put_right(config: Path) -> None:
    text = config.read_text().replace(json.dumps(PROGRAM), '["no-such-program"]')
    config.write_text(text)
    waits = perdure(config, "run", "clerk", "Go", "-s", "s")
    assert waits.returncode == 8
    for shown in (waits, perdure(config, "sessions", "show", "s")):
        told = (shown.stdout + shown.stderr).strip().splitlines()
        first, put_right, resume, *_ = told
        assert first.endswith("(MCP_SERVER_DOWN).")
        assert "start it or correct its entry" in put_right
        assert "perdure sessions resume s" in resume


def test_a_missing_library_is_one_line(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError) as told:
        Runtime.from_config(config)
    assert told.value.code == "EXTRA_MISSING"
    assert told.value.hint == "pip install 'perdure[mcp]'"


def test_a_choice_of_tools_says_only_what_it_knows() -> None:
    with pytest.raises(ConfigError, match="only must be a list"):
        MCPTools("shop", only="look")
