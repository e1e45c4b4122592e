"""Whether a named model can be asked: its provider is known, its library here, its key set.

All that is looked at is cheap: a parked session's listing imports no provider's library.
"""

import os
from importlib.util import find_spec

from holdfast.core.providers import PROVIDERS, Provider
from holdfast.errors import ConfigError


def known_provider(name: str, model: str, agent: str) -> Provider:
    """The provider of that name. ConfigError if there is none."""
    provider = PROVIDERS.get(name)
    if provider is not None and model:
        return provider
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


def _is_here(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
