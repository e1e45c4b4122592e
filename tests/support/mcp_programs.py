"""MCP clients that people use, as programs in their own processes with a scripted model."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = (
    "@anthropic-ai/claude-code@2.1.327",
    "opencode-ai@1.18.33",
    "@openai/codex@0.169.0",
)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class McpProgram:
    """A client: its program, the settings of its model, and how its model calls our tools."""

    name: str
    command: Sequence[str]  # the prompt follows
    configure: Callable[[Path, str], Mapping[str, str]]
    turn: Callable[[str, Json], Json]
    results: Callable[[Json], list[str]]
    uses_newest_models: bool = False  # it sends what older models of its provider refuse
    polls: int = 1  # after a restart of the server; some need time until they connect again

    def environment(self, home: Path, model_url: str) -> dict[str, str]:
        """Return the environment of a new user whose model is at this URL; write its settings."""
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
        return {**env, **self.configure(home, model_url)}


# --- Claude Code ----------------------------------------------------------------------------------


def _configure_claude(_home: Path, url: str) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "any",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _claude_turn(tool: str, arguments: Json) -> Json:
    return {"calls": [{"tool": f"mcp__perdure__{tool}", "args": arguments}]}


def _claude_results(body: Json) -> list[str]:
    blocks = [
        block
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    return [_text(block["content"]) for block in blocks if block["type"] == "tool_result"]


# --- opencode -------------------------------------------------------------------------------------


def _configure_opencode(home: Path, url: str) -> Mapping[str, str]:
    settings = {
        "model": "fake/scripted",
        "small_model": "fake/scripted",
        "autoupdate": False,
        "provider": {
            "fake": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{url}/v1", "apiKey": "any"},
                "models": {"scripted": {"name": "scripted", "tool_call": True}},
            }
        },
    }
    file = home / ".config" / "opencode" / "opencode.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(settings, indent=2))
    return {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}


def _opencode_turn(tool: str, arguments: Json) -> Json:
    """Return a call whose arguments are spelled as opencode sends them back."""
    text = json.dumps(arguments, separators=(",", ":"))
    function = {"name": f"perdure_{tool}", "arguments": text}
    call = {"id": f"call_{tool}", "type": "function", "function": function}
    return {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}


def _opencode_results(body: Json) -> list[str]:
    return [_text(item["content"]) for item in body["messages"] if item["role"] == "tool"]


# --- Codex ----------------------------------------------------------------------------------------

_CODEX: Final = """
model = "scripted"
model_provider = "fake"

[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
"""
# `codex exec` has nobody to ask, and refuses our destructive tools unless they are approved.
_APPROVED: Final = 'mcp_servers.perdure.default_tools_approval_mode="approve"'


def _configure_codex(home: Path, url: str) -> Mapping[str, str]:
    file = home / ".codex" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(_CODEX.format(url=url))
    return {}


def _codex_turn(tool: str, arguments: Json) -> Json:
    """Return a call in the namespace in which Codex offers the tools of a server."""
    item = {
        "id": f"fc_{tool}",
        "type": "function_call",
        "status": "completed",
        "namespace": "mcp__perdure",
        "name": tool,
        "arguments": json.dumps(arguments),
        "call_id": f"call_{tool}",
    }
    return {"output": [item]}


def _codex_results(body: Json) -> list[str]:
    return [
        _text(item["output"])
        for item in body["input"]
        if item.get("type") == "function_call_output"
    ]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


CLAUDE: Final = McpProgram(
    "claude",
    ("claude", "--allowedTools", "mcp__perdure", "-p"),
    _configure_claude,
    _claude_turn,
    _claude_results,
    uses_newest_models=True,
    polls=5,
)
OPENCODE: Final = McpProgram(
    "opencode", ("opencode", "run"), _configure_opencode, _opencode_turn, _opencode_results
)
CODEX: Final = McpProgram(
    "codex",
    ("codex", "exec", "--skip-git-repo-check", "-c", _APPROVED),
    _configure_codex,
    _codex_turn,
    _codex_results,
)
PROGRAMS: Final = (CLAUDE, OPENCODE, CODEX)
