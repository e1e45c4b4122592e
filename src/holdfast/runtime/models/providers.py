"""Whether a named model can be asked: its provider is known, its library here, its key set.

All that is looked at is cheap: a parked session's listing imports no provider's library.
"""

import os
from importlib.util import find_spec

from holdfast.core.providers.catalog import PROVIDERS, RETIRED, Provider
from holdfast.errors import ConfigError


def known_provider(name: str, model: str, agent: str) -> Provider:
    """The provider of that name. ConfigError if there is none."""
    provider = PROVIDERS.get(name)
    if provider is not None and model:
        return provider
    if name in RETIRED:
        raise ConfigError(
            f"agent {agent!r}: the provider {name} is gone: {RETIRED[name]}",
            code="MODEL_UNKNOWN",
            hint="name the provider of the model itself",
        )
    raise ConfigError(
        f"agent {agent!r}: the provider of {f'{name}:{model}'!r} is not known",
        code="MODEL_UNKNOWN",
        hint=f"there are scripted and {', '.join(PROVIDERS)}; or give a Model object",
        details={"agent": agent, "model": f"{name}:{model}"},
    )


def check_ready(
    provider: Provider, agent: str, *, key: str | None, base_url: str | None, llm: str | None = None
) -> None:
    """Refuse a model that could not answer: ConfigError says what to install or to set."""
    if not (_is_here("pydantic_ai") and _is_here(provider.library)):
        raise ConfigError(
            f"agent {agent!r}: the provider {provider.name} needs its library",
            code="MODEL_LIBRARY_MISSING",
            hint=provider.install,
        )
    _check_address(provider, agent, base_url, llm)
    used = key or next(filter(None, map(os.environ.get, provider.keys)), "")
    if provider.keys and not used and base_url is None:  # a server of one's own may need none
        where = f", or api_key in llms.{llm}" if llm else ""
        raise ConfigError(
            f"agent {agent!r}: the provider {provider.name} needs a key",
            code="MODEL_KEY_MISSING",
            hint=f"set {provider.keys[0]}{where}",
        )
    if not (used.isascii() and used.isprintable() and used == used.strip()):
        raise ConfigError(  # no request could carry it: it would look like a connection that fails
            f"agent {agent!r}: the key of the provider {provider.name} cannot be one",
            code="MODEL_KEY_INVALID",
            hint="it has a line break, a blank at an end or a strange character; copy it again",
        )


def _check_address(provider: Provider, agent: str, base_url: str | None, llm: str | None) -> None:
    if base_url is not None and provider.stays:
        raise ConfigError(
            f"agent {agent!r}: the provider {provider.name} takes no base_url",
            code="MODEL_ADDRESS_INVALID",
            hint="leave it out; the provider openai speaks to any compatible server",
        )
    variable = provider.address
    if variable is None or base_url is not None or os.environ.get(variable):
        return
    ways = [f"set {variable}"] if variable else []
    ways.append(f"give base_url in llms.{llm}" if llm else "give base_url, in llms of a YAML file")
    raise ConfigError(
        f"agent {agent!r}: the provider {provider.name} needs an address",
        code="MODEL_ADDRESS_MISSING",
        hint=", or ".join(ways),
    )


def _is_here(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
