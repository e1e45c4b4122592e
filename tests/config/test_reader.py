"""`${VAR}` in values: filled in, never shown."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.config import load
from perdure.config.loader import parse
from perdure.config.reader import expand
from perdure.errors import ConfigError

Refusal = Callable[[str], ConfigError]
Write = Callable[[str], str]


@pytest.mark.parametrize(
    "text, filled",
    [
        ("${TEST_A}", "one"),
        ("x${TEST_A}y${TEST_A}", "xoneyone"),
        ("${TEST_NONE:-two}", "two"),
        ("${TEST_EMPTY:-two}", "two"),
        ("${TEST_EMPTY}", ""),
        ("${TEST_NONE:-}", ""),
        ("${TEST_A:-two}", "one"),
        ("${TEST_NONE:-a:-b c}", "a:-b c"),
        ("$${TEST_A}", "${TEST_A}"),
        ("$TEST_A costs 5$", "$TEST_A costs 5$"),
        ("${TEST_NEST}", "${TEST_A}"),  # a value is not looked into again
    ],
)
def test_variables_are_filled_in(text: str, filled: str) -> None:
    environ = {"TEST_A": "one", "TEST_EMPTY": "", "TEST_NEST": "${TEST_A}"}
    assert expand(text, environ) == filled


def test_an_unset_variable_is_named_with_its_line(refusal: Refusal) -> None:
    error = refusal("server:\n  public_url: ${TEST_NONE}")
    assert error.message == (
        "perdure.yaml:2: server.public_url: the environment variable TEST_NONE is not set"
    )
    assert error.hint == "set it, or write ${TEST_NONE:-default}"


@pytest.mark.parametrize("text", ["${TEST", "${}", "${1}", "${TEST-x}"])
def test_a_broken_variable_is_told(text: str, refusal: Refusal) -> None:
    error = refusal(f'server:\n  webhook_secret: "{text}"')
    assert error.message.startswith("perdure.yaml:2: server.webhook_secret: has a ${ that is not")


def test_a_variable_can_be_a_number_or_text(write: Write) -> None:
    """A token of digits is text, a port is a number; quotes make no difference."""
    file = write("""
        server:
          port: "${TEST_PORT}"
          webhook_secret: ${TEST_DIGITS}
          tokens: [{name: a, token: "${TEST_DIGITS}", on_behalf: "${TEST_FLAG}"}]
    """)
    environ = {"TEST_PORT": "8080", "TEST_DIGITS": "0451", "TEST_FLAG": "true"}
    server = parse(Path(file), environ).server
    assert (server.port, server.webhook_secret) == (8080, "0451")
    assert (server.tokens[0].token, server.tokens[0].on_behalf) == ("0451", True)


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "y", "12:30", "2024-01-01", "1_000"])
def test_text_that_old_yaml_takes_for_something_else_is_text(word: str, write: Write) -> None:
    config = load(write(f"server: {{webhook_secret: {word}}}"))
    assert config.webhook_secret == word


@pytest.mark.parametrize(
    "text",
    [
        "server: {port: '${TEST_S}'}",
        "server: {public_url: '${TEST_S}'}",
        "server: {max_body: '${TEST_S}'}",
        "server: {trusted_proxies: ['${TEST_S}']}",
        "server: {tokens: [{name: a, token: b, role: '${TEST_S}'}]}",
        "server: {tokens: {token: '${TEST_S}'}}",
        "server: {tokens: [{nme: a, token: '${TEST_S}'}]}",
        "server: {tokens: [{name: a, token: '${TEST_S}'}, {name: b, token: '${TEST_S}'}]}",
        "llms: {m: {provider: '${TEST_S}'}}",
        "llms: {m: {provider: scripted, api_key: '${TEST_S}'}}",
        "session_stores: {m: {backend: sql, sql: {driver: postgres, database: '${TEST_S}'}}}",
        "agents: {a: {llm: x, task: {input_timeout: '${TEST_S}'}}}",
        "agents: {a: {llm: x, max_turns: '${TEST_S}'}}",
    ],
)
def test_what_came_from_the_environment_is_not_in_the_error(
    text: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_S", "hunter2")
    error = refusal(text)
    assert "hunter2" not in f"{error.to_json()} {error!r}"


def test_a_password_is_in_no_url_that_is_shown(refusal: Refusal) -> None:
    error = refusal("server: {public_url: 'https://u:hunter2@agents.example'}")
    assert error.message.endswith("must be a URL without user and password: it is shown to users")
