"""What a server allows before it looks who asks."""

from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from holdfast.serve.limits import Rate

Network = IPv4Network | IPv6Network

PER_SOURCE: Final = Rate(100, 200)
PER_ID: Final = Rate(20, 50)
MAX_BODY: Final = 10 * 2**20
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits, and whom to believe.

    `hosts` are the names under which it may be addressed; None leaves that to whoever mounts it.
    """

    hosts: frozenset[str] | None = None
    numbers: bool = False  # an address instead of a name is a good host, whatever it is
    trusted_proxies: tuple[Network, ...] = ()
    per_source: Rate = field(default=PER_SOURCE)
    per_id: Rate = field(default=PER_ID)
    max_body: int = MAX_BODY

    def knows_host(self, authority: str) -> bool:
        """Whether a request may be addressed to `authority`."""
        if self.hosts is None:
            return True
        name = host_of(authority)
        return name in self.hosts or (self.numbers and _address(name) is not None)

    def trusts(self, address: str) -> bool:
        """Whether a peer is a proxy whose word counts."""
        found = _address(address)
        return found is not None and any(found in network for network in self.trusted_proxies)


@lru_cache(256)
def host_of(authority: str) -> str:
    """The name in `name:port`; empty if there is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Addresses and networks as they stand in a configuration."""
    return tuple(ip_network(text, strict=False) for text in texts)


@lru_cache(4096)
def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _portless(text: str) -> str:
    host = host_of(text) if _address(text) is None else text
    return text if _address(host) is None else host


def source_of(peer: str, forwarded: list[str], rules: Rules) -> str:
    """Where a request comes from: the nearest address that no trusted proxy has.

    What stands further left in X-Forwarded-For anybody may have written. A port, which some
    proxies add, makes no other source. Of IPv6 the /64 counts, for that is what one customer has.
    """
    way = [_portless(part.strip()) for line in forwarded for part in line.split(",")]
    source = peer
    while way and rules.trusts(source):
        source = way.pop()
    address = _address(source)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return source if address is None else str(address)
