"""Setup of a server from its configuration: tokens, allowed hosts and limits."""

import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from perdure.config import McpConfig, ServerConfig
from perdure.core.roles import Principal
from perdure.errors import ConfigError
from perdure.serve.http.auth import Authenticate, local_authenticator, token_authenticator
from perdure.serve.http.middleware import LOOPBACK, PER_ID, PER_SOURCE, Rules, parse_networks
from perdure.serve.limits import Rate

SHORT_TOKEN: Final = 8  # characters; anything shorter is guessed within minutes
_ALL_INTERFACES: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, never bound here


@dataclass(frozen=True, slots=True)
class Setup:
    """A server that is about to listen."""

    host: str
    port: int
    principals: Mapping[str, Principal]  # by token
    rules: Rules
    public_url: str
    mcp: McpConfig = field(default_factory=McpConfig)

    @property
    def authenticate(self) -> Authenticate:
        """Authenticator of callers; without tokens it accepts every caller on this machine."""
        if self.principals:
            return token_authenticator(self.principals)
        return local_authenticator(LOOPBACK | {self.host.lower()})

    @property
    def warnings(self) -> list[str]:
        """Warnings for its operator."""
        return [
            f"the token of {principal.name} has {len(token)} of at least {SHORT_TOKEN} characters "
            "and can be guessed: openssl rand -hex 32"
            for token, principal in self.principals.items()
            if len(token) < SHORT_TOKEN
        ]

    @property
    def protection(self) -> str:
        """Description of the server's protection, for its operator."""
        if not self.principals:
            return "no token needed, reachable from this machine only"
        names = ", ".join(
            f"{principal.name} ({principal.role})" for principal in self.principals.values()
        )
        return f"tokens: {names}"


def setup(config: ServerConfig, token: str | None, public_url: str | None) -> Setup:
    """Return how to serve. `token`, an admin's, is used if the configuration has no tokens.

    Raises ConfigError if other machines could reach the server without a token.
    """
    principals = {
        item.token: Principal(item.name, item.role, item.tenant, item.on_behalf)
        for item in config.tokens
    }
    if not principals and token:
        principals = {token: Principal("admin", "admin")}
    if not principals and not is_loopback(config.host):
        raise ConfigError(
            f"a server without tokens may listen on this machine only, not on {config.host}",
            code="TOKEN_NEEDED",
            hint="set PERDURE_TOKEN, or server.tokens in the configuration",
        )
    url = public_url or _own_url(config)
    rules = replace(_rules(config, url), has_tokens=bool(principals))
    return Setup(config.host, config.port, principals, rules, url, config.mcp)


def is_loopback(host: str) -> bool:
    """Return whether a name or address can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the second for what is not a name
        return False
    return all(ip_address(address[4][0]).is_loopback for address in addresses)


def _rules(config: ServerConfig, url: str) -> Rules:
    names = {config.host.lower(), (urlsplit(url).hostname or "").lower()} - {"", *_ALL_INTERFACES}
    return Rules(
        hosts=frozenset(LOOPBACK | names),
        allow_addresses=config.host in _ALL_INTERFACES,
        trusted_proxies=parse_networks(config.trusted_proxies),
        per_source=_rate(config.rate_limit.per_source, PER_SOURCE),
        per_id=_rate(config.rate_limit.per_id, PER_ID),
        max_body=config.max_body,
    )


def _rate(per_second: float, default: Rate) -> Rate:
    """Return a rate whose burst is in the same proportion as the default's."""
    return Rate(per_second, max(1, math.ceil(per_second * default.burst / default.per_second)))


def _own_url(config: ServerConfig) -> str:
    host = socket.gethostname() if config.host in _ALL_INTERFACES else config.host
    return f"http://{f'[{host}]' if ':' in host else host}:{config.port}"
