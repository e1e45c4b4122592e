"""Every mistake is told with file, line and key."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.config import load
from perdure.errors import ConfigError

Refusal = Callable[[str], ConfigError]
Write = Callable[[str], str]

A = "agents:\n  a:\n    llm: scripted:turns.json\n"  # three lines that are right
TOOLS = f"{A}    tools:\n      - wait\n"


@pytest.mark.parametrize(
    "text, told",
    [
        (f"{A}agent: {{}}", "4: agent: is not a known key; did you mean 'agents'?"),
        (
            f"{A}    instruction: x",
            "4: agents.a.instruction: is not a known key; did you mean 'instructions'?",
        ),
        (f"{A}    llm: x", "4: agents.a.llm: is defined twice, first on line 3"),
        (f"{A}  a: {{}}", "4: agents.a: is defined twice, first on line 2"),
        ("agents:\n  a:\n    tools: []", "3: agents.a.llm: is missing"),
        ("agents:\n  a:", "2: agents.a.llm: is missing"),
        ("agents: [a]", "1: agents: must be a block of keys, not a list"),
        ("agents:\n  a b: {llm: x}", "2: agents.a b: is not a name"),
        (
            f"{A}prices: {{large: {{input: 1, output: 1}}}}",
            "4: prices.large: is not a name",
        ),
        (f"{A}prices: {{'a:b': {{input: 1}}}}", "4: prices.a:b.output: is missing"),
        (
            f"{A}prices: {{'a:b': {{input: -1, output: 1}}}}",
            "4: prices.a:b.input: must be a number, 0 or more",
        ),
        (f"{A}    compaction: sometimes", "4: agents.a.compaction: must be true or false"),
        (
            f"{A}    compaction: {{keep: 0}}",
            "4: agents.a.compaction.keep: must be a whole number, 1 or more",
        ),
        (
            f"{A}    compaction: {{until: 1}}",
            "4: agents.a.compaction.until: is not a known key",
        ),
        ("agents:\n  ? [a]\n  : {llm: x}", "2: agents: has a key that is not text"),
        ("- agents", "1: must be a block of keys, not a list"),
        (f"{A}    max_turns: 0", "4: agents.a.max_turns: must be a whole number, 1 or more"),
        (f"{A}    max_turns: true", "4: agents.a.max_turns: must be a whole number, 1 or more"),
        (f"{A}    tools: wait", "4: agents.a.tools: must be a list, not a single value"),
        (f"{A}    description: 12", "4: agents.a.description: must be text"),
        (f"{A}    description:", "4: agents.a.description: is empty"),
        (f"{A}    description: [x]", "4: agents.a.description: must be a single value, not a list"),
        (f"{A}    task: {{timeout: 1 y}}", "4: agents.a.task.timeout: must be a duration"),
        (
            f"{A}    task: {{on_expire: keeep}}",
            ("4: agents.a.task.on_expire: invalid on_expire: keeep "
            "(must be 'fail', 'cancel', or 'keep')"),
        ),
        (
            f"{A}    instructions: x\n    instructions_file: y",
            "3: agents.a: has both 'instructions' and 'instructions_file'; only one is allowed",
        ),
        (
            f"{TOOLS}      - ask_usr",
            ("6: agents.a.tools[1]: must be module:name or a built-in tool; "
            "did you mean 'ask_user'?"),
        ),
        (f"{TOOLS}      - {{use: shop}}", "6: agents.a.tools[1].use: must be module:name"),
        (
            f"{TOOLS}      - use: shop:refund\n        timeuot: 3",
            "7: agents.a.tools[1].timeuot: is not a known key; did you mean 'timeout'?",
        ),
        (
            f"{TOOLS}      - {{name: x}}",
            "6: agents.a.tools[1]: needs one of the keys 'use' or 'mcp'",
        ),
        (
            f"{TOOLS}      - {{use: 'shop:refund', requires_approval: yes}}",
            "6: agents.a.tools[1].requires_approval: must be true or false",
        ),
        (
            f"{TOOLS}      - {{mcp: gh}}\nmcp_servers: {{git: {{command: [x]}}}}",
            "6: agents.a.tools[1].mcp: there is no MCP server 'gh'",
        ),
        (f"{A}    sub_agents: [b]", "4: agents.a.sub_agents[0]: there is no agent 'b'"),
        (f"{A}    output_type: Answer", "4: agents.a.output_type: must be module:Class, or the"),
        (f"{A}    output_type: x.json", "4: agents.a.output_type: "),
        (f"{A}    instructions_file: x.md", "4: agents.a.instructions_file: "),
        ("deps: shop", "1: deps: must be module:name"),
        ("deps: !!python/name:os.system x", "1: deps: has a YAML tag, which is not supported"),
        ("server: &s\n  tokens: [*s]", "1: server.tokens[0]: contains itself"),
        ("llms:\n  m: &m\n    provider: ollama\n    model: x\n    settings: {a: &b [*b]}",
         "5: llms.m.settings.a[0]: contains itself"),
        ("x: &x {}\nllms:\n  <<: *x", "1: x: is not a known key"),
        ("server:\n  public_url: agents.example", "2: server.public_url: must be a URL"),
        ("server:\n  public_url: http://[x", "2: server.public_url: must be a URL"),
        ("server:\n  trusted_proxies: [10.0.0.0/9x]", "2: server.trusted_proxies[0]: must be an"),
        ("server:\n  max_body: 10 apples", "2: server.max_body: must be a size"),
        ("server:\n  rate_limit:\n    per_id: 5", "3: server.rate_limit.per_id: must be a rate"),
        ("server:\n  webhooks:\n    - on: [failed]", "3: server.webhooks[0].url: is missing"),
        ("server:\n  tokens:\n    - {name: a, token: x}\n    - {name: a, token: y}",
         "1: server: two tokens have the same name"),
        ("mcp_servers:\n  m: {}", "2: mcp_servers.m: needs command: [PROGRAM, …] or url: URL"),
        ("mcp_servers:\n  m: {url: 'http://h', env: {A: b}}",
         "2: mcp_servers.m: a server with 'url' does not take 'env'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_where_it_is(text: str, told: str, refusal: Refusal) -> None:
    """S4.41"""
    error = refusal(text)
    assert error.message.splitlines()[0].startswith(f"perdure.yaml:{told}")
    assert error.code == "CONFIG_INVALID"
    assert error.details["file"] == "perdure.yaml"
    assert str(error.details["line"]) == told.split(":", maxsplit=1)[0]


@pytest.mark.parametrize(
    "text, told",
    [
        ("a:\n\tb: 1", "2: a tab cannot indent YAML; use spaces"),
        ("a: [1,\nb: 2", "2: "),
        ("a: 'x\n\n", "3: found unexpected end of stream"),
        ("a: *b", "1: found undefined alias 'b'"),
        ("a: 1\n---\nb: 2", "2: but found another document"),
        ("a: 1\nb: \x07", "2: has a character that YAML does not allow"),
        ("", "1: the file is empty"),
        ("# nothing", "1: the file is empty"),
        ("[" * 2000, "1: is nested too deeply"),
    ],
)
def test_broken_yaml_is_one_line(text: str, told: str, refusal: Refusal) -> None:
    """S4.41"""
    error = refusal(text)
    assert error.message.startswith(f"perdure.yaml:{told}")
    assert "\n" not in error.message
    assert error.code == "CONFIG_SYNTAX"


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(refusal: Refusal) -> None:
    error = refusal(f"{A}    max_turns: x\nretention: {{setled_calls: 7d}}\nserver: 5")
    assert [problem["key"] for problem in error.details["problems"]] == [
        "agents.a.max_turns",
        "retention.setled_calls",
        "server",
    ]
    assert len(error.message.splitlines()) == 3


def test_mistakes_of_all_kinds_are_told_together(refusal: Refusal) -> None:
    """Wrong values, unknown and missing keys, and names of what does not exist."""
    error = refusal(
        "llms:\n  m: {provider: openai}\n  n: {provider: scripted, script: turns.json}\n"
        "agents:\n  a: {llm: n, sub_agents: [x], session_store: y, max_turns: 5}\n"
        "  b: {llm: z, extra: 1}\n  c: {llm: m, sub_agents: [b]}\n"
        "server: {port: x, tokens: [{token: t}]}\n"
    )
    assert [problem["key"] for problem in error.details["problems"]] == [
        "llms.m",
        "agents.a.sub_agents[0]",
        "agents.a.session_store",
        "agents.b.extra",
        "server.port",
        "server.tokens[0].name",
    ]


def test_a_missing_file_is_told_by_its_name(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^nowhere.yaml: there is no such file") as caught:
        load("nowhere.yaml")
    assert caught.value.code == "CONFIG_NOT_FOUND"
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(folder)


def test_a_file_that_is_not_text_is_told_by_its_line(folder: Path) -> None:
    (folder / "perdure.yaml").write_bytes(b"# ok\nagents: \xff")
    with pytest.raises(ConfigError, match=r"^perdure.yaml:2: is not UTF-8"):
        load("perdure.yaml")


def test_a_byte_order_mark_is_no_mistake(folder: Path) -> None:
    (folder / "perdure.yaml").write_bytes("\ufeffserver: {port: 0}\n".encode())
    assert load("perdure.yaml").server.port == 0


def test_empty_blocks_and_lists_are_empty(write: Write) -> None:
    config = load(write(f"{A}    tools:\n    task:\nllms:\nsession_stores: ~"))
    assert config.agents["a"].tools == ()
    assert config.agents["a"].task.hitl.mode == "auto"
