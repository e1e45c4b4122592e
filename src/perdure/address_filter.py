"""Filter of the addresses that webhooks may go to: public ones, and those on the allow-list.

A caller who gives a URL must not reach internal services through this process (SSRF). The name is
resolved here and the connection goes to exactly the checked address, so that a DNS answer that
changes in between gains nothing.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from perdure.core.host_names import host_name_of
from perdure.errors import Refused

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

PORTS: Final = {"http": 80, "https": 443}
MAX_URL_LENGTH: Final = 2_000
RESOLVE_S: Final = 5.0

_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
# Not public, but global according to the ipaddress module of older Python versions.
_SPECIAL_NETWORKS: Final = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "3fff::/20", "fec0::/10"),
    )
)


@dataclass(frozen=True, slots=True)
class ParsedURL:
    """A parsed URL: it is parsed once, so that the check and the request cannot disagree."""

    scheme: str
    host: str  # a name, or an address without brackets
    port: int
    path: str  # with the query

    @property
    def host_header(self) -> str:
        """The Host header that the receiver expects."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def display(self) -> str:
        """The URL without its path, which may hold a secret."""
        return f"{self.scheme}://{self.host_header}/…"


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses that the system resolves a name to. Raises OSError."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in infos]


@dataclass(frozen=True, slots=True)
class AddressFilter:
    """Accepts public addresses, and the names, addresses and networks of an allow-list."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    resolve: Resolve = resolve

    @classmethod
    def from_allow_list(cls, allowed: Iterable[str], resolve: Resolve = resolve) -> "AddressFilter":
        """Return a filter with this allow-list. ValueError for neither a name nor a network."""
        names, networks = set(), []
        for item in allowed:
            try:
                networks.append(ipaddress.ip_network(item, strict=False))
            except ValueError:
                if "/" in item or not item:
                    raise
                names.add(host_name_of(item))
        return cls(frozenset(names), tuple(networks), resolve)

    async def check(self, url: str) -> ParsedURL:
        """Raise Refused for a URL that is not allowed; a name without an address may pass."""
        url_parts = parse_url(url)
        with suppress(OSError):
            await self.addresses(url_parts)
        return url_parts

    async def addresses(self, url_parts: ParsedURL) -> list[str]:
        """Return the addresses of a URL. Refused if one is not allowed, OSError if none exists."""
        try:
            addresses: Sequence[str] = [str(ipaddress.ip_address(url_parts.host))]
        except ValueError:
            try:
                async with asyncio.timeout(RESOLVE_S):
                    addresses = await self.resolve(url_parts.host, url_parts.port)
            except TimeoutError:
                raise OSError(f"{url_parts.host} could not be resolved in time") from None
        if not addresses:
            raise OSError(f"{url_parts.host} has no address")
        if url_parts.host not in self.names:
            for address in addresses:
                self._check(url_parts, address)
        return list(dict.fromkeys(addresses))

    def _check(self, url_parts: ParsedURL, text: str) -> None:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # such as fe80::1%eth0
            raise _forbidden(url_parts) from None
        if any(address in network for network in self.networks):
            return
        if not all(map(_is_public, _embedded_addresses(address))):
            raise _forbidden(url_parts)


def parse_url(url: str) -> ParsedURL:
    """Parse a URL. Refused unless it is http or https with a host, path and query only."""
    if not isinstance(url, str) or len(url) > MAX_URL_LENGTH or _UNSAFE.search(url):
        raise _invalid("it is too long, or has characters that are not allowed in a URL")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise _invalid("it cannot be read") from None
    if parts.scheme not in PORTS or not host:
        raise _invalid("it must begin with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise _invalid("it must not hold a user or password")
    if port == 0 or parts.fragment:
        raise _invalid("its port is 0, or it has a fragment")
    query = f"?{parts.query}" if parts.query else ""
    chosen = PORTS[parts.scheme] if port is None else port
    return ParsedURL(parts.scheme, _host(host), chosen, f"{parts.path or '/'}{query}")


def _host(host: str) -> str:
    """Return the host to resolve; an IPv4 address must be in dotted decimal form."""
    if ":" in host:
        if "%" in host:
            raise _invalid("an address must not name an interface")
        return str(ipaddress.ip_address(host))
    try:
        name = host_name_of(host)
    except ValueError:
        raise _invalid("its host is not a name") from None
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise _invalid("an IPv4 address is four decimal numbers") from None
    return name


def _embedded_addresses(address: Address) -> Iterable[Address]:
    """Yield the address, and the IPv4 addresses embedded in it, which it may lead to."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        embedded = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            embedded.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        yield from (item for item in embedded if item is not None)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return True  # the mapped IPv4 address is checked
    if (
        address.is_multicast
        or address.is_reserved
        or any(address in net for net in _SPECIAL_NETWORKS)
    ):
        return False
    return address.is_global and not (address.is_loopback or address.is_link_local)


def _invalid(reason: str) -> Refused:
    return Refused(
        f"the URL cannot be called: {reason}",
        code="URL_INVALID",
        hint="use a URL such as https://ops.example/hook",
    )


def _forbidden(url_parts: ParsedURL) -> Refused:
    return Refused(
        f"{url_parts.host} is not a public address, and only public addresses are called",
        code="ADDRESS_FORBIDDEN",
        hint="to allow it, add its name or network to server.webhook_allow",
    )
