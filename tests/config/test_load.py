"""The whole configuration, with every part that there is or will be."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from perdure.config import McpTools, ToolRef, describe
from perdure.config.loader import parse
from perdure.config.settings import Config
from perdure.errors import ConfigError

Refusal = Callable[[str], ConfigError]
Write = Callable[[str], str]

WHOLE = Path(__file__).with_name("whole.yaml").read_text("utf-8")
SECRETS = {f"TEST_{letter}": f"secret-{letter}-0451" for letter in "ABCDEFGH"}


@pytest.fixture
def whole(folder: Path, write: Write) -> Config:
    (folder / "prompts").mkdir()
    (folder / "prompts" / "research.md").write_text("Look it up.", "utf-8")
    return parse(Path(write(WHOLE)), SECRETS)


def test_every_key_is_understood(whole: Config, folder: Path) -> None:
    """S4.39"""
    assert whole.store_url == f"sqlite:///{folder}/perdure.db"
    assert whole.deps == "shop:deps"
    assert (whole.public_url, whole.webhook_secret) == ("https://agents.example", "secret-D-0451")
    assert whole.llms["main"].api_key == "secret-A-0451"
    assert whole.llms["main"].settings == {"max_tokens": 8000}
    assert whole.mcp_servers["github"].env == {"TOKEN": "secret-B-0451"}
    assert whole.mcp_servers["crm"].headers == {"Authorization": "Bearer secret-C-0451"}
    assert whole.retention.settled_calls == timedelta(days=7)
    assert whole.agents["researcher"].instructions_file == "Look it up."


def test_an_agent_is_understood(whole: Config) -> None:
    """S4.39"""
    agent = whole.agents["assistant"]
    assert agent.models[0] is whole.llms["main"]
    assert agent.instructions == "You help with orders."
    assert agent.task.input_timeout == timedelta(minutes=10)
    assert agent.task.timeout == timedelta(hours=1)
    assert (agent.task.backend, agent.task.hitl.mode) == ("memory", "auto")
    assert agent.sub_agents == ("researcher",)
    assert agent.background.present() == {"queue_message": True}
    lookup, refund, github, ask = agent.tools
    assert isinstance(lookup, ToolRef)
    assert lookup.target == "shop:lookup_order"
    assert isinstance(refund, ToolRef)
    assert refund.options["requires_approval"] is True
    assert isinstance(github, McpTools)
    assert github.options == {
        "only": ("search_issues", "create_issue"),
        "requires_approval": ("create_issue",),
        "prefix": "gh_",
    }
    assert isinstance(ask, ToolRef)
    assert ask.is_built_in


def test_the_server_is_understood(whole: Config) -> None:
    """`on` is a key, not the boolean that YAML 1.1 makes of it."""
    server = whole.server
    assert (server.host, server.port, server.max_body) == ("127.0.0.1", 4747, 10 * 1024 * 1024)
    assert server.rate_limit.present() == {"per_source": 100, "per_id": 20}
    assert [token.role for token in server.tokens] == ["admin", "submitter", "approver"]
    assert (server.tokens[2].on_behalf, server.tokens[2].tenant) == (True, "acme")
    assert server.webhooks[0].on == ("pending", "expiring", "decided", "completed", "failed")


def test_no_secret_is_ever_shown(whole: Config) -> None:
    shown = repr(whole) + str(whole) + "".join(describe(whole))
    assert "0451" not in shown


def test_a_value_of_the_wrong_kind_is_reported(refusal: Refusal) -> None:
    error = refusal("server: {port: eighty}")
    assert error.code == "CONFIG_INVALID"
    assert error.message == ("perdure.yaml:1: server.port: must be a whole number, from 0 to 65535")
