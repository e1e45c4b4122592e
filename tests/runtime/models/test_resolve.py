"""How a model is named, and what is told at once if it could not answer."""

import gc
import subprocess
import sys
from datetime import date
from importlib import util
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from tests.support.models import KEY, NAMES, look

from perdure import Agent, Runtime
from perdure.core.providers.catalog import PROVIDERS
from perdure.errors import ConfigError
from perdure.runtime.models.resolve import named_model, resolve_model
from perdure.testing.endpoint import fake_endpoint

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
        for name in (*provider.keys, provider.address or "OLLAMA_BASE_URL"):
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
        "perdure.runtime.models.resolve.find_spec",
        lambda name: None if name == "anthropic" else here(name),
    )
    error = refusal("anthropic:claude-x")
    text = "the library for the provider anthropic is not installed"
    assert error.message == f"agent 'support': {text}"
    assert error.hint == "pip install 'perdure[anthropic]'"


@pytest.mark.parametrize("model", ["antropic:claude", "mistral-large", "openai:", 7])
def test_what_is_no_model_is_told_in_one_line(model: Any) -> None:
    error = refusal(model)
    assert error.code == "MODEL_UNKNOWN"
    assert "\n" not in error.message


@pytest.mark.parametrize(
    "bare, full",
    [
        ("gpt-4o", "openai:gpt-4o"),
        ("o3-mini", "openai:o3-mini"),
        ("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("gemini-2.5-pro", "google:gemini-2.5-pro"),
    ],
)
def test_a_bare_name_of_a_well_known_model_has_its_provider(
    bare: str, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(variable, KEY)
    assert resolve_model(bare, "support").name == full


@pytest.mark.parametrize(
    "name, message",
    [
        ("antropic:claude", "there is no provider 'antropic'; did you mean 'anthropic'?"),
        ("gtp-4o", "'gtp-4o' does not name a provider and a model; did you mean 'gpt-4o'?"),
        ("openai:", "the model of the provider openai is missing"),
        ("openai", "the model of the provider openai is missing"),
        ("llama", "'llama' does not name a provider and a model"),
    ],
)
def test_a_mistyped_name_is_repeated_as_written_with_a_suggestion(name: str, message: str) -> None:
    error = refusal(name)
    assert error.message == f"agent 'support': {message}"
    assert "provider:model" in (error.hint or "")


def test_naming_a_model_imports_no_library(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from perdure import Agent, Runtime\n"
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
            infer_provider_class(provider.pydantic_ai_name)
        except ImportError:  # of a library that is not here
            assert util.find_spec(provider.library.partition(".")[0]) is None


IS_HERE = [one.name for one in PROVIDERS.values() if util.find_spec(one.library.partition(".")[0])]
LIKE_OPENAI = [
    name for name in IS_HERE if PROVIDERS[name].format in ("openai-chat", "openai-responses")
]


def first_refusal(name: str) -> ConfigError | None:
    """What is said when the agent is made, or else when its model is first asked."""
    try:
        named_model(name, "m", "a")._open("a")
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize("name", IS_HERE)
def test_what_a_provider_needs_is_told_when_the_agent_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the library would say at the first request, we say before it is asked."""
    for other in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(other, raising=False)
    error = first_refusal(name)
    needs = PROVIDERS[name].keys or PROVIDERS[name].address is not None
    if needs:
        assert error is not None
        assert error.code in ("MODEL_KEY_MISSING", "MODEL_ADDRESS_MISSING")
        assert (error.__cause__, "\n" in error.message) == (None, False)
    elif name != "google-cloud":  # whose credentials may be anywhere
        assert error is None
    del error
    gc.collect()  # here, because an incomplete Google client raises if an event loop runs


@pytest.mark.parametrize("name", IS_HERE)
def test_which_providers_stay_where_they_are_is_known(name: str) -> None:
    from pydantic_ai.providers import infer_provider_class

    taken = signature(infer_provider_class(PROVIDERS[name].pydantic_ai_name).__init__).parameters
    moves = {"base_url", "api_base", "azure_endpoint"} & set(taken)
    assert PROVIDERS[name].has_fixed_url == (not moves)
    if not moves:
        with pytest.raises(ConfigError, match="does not accept a base_url"):
            named_model(name, "m", "a", api_key=KEY, base_url="http://127.0.0.1:1/v1")


@pytest.mark.parametrize("name", LIKE_OPENAI)
async def test_who_speaks_as_openai_does_is_spoken_to_by_its_own_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pydantic_ai.providers import infer_provider_class

    call: dict[str, Any] = {"tool": "look", "args": {"name": "x"}}
    turns: list[dict[str, Any]] = [{"calls": [call]}, {"text": "Hello."}]
    with fake_endpoint(turns) as endpoint:
        url = f"{endpoint.url}/v1"
        stays = PROVIDERS[name].has_fixed_url
        if stays:
            kind = infer_provider_class(PROVIDERS[name].pydantic_ai_name)
            monkeypatch.setattr(kind, "base_url", property(lambda _: url))
        address = None if stays else url
        model = named_model(name, "vendor/m", "a", api_key=KEY, base_url=address)
        one = Agent("a", model=model, tools=[look])
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("hi")
        assert endpoint.refused == []
    assert (result.output, len(endpoint.requests)) == ("Hello.", 2)


def test_a_provider_that_is_gone_is_told_so() -> None:
    error = refusal("github:gpt-4.1")
    assert "the provider github no longer exists: GitHub Models was switched off" in error.message


@pytest.mark.parametrize(
    "settings, wrong",
    [
        ({"stop": ["a", date(2026, 1, 1)]}, "stop[1] has the type date, which is not JSON"),
        (
            {"extra_body": {"a": {"b": {1, 2}}}},
            "extra_body.a.b has the type set, which is not JSON",
        ),
        ({"extra_body": {"a": {1: 2}}}, "extra_body.a has the key 1, which is not text"),
        ({"temperature": float("nan")}, "temperature is nan, which is not JSON"),
    ],
)
def test_settings_that_no_request_could_carry_are_told_with_their_place(
    settings: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Agent("a", model="scripted:x", model_settings=settings)
    assert caught.value.message == f"agent 'a': model_settings: {wrong}"


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
        (tmp_path / "perdure.yaml").write_text(text, "utf-8")
        async with Runtime.from_config(tmp_path / "perdure.yaml", store="memory:") as rt:
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
    (tmp_path / "perdure.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        Runtime.from_config(tmp_path / "perdure.yaml", store="memory:")
    where = "2: llms.main.model" if llm == "main" else "5: agents.a.llm"
    assert f"perdure.yaml:{where}: agent 'a': the provider anthropic needs a key" in str(
        caught.value
    )
    assert caught.value.hint == hint
