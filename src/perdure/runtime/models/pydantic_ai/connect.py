"""Connections to named models, and wrapped model objects. Loads pydantic-ai."""

import inspect
import os
from collections.abc import Collection, Mapping
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
from perdure.runtime.models.pydantic_ai.transport import RequestTemplates, install_tap, open_client

_OLLAMA: Final = ("OLLAMA_BASE_URL", "http://localhost:11434/v1")
_URL_PARAMETERS: Final = ("base_url", "api_base", "azure_endpoint")
_FORMATS: Final[Mapping[str, Format]] = {
    "AnthropicModel": "anthropic",
    "OpenAIChatModel": "openai-chat",
    "OpenAIResponsesModel": "openai-responses",
}
_HTTP_CLIENTS: Final = ("AsyncAnthropic", "AsyncOpenAI", "AsyncAzureOpenAI")
_NO_KEY: Final = "none"  # for a server of the user that needs no key


@dataclass(frozen=True, slots=True)
class ProviderConnection:
    """An open connection to a model, usable in the event loop of its first request."""

    model_request: PydanticAIRequest
    client: httpx2.AsyncClient


def connect(
    provider: Provider, model: str, agent: str, *, api_key: str | None, base_url: str | None
) -> ProviderConnection:
    """Connect to a named model. Raises ConfigError if the provider does not accept the options."""
    client = open_client()

    def their_provider(_: str) -> TheirProvider[Any]:
        return _provider(provider, client, api_key, base_url)

    try:
        pydantic_model = infer_model(f"{provider.pydantic_ai_name}:{model}", their_provider)
    except Exception as error:  # the library of a provider may raise anything
        text = " ".join(str(error).split())
        is_key = "Credentials" in type(error).__name__
        code = "MODEL_KEY_MISSING" if is_key else "MODEL_UNKNOWN"
        raise ConfigError(f"agent {agent!r}: {text}", code=code) from error
    sdk: Any = getattr(pydantic_model, "client", None)
    if hasattr(sdk, "max_retries"):
        sdk.max_retries = 0  # the session retries, so that retries are recorded and survive a crash
    is_standard = _is_standard(pydantic_model)
    templates = RequestTemplates(client) if is_standard else None
    model_request = PydanticAIRequest(
        pydantic_model, provider, model, provider.format, is_standard, templates
    )
    return ProviderConnection(model_request, client)


def wrap_model(model: Model[Any]) -> PydanticAIRequest:
    """Wrap a model object; its streams are tapped if it uses one of the three formats over HTTP."""
    sdk: Any = getattr(model, "client", None)
    http: Any = getattr(sdk, "_client", None)
    format_ = next((_FORMATS[kind.__name__] for kind in _format_classes(model, sdk)), None)
    if not isinstance(http, httpx2.AsyncClient):
        format_ = None
    if format_ is not None:
        install_tap(http)
    provider = Provider(model.system, "", "", format=format_)
    return PydanticAIRequest(model, provider, model.model_name, format_, _is_standard(model))


def _is_standard(model: Model[Any]) -> bool:
    """Report whether the streams are exactly what the format says: no subclass, no own call ids."""
    own_ids = model.profile.get("openai_responses_tool_call_ids_are_response_scoped")
    return type(model).__name__ in _FORMATS and not own_ids


def _format_classes(model: Model[Any], sdk: Any) -> list[type]:
    """Return the classes of the model that have a format; none without a known HTTP client."""
    if type(sdk).__name__ not in _HTTP_CLIENTS:
        return []
    return [kind for kind in type(model).__mro__ if kind.__name__ in _FORMATS]


def _provider(
    provider: Provider, client: httpx2.AsyncClient, api_key: str | None, base_url: str | None
) -> TheirProvider[Any]:
    kind = infer_provider_class(provider.pydantic_ai_name)
    parameters = inspect.signature(kind.__init__).parameters
    options: dict[str, Any] = {"http_client": client}
    address = base_url or (os.environ.get(*_OLLAMA) if provider.name == "ollama" else None)
    url_parameter = next((name for name in _URL_PARAMETERS if name in parameters), None)
    if address is not None and url_parameter is not None:
        options[url_parameter] = address
    if api_key is not None or base_url is not None:
        options["api_key"] = api_key or _environment_key(provider) or _NO_KEY
    if base_url is not None and url_parameter is None:
        raise UserError(
            f"the provider {provider.name} does not accept a base_url; "
            "for a compatible server name the provider openai"
        )
    chosen = kind(**{name: value for name, value in options.items() if name in parameters})
    return _without_spans(chosen, parameters)


def _without_spans(provider: TheirProvider[Any], parameters: Collection[str]) -> TheirProvider[Any]:
    """Return the provider with a client that creates no spans of its own.

    perdure's own span describes the request. And a client that traces adds a header that is valid
    for one request, which keeps requests out of the cache.
    """
    copy = getattr(provider.client, "copy", None)
    if copy is None or "anthropic_client" not in parameters:
        return provider
    if "open_telemetry" not in inspect.signature(copy).parameters:
        return provider
    kind: Any = type(provider)
    untraced: TheirProvider[Any] = kind(anthropic_client=copy(open_telemetry=False))
    return untraced


def _environment_key(provider: Provider) -> str | None:
    return next((os.environ[name] for name in provider.keys if os.environ.get(name)), None)
