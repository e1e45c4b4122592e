"""Allow-lists of the network: host names, optionally with a port, and names below a domain."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NAME: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
DEFAULT_PORTS: Final = frozenset({80, 443})
EXAMPLE: Final = 'such as packages.example.org, "*.mirror.example" or github.com:443'


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One entry: a name, or every name below it, on one port or on the two of the web."""

    name: str
    below: bool
    ports: frozenset[int]

    def matches(self, host: str, port: int) -> bool:
        """Return whether a connection to this host and port is allowed."""
        is_host = host.endswith(f".{self.name}") if self.below else host == self.name
        return is_host and port in self.ports


@dataclass(frozen=True, slots=True)
class AllowList:
    """The hosts that a command may reach."""

    hosts: tuple[AllowedHost, ...]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "AllowList":
        """Return the list for its entries. Raises ValueError with a text that names the entry."""
        return cls(tuple(map(parse_entry, entries)))

    def allows(self, host: str, port: int) -> bool:
        """Return whether a connection is allowed; `host` is a lower-case name."""
        return any(entry.matches(host, port) for entry in self.hosts)


def parse_entry(entry: str) -> AllowedHost:
    """Return an entry of an allow-list. Raises ValueError with a text that names the entry."""
    if "://" in entry or "/" in entry:
        raise ValueError(f"{entry!r} must be a host name without scheme and path, {EXAMPLE}")
    host, _, port = entry.strip().lower().partition(":")
    below = host.startswith("*.")
    name = host.removeprefix("*.").rstrip(".")
    if _is_address(entry.strip("[]")) or _is_address(name):
        raise ValueError(f"{entry!r} is an address: the allow-list has names, {EXAMPLE}")
    if not NAME.fullmatch(name) or (below and "." not in name):
        raise ValueError(f"{entry!r} is not a host name, {EXAMPLE}")
    if ":" in entry and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"{entry!r} does not end with a port between 1 and 65535")
    return AllowedHost(name, below, frozenset({int(port)}) if port else DEFAULT_PORTS)


def _is_address(text: str) -> bool:
    """Return whether a resolver may take this for an address: 127.1 and 0x7f000001 as well."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return re.fullmatch(r"[0-9]+|0x[0-9a-f]*", text.rpartition(".")[2]) is not None
    return True
