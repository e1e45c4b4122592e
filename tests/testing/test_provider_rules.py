"""The rules of the providers: each is there, and each tells a good request from a bad one."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import perdure.testing.provider_rules as there
from perdure.testing.provider_rules import RULES, SAMPLES, check

# What the providers are known to refuse, by the ids under which it was collected.
KNOWN = list(
    re.findall(
        r"\S+",
        """
A00 A01 A02 A03 A04 A05 A06 A07 A08 A09 A10 A11 A12 A13 A13s A14 A14s A15 A16 A17 A18
A20 A21 A22 A23 A24 A25 A26 A27 A30 A31 A32 A34 A35 A40 A41 A42 A43 A44 A45 A46 A47 A48
A50 A51 A52 A54 A60 A61 A62
C01 C02 C03 C04 C05 C06 C07 C08 C09 C10 C11 C12 C13 C14 C15 C16 C17 C20 C21 C22 C23 C24 C25
R01 R02 R03 R04 R05 R06 R07 R08 R09 R10 R11 R12 R13 R14 R15 R20 R21 R24 R25 R26 R27 R28
""",
    )
)
STRICT = {"A07", "A12", "A13s", "A14s", "A17", "A18", "A60", "A61", "C16", "R14", "R21"}


def signed(block: Mapping[str, Any]) -> bool:
    return bool(block.get("signature") == f"signed:{block.get('thinking')}")


def test_no_rule_is_missing() -> None:
    """G6"""
    written = [rule.id for rules in RULES.values() for rule in rules]
    assert sorted(written) == sorted(KNOWN)
    assert sorted(SAMPLES) == sorted(KNOWN)
    assert {rule.id for rules in RULES.values() for rule in rules if rule.strict} == STRICT


@pytest.mark.parametrize("rule", KNOWN)
def test_a_rule_lets_the_good_request_pass_and_finds_the_bad_one(rule: str) -> None:
    """G6"""
    sample = SAMPLES[rule]
    passed = check(sample.passes, sample.format, signed=signed)
    assert rule not in {finding.rule for finding in passed}
    failed = [f for f in check(sample.fails, sample.format, signed=signed) if f.rule == rule]
    assert failed
    says = next(one.says for one in RULES[sample.format] if one.id == rule)
    assert str(failed[0]) == f"{rule} at {failed[0].where}: {says}"


@pytest.mark.parametrize("rule", KNOWN)
def test_a_request_that_passes_one_rule_passes_all(rule: str) -> None:
    sample = SAMPLES[rule]
    assert check(sample.passes, sample.format, signed=signed) == []


@pytest.mark.parametrize("rule", sorted(STRICT))
def test_what_only_some_models_refuse_is_found_only_when_strict(rule: str) -> None:
    sample = SAMPLES[rule]
    lenient = check(sample.fails, sample.format, strict=False, signed=signed)
    assert rule not in {finding.rule for finding in lenient}


def test_the_newest_models_take_a_system_message_with_settings_of_its_own() -> None:
    settings = {"output_config": {"effort": "medium"}}
    system = {"role": "system", "content": [{"type": "text", "text": "be kind"}], **settings}
    user = {"role": "user", "content": "hi"}

    def rules(*messages: dict[str, Any], strict: bool = False) -> list[str]:
        body = {"messages": list(messages), "max_tokens": 1}
        return [finding.rule for finding in check(body, "anthropic", strict=strict)]

    assert rules(user, system) == []
    assert rules(user, system, strict=True) == ["A06", "A07"]
    assert rules({**user, **settings}, system) == ["A06"]
    assert rules(user, {**system, "id": "m1"}) == ["A06"]
    image = {"type": "image", "source": {}}
    assert rules(user, {**system, "content": [image]}) == ["A15"]


@pytest.mark.parametrize("provider", RULES)
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None, "input": None},
        {"messages": [None, 3, [], {}], "input": [None, 3, [], {}]},
        {"messages": [{"role": [], "content": [None, {"type": []}]}], "input": [{"type": []}]},
        {"messages": [{"role": "assistant", "tool_calls": [None, {"function": 3}], "content": {}}]},
        {"messages": [], "system": 3, "tools": {}, "thinking": {"type": "enabled"}, "input": ""},
    ],
)
def test_a_request_that_makes_no_sense_is_found_wanting(
    body: dict[str, Any], provider: Any
) -> None:
    assert check(body, provider)


def test_a_format_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="unknown format 'gemini'"):
        check({}, "gemini")  # type: ignore[arg-type]


def test_the_rules_know_nothing_of_what_they_judge() -> None:
    """They import the standard library and themselves."""
    for path in Path(there.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            for module in named:
                ours = module.startswith("perdure")
                assert not ours or module.startswith("perdure.testing.provider_rules"), path
