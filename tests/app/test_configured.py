"""A runtime made from YAML: the agents that the file describes, or one line that says why not."""

import json
from pathlib import Path

import pytest

from perdure import Principal, Runtime
from perdure.errors import ConfigError, NotAllowed

SHOP = '''
from perdure import tool

@tool
def lookup(order: int) -> dict:
    """Look an order up."""
    return {"order": order}

@tool
def refund(order: int, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents}"

nameless = lambda order: order
deps = {"shop": "ours"}
'''
TURNS = [
    {"calls": [{"tool": "lookup", "args": {"order": 1}}]},
    {"calls": [{"tool": "pay_back", "args": {"order": 1, "cents": 5}}]},
    {"output": {"cents": 5}},
]
YAML = """
session_stores:
  main: {backend: sql, sql: {driver: sqlite, database: ./shop.db}}
llms:
  main: {provider: scripted, script: turns.json}
deps: shop:deps
agents:
  assistant:
    llm: main
    instructions_file: prompt.md
    session_store: main
    task: {hitl: {mode: async}}
    tools:
      - shop:lookup
      - {use: shop:refund, name: pay_back, requires_approval: true, approval_prompt: "Run {tool}?"}
      - ask_user
    output_type: amount.json
server: {public_url: https://agents.example, webhook_secret: "${SHOP_SECRET:-s3cret}"}
"""


def project(folder: Path, yaml: str = YAML) -> Path:
    files = {
        "perdure.yaml": yaml,
        "shop.py": SHOP,
        "turns.json": json.dumps(TURNS),
        "prompt.md": "You help.",
        "amount.json": json.dumps(
            {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
        ),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / "perdure.yaml"


async def test_a_session_of_a_configured_agent_waits_for_approval_and_goes_on(
    tmp_path: Path,
) -> None:
    """S4.45"""
    async with Runtime.from_config(project(tmp_path)) as rt:
        result = await rt.session("s", agent="assistant").run("Refund")
        assert [call.prompt for call in result.pending] == ["Run pay_back?"]
        await rt.approve(result.pending[0].id, by="ana")
        result = await rt.session("s").run()
    assert (result.state, result.output) == ("completed", {"cents": 5})
    assert (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    "said, instead, line, why",
    [
        ("shop:lookup", "shop:nameless", 14, "lambda"),
        ("shop:lookup", "shop:nothing", 14, "nothing"),
        ("shop:lookup", "nowhere:lookup", 14, "nowhere"),
        ("turns.json", "prompt.md", 5, "not JSON"),
        ("amount.json", "shop:Nothing", 17, "Nothing"),
        ("shop:lookup", "{use: shop:lookup, name: pay_back}", 15, "has two tools named 'pay_back'"),
    ],
)
def test_code_that_a_configuration_names_and_that_cannot_be_used_is_one_line(
    tmp_path: Path, said: str, instead: str, line: int, why: str
) -> None:
    """S4.41"""
    with pytest.raises(ConfigError, match=why) as error:
        Runtime.from_config(project(tmp_path, YAML.replace(said, instead, 1)))
    assert f"perdure.yaml:{line}: " in error.value.message
    assert "\n" not in error.value.message


POLICY = "approvers: [ben, admin], min_approvals: 2, not_by_starter: true"


async def test_who_may_decide_is_configured_with_the_tool(tmp_path: Path) -> None:
    allowed = "allowed_decisions: [approve, deny]"
    yaml = YAML.replace(
        "requires_approval: true,", f"requires_approval: true, {allowed}, {POLICY},"
    )
    async with Runtime.from_config(project(tmp_path, yaml)) as rt:
        (call,) = (await rt.session("s", agent="assistant").run("Go", by="ana")).pending
        assert call.allowed_decisions == ("approve", "deny")
        assert (call.approvers, call.missing_approvals) == (("ben", "admin"), 2)
        assert call.started_by == ("ana",)
        with pytest.raises(NotAllowed):
            await rt.acting_as(Principal("ana", "admin")).approve(call)
        await rt.approve(call.id, by="ben")
        assert (await rt.acting_as(Principal("cleo", "admin")).approve(call)).status == "completed"


def test_an_unknown_decision_is_refused_with_its_line(tmp_path: Path) -> None:
    yaml = YAML.replace("requires_approval: true,", "allowed_decisions: [maybe],")
    with pytest.raises(ConfigError, match="maybe"):
        Runtime.from_config(project(tmp_path, yaml))


RULES = """
agents:
  shop:
    llm: scripted:turns.json
    tools: [wait]
    permissions:
      allow:
        - wait
        - RULE
"""


@pytest.mark.parametrize(
    "rule, told",
    [
        ("refund", "'refund' is about a tool that the agent does not have"),
        ("'wait:cents=1'", "'wait:cents=1': wait has no 'cents'"),
    ],
)
def test_a_rule_that_can_never_match_is_told_with_its_line(
    tmp_path: Path, rule: str, told: str
) -> None:
    (tmp_path / "turns.json").write_text("[]")
    file = tmp_path / "perdure.yaml"
    file.write_text(RULES.replace("RULE", rule))
    with pytest.raises(ConfigError) as caught:
        Runtime.from_config(file, store="memory:")
    assert caught.value.message.startswith(f"{file}:9: agents.shop.permissions.allow[1]: ")
    assert told in caught.value.message
    assert caught.value.code == "PERMISSION_INVALID"
