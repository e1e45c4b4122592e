"""Which addresses are called: no name is resolved outside of this file."""

import socket
from collections.abc import Sequence

import pytest

from perdure.address_filter import AddressFilter, ParsedURL, parse_url
from perdure.errors import Refused

PUBLIC = "93.184.215.14"


def knows(**names: str | Sequence[str]) -> AddressFilter:
    return allows((), **names)


def allows(allowed: Sequence[str], **names: str | Sequence[str]) -> AddressFilter:
    async def resolve(host: str, port: int) -> Sequence[str]:
        found = names.get(host.replace(".", "_"))
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [found] if isinstance(found, str) else found

    return AddressFilter.from_allow_list(allowed, resolve)


async def refusal(screen: AddressFilter, url: str) -> str:
    with pytest.raises(Refused) as caught:
        await screen.check(url)
    return caught.value.code


async def test_a_public_address_is_called_under_its_name() -> None:
    screen = knows(ops_example=PUBLIC)
    place = await screen.check("https://OPS.example/hook?key=1")
    assert place == ParsedURL("https", "ops.example", 443, "/hook?key=1")
    assert await screen.addresses(place) == [PUBLIC]
    assert (place.host_header, place.display) == ("ops.example", "https://ops.example/…")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "0.0.0.1", "255.255.255.255", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
        *("192.0.2.1", "198.18.0.1", "192.0.0.8", "192.88.99.1"),
        *("64:ff9b:1::7f00:1", "3fff::1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "fec0::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1"),
        *("2002:7f00:1::", "fe80::1%eth0"),
    ],
)
async def test_a_name_that_means_an_inner_address_is_refused(address: str) -> None:
    """S0.60"""
    assert await refusal(knows(inner_example=address), "http://inner.example/") == (
        "ADDRESS_FORBIDDEN"
    )


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::]",
        "0.0.0.0",  # noqa: S104
    ],
)
async def test_an_inner_address_itself_is_refused(host: str) -> None:
    """S0.60"""
    assert await refusal(knows(), f"http://{host}:8000/x") == "ADDRESS_FORBIDDEN"


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f000001", "0x7F.1", "0177.0.0.1", "127.1", "127.0.1", "0", "1.2.3"),
        *("127.0.0.01", "127.0.0.0x1", "1.2.3.4.5", "256.1.1.1", "[fe80::1%25eth0]", "[::g]"),
    ],
)
async def test_an_odd_form_of_an_address_is_refused_unresolved(host: str) -> None:
    """S0.60"""
    everywhere = knows(**{host.replace(".", "_"): PUBLIC})
    assert await refusal(everywhere, f"http://{host}/") == "URL_INVALID"


@pytest.mark.parametrize(
    "url",
    [
        *("", "ops.example", "//ops.example/", "ftp://ops.example/", "file:///etc/passwd"),
        *("gopher://ops.example/", "javascript:alert(1)", "http://", "http:///x", "https:ops"),
        *("http://user@ops.example/", "http://user:pass@ops.example/", "http://@ops.example/"),
        *("http://ops.example:0/", "http://ops.example:99999/", "http://ops.example:x/"),
        *("http://ops.example/#x", "http://ops example/", "http://ops.example/\r\nX: y"),
        *("http://ops.example\\@127.0.0.1/", "http://ops.example/" + "x" * 2000, "http://[::1/"),
        *("http://ops%2eexample/", "http://ex*mple/"),
    ],
)
async def test_what_is_not_a_plain_url_to_a_host_is_refused(url: str) -> None:
    """S0.60"""
    assert await refusal(knows(ops_example=PUBLIC), url) == "URL_INVALID"


async def test_one_inner_address_among_public_ones_is_enough_to_refuse() -> None:
    assert await refusal(knows(a_example=[PUBLIC, "10.0.0.1"]), "http://a.example/") == (
        "ADDRESS_FORBIDDEN"
    )


async def test_what_is_allowed_by_name_address_or_network_passes() -> None:
    screen = allows(["localhost", "10.1.0.0/16", "::1"], localhost="127.0.0.1", in_x="10.1.2.3")
    for url in ("http://localhost:80/", "http://in.x/", "http://[::1]:9/", "http://10.1.9.9/"):
        await screen.check(url)
    assert await refusal(screen, "http://10.2.0.1/") == "ADDRESS_FORBIDDEN"
    assert await refusal(screen, "http://127.0.0.1/") == "ADDRESS_FORBIDDEN"


async def test_a_name_that_nobody_knows_yet_may_be_registered_but_not_called() -> None:
    place = await knows().check("https://later.example/")
    with pytest.raises(OSError, match="unknown"):
        await knows().addresses(place)


async def test_a_name_that_means_another_address_later_is_refused_then() -> None:
    answers = [[PUBLIC], ["127.0.0.1"]]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    screen = AddressFilter.from_allow_list([], resolve)
    place = await screen.check("https://rebind.example/")
    with pytest.raises(Refused, match="is not a public address"):
        await screen.addresses(place)


def test_a_name_with_letters_of_its_own_is_resolved_in_ascii() -> None:
    assert parse_url("https://bücher.example/").host == "xn--bcher-kva.example"


def test_an_allow_list_takes_names_and_networks_only() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        AddressFilter.from_allow_list(["10.0.0.0/99"])


async def test_the_machine_itself_knows_the_odd_forms_too() -> None:
    """Were one let through, the resolver of the machine would lead it home."""
    assert socket.gethostbyname("127.1") == "127.0.0.1"


@pytest.mark.parametrize("host", ["a..b.example", f"{'a' * 70}.example", ".example", "a../"])
async def test_a_host_that_no_resolver_takes_is_refused(host: str) -> None:
    """S0.60"""
    assert await refusal(AddressFilter(), f"http://{host}/x") == "URL_INVALID"
    with pytest.raises(ValueError, match="is not a host name"):
        AddressFilter.from_allow_list([host.removesuffix("/")])
