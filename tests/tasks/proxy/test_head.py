"""Heads of proxy requests: one way to read each of them."""

import pytest

from perdure.errors import Refused
from perdure.tasks.proxy.head import parse_head


def test_a_tunnel_names_a_host_and_a_port() -> None:
    request = parse_head(b"CONNECT Packages.Example:443 HTTP/1.1\r\nHost: other\r\n\r\n")
    assert request.is_tunnel
    assert (request.target.host, request.target.port) == ("packages.example", 443)


def test_a_forwarded_request_has_the_host_of_its_url_and_closes() -> None:
    head = (
        b"POST http://packages.example:8080/a?b HTTP/1.1\r\nHost: other.example\r\n"
        b"Proxy-Authorization: b\r\nConnection: keep-alive\r\nContent-Length: 4\r\nX: y\r\n\r\n"
    )
    request = parse_head(head)
    assert request.head == (
        b"POST /a?b HTTP/1.1\r\nHost: packages.example:8080\r\nContent-Length: 4\r\nX: y\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert (request.is_tunnel, request.body_size) == (False, 4)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET / HTTP/1.1",
        b"GET packages.example HTTP/1.1",
        b"GET https://packages.example/ HTTP/1.1",
        b"GET ftp://packages.example/ HTTP/1.1",
        b"GET http://user@packages.example/ HTTP/1.1",
        b"GET http://packages.example/ HTTP/2",
        b"GET  http://packages.example/ HTTP/1.1",
        b"connect packages.example:443 HTTP/1.1",
        b"CONNECT packages.example HTTP/1.1",
        b"CONNECT packages.example:0 HTTP/1.1",
        b"CONNECT packages.example:99999 HTTP/1.1",
        b"CONNECT [::1]:443 HTTP/1.1",
        b"CONNECT 127.1:443 HTTP/1.1",
        b"CONNECT 0x7f000001:443 HTTP/1.1",
        b"CONNECT a@packages.example:443 HTTP/1.1",
        b"CONNECT packages.example:443:443 HTTP/1.1",
        b"CONNECT https://packages.example:443 HTTP/1.1",
        b"GET http://packages.example/ HTTP/1.1\r\n folded",
        b"GET http://packages.example/ HTTP/1.1\r\nX : y",
        b"GET http://packages.example/ HTTP/1.1\r\nX: a\nY: b",
        b"POST http://packages.example/ HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"POST http://packages.example/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        b"POST http://packages.example/ HTTP/1.1\r\nContent-Length: +1",
        b"GET http://packages.example/\xff HTTP/1.1",
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused(head: bytes) -> None:
    with pytest.raises(Refused):
        parse_head(head + b"\r\n\r\n")
