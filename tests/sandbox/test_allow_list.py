"""Allow-lists of the network: their entries, and what they allow."""

import pytest

from perdure.sandbox.allow_list import AllowList


@pytest.mark.parametrize(
    "host, port, allowed",
    [
        ("packages.example.org", 443, True),
        ("packages.example.org", 80, True),
        ("packages.example.org", 22, False),
        ("evil.packages.example.org", 443, False),
        ("example.org", 443, False),
        ("a.mirror.example", 443, True),
        ("a.b.mirror.example", 80, True),
        ("mirror.example", 443, False),
        ("evilmirror.example", 443, False),
        ("github.com", 443, True),
        ("github.com", 80, False),
        ("", 443, False),
    ],
)
def test_a_host_is_allowed_by_its_whole_name_and_port(host: str, port: int, allowed: bool) -> None:
    entries = ["Packages.example.org", "*.mirror.example", "github.com:443"]
    assert AllowList.parse(entries).allows(host, port) is allowed


@pytest.mark.parametrize(
    "entry",
    [
        *("https://example.org", "example.org/path", "", "*", "*.org", "a.*.org", "exa mple.org"),
        *("127.0.0.1", "10.0.0.0/8", "::1", "[::1]:443", "127.1", "0x7f000001", "2130706433"),
        *("example.org:", "example.org:0", "example.org:65536", "example.org:https", "-a.org"),
        *("user@example.org", "exämple.org", "example..org", "a" * 64 + ".org"),
    ],
)
def test_an_entry_that_is_not_a_name_is_refused_with_its_text(entry: str) -> None:
    with pytest.raises(
        ValueError, match=r"must be|is an address|is not a host name|port"
    ) as caught:
        AllowList.parse([entry])
    assert repr(entry) in str(caught.value)
