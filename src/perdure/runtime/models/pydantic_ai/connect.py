"""From the name of a provider and a model to an open connection. Loads pydantic-ai."""

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider as TheirProvider
from pydantic_ai.providers import infer_provider_class

from perdure.core.providers.catalog import Format, Provider
from perdure.errors import ConfigError
from perdure.runtime.models.pydantic_ai.request import PydanticAIRequest
from perdure.runtime.models.pydantic_ai.transport import RequestTemplates, listen_to, open_client

_OLLAMA: Final = ("OLLAMA_BASE_URL", "http://localhost:11434/v1")
_WORDS: Final = ("base_url", "api_base", "azure_endpoint")  # what a provider calls its address
_FORMATS: Final[Mapping[str, Format]] = {
    "AnthropicModel": "anthropic",
    "OpenAIChatModel": "openai-chat",
    "OpenAIResponsesModel": "openai-responses",
}
_OVER_HTTP: Final = ("AsyncAnthropic", "AsyncOpenAI", "AsyncAzureOpenAI")
_NO_KEY: Final = "none"  # to a server of one's own


@dataclass(frozen=True, slots=True)
class ProviderConnection:
    """A model that can be asked, in the event loop that asks it first."""

    asking: PydanticAIRequest
    client: httpx2.AsyncClient


def connect(
    provider: Provider, model: str, agent: str, *, api_key: str | None, base_url: str | None
) -> ProviderConnection:
    """Open a named model. ConfigError if the provider does not take what it was given."""
    client = open_client()

    def their_provider(_: str) -> TheirProvider[Any]:
        return _provider(provider, client, api_key, base_url)

    try:
        found = infer_model(f"{provider.inner}:{model}", their_provider)
    except Exception as error:  # whatever a provider's library finds missing
        text = " ".join(str(error).split())
        is_key = "Credentials" in type(error).__name__
        code = "MODEL_KEY_MISSING" if is_key else "MODEL_UNKNOWN"
        raise ConfigError(f"agent {agent!r}: {text}", code=code) from error
    sdk: Any = getattr(found, "client", None)
    if hasattr(sdk, "max_retries"):
        sdk.max_retries = 0  # repeated by the session, so that it is known and survives a crash
    is_plain = _is_plain(found)
    repeats = RequestTemplates(client) if is_plain else None
    asking = PydanticAIRequest(found, provider, model, provider.format, is_plain, repeats)
    return ProviderConnection(asking, client)


def wrap_model(model: Model[Any]) -> PydanticAIRequest:
    """A model object, at which one can listen if it speaks one of the three formats over HTTP."""
    sdk: Any = getattr(model, "client", None)
    http: Any = getattr(sdk, "_client", None)
    format_ = next((_FORMATS[kind.__name__] for kind in _kinds(model, sdk)), None)
    if not isinstance(http, httpx2.AsyncClient):
        format_ = None
    if format_ is not None:
        listen_to(http)
    provider = Provider(model.system, "", "", format=format_)
    return PydanticAIRequest(model, provider, model.model_name, format_, _is_plain(model))


def _is_plain(model: Model[Any]) -> bool:
    """Whether it is a class of pydantic-ai's own, which reads streams as the format says."""
    own_ids = model.profile.get("openai_responses_tool_call_ids_are_response_scoped")
    return type(model).__name__ in _FORMATS and not own_ids


def _kinds(model: Model[Any], sdk: Any) -> list[type]:
    """What it is, of what can be listened to; nothing where the provider's way is another."""
    if type(sdk).__name__ not in _OVER_HTTP:
        return []
    return [kind for kind in type(model).__mro__ if kind.__name__ in _FORMATS]


def _provider(
    provider: Provider, client: httpx2.AsyncClient, api_key: str | None, base_url: str | None
) -> TheirProvider[Any]:
    kind = infer_provider_class(provider.inner)
    taken = inspect.signature(kind.__init__).parameters
    wanted: dict[str, Any] = {"http_client": client}
    address = base_url or (os.environ.get(*_OLLAMA) if provider.name == "ollama" else None)
    word = next((one for one in _WORDS if one in taken), None)
    if address is not None and word is not None:
        wanted[word] = address
    if api_key is not None or base_url is not None:
        wanted["api_key"] = api_key or _key_of(provider) or _NO_KEY
    if base_url is not None and word is None:
        raise UserError(
            f"the provider {provider.name} takes no base_url: name openai, which speaks to any"
        )
    return kind(**{name: value for name, value in wanted.items() if name in taken})


def _key_of(provider: Provider) -> str | None:
    return next((os.environ[name] for name in provider.keys if os.environ.get(name)), None)
