"""Which addresses we call: public ones, and those that somebody allowed by name.

Whoever gives us a URL must not reach through us what only we can reach. A name is resolved by us
and the connection goes to the very address that was looked at, so that a name which means another
address a moment later gains nothing.
"""

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import anyio

from perdure.errors import Refused

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

PORTS: Final = {"http": 80, "https": 443}
LONGEST: Final = 2_000
RESOLVE_S: Final = 5.0

_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
# Not public, which the ipaddress of older Pythons does not know, or calls by another name.
_ALSO_SPECIAL: Final = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "3fff::/20", "fec0::/10"),
    )
)


@dataclass(frozen=True, slots=True)
class Place:
    """A URL taken apart: nothing reads it a second time, in another way."""

    scheme: str
    host: str  # a name, or an address without brackets
    port: int
    path: str  # with the query

    @property
    def host_header(self) -> str:
        """The host as the receiver expects it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The place for people: what comes after the host may be a secret."""
        return f"{self.scheme}://{self.host_header}/…"


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as the machine knows them. Raises OSError."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


@dataclass(frozen=True, slots=True)
class Screen:
    """Lets public addresses pass, and what is in the allow-list: names, addresses, networks."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    resolve: Resolve = resolve

    @classmethod
    def allowing(cls, allowed: Iterable[str], resolve: Resolve = resolve) -> "Screen":
        """A screen with this allow-list. ValueError for what is neither a name nor a network."""
        names, networks = set(), []
        for one in allowed:
            try:
                networks.append(ipaddress.ip_network(one, strict=False))
            except ValueError:
                if "/" in one or not one:
                    raise
                names.add(one.lower().rstrip("."))
        return cls(frozenset(names), tuple(networks), resolve)

    async def check(self, url: str) -> Place:
        """Refuse a URL that we would not call; a name that nobody knows now may pass."""
        place = parse(url)
        with suppress(OSError):
            await self.addresses(place)
        return place

    async def addresses(self, place: Place) -> list[str]:
        """Where to connect. Refused if one of them is not allowed; OSError if there is none."""
        try:
            found: Sequence[str] = [str(ipaddress.ip_address(place.host))]
        except ValueError:
            with anyio.move_on_after(RESOLVE_S) as scope:
                found = await self.resolve(place.host, place.port)
            if scope.cancelled_caught:
                raise OSError(f"{place.host} could not be resolved in time") from None
        if not found:
            raise OSError(f"{place.host} has no address")
        if place.host not in self.names:
            for one in found:
                self._check(place, one)
        return list(dict.fromkeys(found))

    def _check(self, place: Place, text: str) -> None:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # such as fe80::1%eth0
            raise _forbidden(place) from None
        if any(address in network for network in self.networks):
            return
        if not all(map(_is_public, _meanings(address))):
            raise _forbidden(place)


def parse(url: str) -> Place:
    """A URL taken apart. Refused if it is not one of http or https to a host, and no more."""
    if not isinstance(url, str) or len(url) > LONGEST or _UNSAFE.search(url):
        raise _invalid("it is too long, or has characters that no URL has")
    try:
        parts = urlsplit(url)
        port, host = parts.port, (parts.hostname or "").rstrip(".")
    except ValueError:
        raise _invalid("it cannot be read") from None
    if parts.scheme not in PORTS or not host:
        raise _invalid("it must begin with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise _invalid("it must not hold a user or password")
    if port == 0 or parts.fragment:
        raise _invalid("it has no usable port, or a fragment")
    query = f"?{parts.query}" if parts.query else ""
    chosen = PORTS[parts.scheme] if port is None else port
    return Place(parts.scheme, _host(host), chosen, f"{parts.path or '/'}{query}")


def _host(host: str) -> str:
    """The host as it is resolved; an IPv4 address only in its one usual form."""
    if ":" in host:
        if "%" in host:
            raise _invalid("an address must not name an interface")
        return str(ipaddress.ip_address(host))
    try:
        name = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        raise _invalid("its host is not a name") from None
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name):
        raise _invalid("its host is not a name")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise _invalid("an IPv4 address is four decimal numbers") from None
    return name.lower()


def _meanings(address: Address) -> Iterable[Address]:
    """The address, and the IPv4 one inside it, to which it may lead."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        inside = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inside.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        yield from (one for one in inside if one is not None)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return True  # what it maps is looked at
    if address.is_multicast or address.is_reserved or any(address in net for net in _ALSO_SPECIAL):
        return False
    return address.is_global and not (address.is_loopback or address.is_link_local)


def _invalid(why: str) -> Refused:
    return Refused(
        f"the URL cannot be called: {why}",
        code="URL_INVALID",
        hint="such as https://ops.example/hook",
    )


def _forbidden(place: Place) -> Refused:
    return Refused(
        f"{place.host} is not a public address, and we do not call others",
        code="ADDRESS_FORBIDDEN",
        hint="allow it: server.webhook_allow, with its name or network",
    )
