"""Heads of proxy requests: CONNECT, and plain HTTP with an absolute URL."""

import re
from dataclasses import dataclass
from typing import Final

from perdure.address_filter import ParsedURL, parse_url
from perdure.errors import Refused

MAX_HEAD_BYTES: Final = 32 * 1024

_METHOD: Final = re.compile(r"[A-Z]{1,20}")
_VERSION: Final = re.compile(r"HTTP/1\.[01]")
_AUTHORITY: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*)")
# Headers of this connection only. The host is taken from the URL, so that both are the same.
_DROPPED: Final = frozenset(
    {
        *(b"connection", b"host", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
        *(b"proxy-connection", b"te", b"trailer", b"upgrade"),
    }
)


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request to the proxy: a tunnel to a host, or one request that is passed on."""

    target: ParsedURL
    is_tunnel: bool
    head: bytes = b""  # what the server receives
    body_size: int = 0


def parse_head(head: bytes) -> ProxyRequest:
    """Read the head of a request, up to its empty line. Raises Refused."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    try:
        method, target, version = lines[0].decode("ascii").split(" ")
    except ValueError:
        raise _bad("its first line is not METHOD TARGET VERSION") from None
    if not _METHOD.fullmatch(method) or not _VERSION.fullmatch(version):
        raise _bad("it is not HTTP/1.1")
    fields = [_field(line) for line in lines[1:]]
    if method == "CONNECT":
        return ProxyRequest(_authority(target), is_tunnel=True)
    url = parse_url(target)
    if url.scheme != "http":
        raise _bad("an https URL needs CONNECT")
    return _forwarded(method, url, fields)


def _forwarded(method: str, url: ParsedURL, fields: list[tuple[bytes, bytes]]) -> ProxyRequest:
    sizes = [value for name, value in fields if name.lower() == b"content-length"]
    if any(name.lower() == b"transfer-encoding" for name, _ in fields):
        raise _bad("a body needs a Content-Length")
    if len(sizes) > 1 or not all(re.fullmatch(rb"[0-9]{1,15}", size) for size in sizes):
        raise _bad("its Content-Length is not a number")
    lines = [f"{method} {url.path} HTTP/1.1".encode(), f"Host: {url.host_header}".encode()]
    lines += [name + b": " + value for name, value in fields if name.lower() not in _DROPPED]
    head = b"\r\n".join([*lines, b"Connection: close", b"", b""])
    return ProxyRequest(url, is_tunnel=False, head=head, body_size=int(sizes[0]) if sizes else 0)


def _authority(target: str) -> ParsedURL:
    match = _AUTHORITY.fullmatch(target)
    if match is None or not 0 < int(match["port"]) < 65_536:
        raise _bad("CONNECT needs HOST:PORT, with a name")
    return parse_url(f"https://{match['host']}:{int(match['port'])}/")


def _field(line: bytes) -> tuple[bytes, bytes]:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise _bad("a header line is not NAME: VALUE")
    return match[1], match[2].rstrip()


def _bad(reason: str) -> Refused:
    return Refused(
        f"the proxy cannot read the request: {reason}",
        code="BAD_PROXY_REQUEST",
        hint="use it as an HTTP proxy: CONNECT for https, an absolute URL for http",
    )
