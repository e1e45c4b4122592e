"""How a model is named, and what is told at once if it could not answer."""

import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from tests.models.conftest import KEY, NAMES

from holdfast import Agent, Runtime
from holdfast.core.providers import PROVIDERS
from holdfast.errors import ConfigError
from holdfast.runtime.models.resolve import named_model
from holdfast.testing.endpoint import fake_endpoint

YAML = """\
llms:
  main: {{provider: {provider}, model: {model}, base_url: {url}, api_key: "${{TEST_KEY}}",
         settings: {{max_tokens: 77}}}}
agents:
  a: {{llm: main, instructions: Be brief.}}
"""


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in PROVIDERS.values():
        for name in provider.keys:
            monkeypatch.delenv(name, raising=False)


def refusal(model: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        Runtime("memory:", agents=[Agent("support", model=model)])
    return caught.value


@pytest.mark.parametrize(
    "model, key", [("anthropic:claude-x", "ANTHROPIC_API_KEY"), ("openai:gpt-x", "OPENAI_API_KEY")]
)
def test_a_missing_key_is_told_when_the_agent_is_made(
    model: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal(model)
    assert error.message == f"agent 'support': the provider {model.partition(':')[0]} needs a key"
    assert error.hint == f"set {key}"
    monkeypatch.setenv(key, KEY)
    Runtime("memory:", agents=[Agent("support", model=model)])


@pytest.mark.parametrize("key", [f"{KEY}\n", f" {KEY}", f"{KEY}\u2026"])
def test_a_key_that_no_request_could_carry_is_told_and_not_shown(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    error = refusal("openai:gpt-x")
    assert error.code == "MODEL_KEY_INVALID"
    assert KEY not in f"{error} {error.hint} {error.details}"


def test_a_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    here = util.find_spec
    monkeypatch.setattr(
        "holdfast.runtime.models.providers.find_spec",
        lambda name: None if name == "anthropic" else here(name),
    )
    error = refusal("anthropic:claude-x")
    assert error.message == "agent 'support': the provider anthropic needs its library"
    assert error.hint == "pip install 'holdfast[anthropic]'"


@pytest.mark.parametrize("model", ["antropic:claude", "claude-x", "openai:", 7])
def test_what_is_no_model_is_told_in_one_line(model: Any) -> None:
    error = refusal(model)
    assert error.code == "MODEL_UNKNOWN"
    assert "\n" not in error.message


def test_naming_a_model_imports_no_library(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from holdfast import Agent, Runtime\n"
        "Runtime('memory:', agents=[Agent('a', model='anthropic:claude-x')])\n"
        "print([n for n in ('pydantic_ai', 'anthropic', 'openai', 'httpx2') if n in sys.modules])"
    )
    env = {"ANTHROPIC_API_KEY": "x", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_provider_is_known_to_the_library() -> None:
    from pydantic_ai.providers import infer_provider_class

    for provider in PROVIDERS.values():
        try:
            infer_provider_class(provider.inner)
        except ImportError:  # of a library that is not here
            assert util.find_spec(provider.library.partition(".")[0]) is None


def test_a_model_never_shows_its_key() -> None:
    model = named_model("anthropic", "claude-x", "a", api_key=KEY)
    assert KEY not in f"{model!r} {model.name}"


@pytest.mark.parametrize("name", NAMES.values())
async def test_a_configuration_names_address_key_and_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4.39"""
    provider, _, model = name.partition(":")
    monkeypatch.setenv("TEST_KEY", KEY)
    with fake_endpoint([{"text": "Hello."}], key=KEY) as endpoint:
        url = endpoint.url if provider == "anthropic" else f"{endpoint.url}/v1"
        text = YAML.format(provider=provider, model=model, url=url)
        (tmp_path / "holdfast.yaml").write_text(text, "utf-8")
        async with Runtime.from_config(tmp_path / "holdfast.yaml", store="memory:") as rt:
            result = await rt.session("s", agent="a").run("hi")
        assert result.output == "Hello."
        assert endpoint.requests[0].model == model
        assert 77 in endpoint.requests[0].body.values()


@pytest.mark.parametrize(
    "llm, hint",
    [
        ("main", "set ANTHROPIC_API_KEY, or api_key in llms.main"),
        ("anthropic:claude-x", "set ANTHROPIC_API_KEY"),
    ],
)
def test_a_configuration_without_a_key_is_told_where_it_belongs(
    llm: str, hint: str, tmp_path: Path
) -> None:
    text = f"llms:\n  main: {{provider: anthropic, model: m}}\nagents:\n  a:\n    llm: {llm}\n"
    (tmp_path / "holdfast.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        Runtime.from_config(tmp_path / "holdfast.yaml", store="memory:")
    where = "2: llms.main.model" if llm == "main" else "5: agents.a.llm"
    assert f"holdfast.yaml:{where}: agent 'a': the provider anthropic needs a key" in str(
        caught.value
    )
    assert caught.value.hint == hint
