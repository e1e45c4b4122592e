"""From a configuration to what protects a server: tokens, known hosts and limits."""

import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from perdure.config import ServerConfig
from perdure.core.access import Principal
from perdure.errors import ConfigError
from perdure.serve.http.auth import Authenticate, by_tokens, on_this_machine
from perdure.serve.http.middleware import LOOPBACK, PER_ID, PER_SOURCE, Rate, Rules, networks

_EVERY: Final = ("0.0.0.0", "::")  # noqa: S104 - to be recognised, not to be used


@dataclass(frozen=True, slots=True)
class Setup:
    """A server that is about to listen."""

    host: str
    port: int
    principals: Mapping[str, Principal]  # by token
    rules: Rules
    public_url: str

    @property
    def authenticate(self) -> Authenticate:
        """Who asks; on a server without tokens everybody on this machine."""
        if self.principals:
            return by_tokens(self.principals)
        return on_this_machine(LOOPBACK | {self.host.lower()})

    @property
    def protection(self) -> str:
        """What protects it, for people."""
        if not self.principals:
            return "no token needed, reachable from this machine only"
        names = ", ".join(f"{one.name} ({one.role})" for one in self.principals.values())
        return f"tokens: {names}"


def setup(config: ServerConfig, token: str | None, public_url: str | None) -> Setup:
    """How to serve. `token`, of an admin, counts where the configuration has none.

    ConfigError if anybody could reach it without a token.
    """
    principals = {
        one.token: Principal(one.name, one.role, one.tenant, one.on_behalf)  # type: ignore[arg-type]
        for one in config.tokens
    }
    if not principals and token:
        principals = {token: Principal("admin", "admin")}
    if not principals and not is_loopback(config.host):
        raise ConfigError(
            f"without a token the server listens on this machine only, not on {config.host}",
            code="TOKEN_NEEDED",
            hint="set PERDURE_TOKEN, or server.tokens in the configuration",
        )
    url = public_url or _own_url(config)
    return Setup(config.host, config.port, principals, _rules(config, url), url)


def is_loopback(host: str) -> bool:
    """Whether a name or address is reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ip_address(address[4][0]).is_loopback for address in found)


def _rules(config: ServerConfig, url: str) -> Rules:
    named = {config.host.lower(), (urlsplit(url).hostname or "").lower()} - {"", *_EVERY}
    return Rules(
        hosts=frozenset(LOOPBACK | named),
        numbers=config.host in _EVERY,
        trusted_proxies=networks(config.trusted_proxies),
        per_source=_rate(config.rate_limit["per_source"], PER_SOURCE),
        per_id=_rate(config.rate_limit["per_id"], PER_ID),
        max_body=config.max_body,
    )


def _rate(per_second: float, usual: Rate) -> Rate:
    """The burst grows and shrinks with the rate."""
    return Rate(per_second, max(1, math.ceil(per_second * usual.burst / usual.per_second)))


def _own_url(config: ServerConfig) -> str:
    host = socket.gethostname() if config.host in _EVERY else config.host
    return f"http://{f'[{host}]' if ':' in host else host}:{config.port}"
