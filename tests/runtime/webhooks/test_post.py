"""One POST over a real connection on loopback: where it goes, and what it does not do."""

import shutil
import socket
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.receiver import receiving

from perdure.address_filter import AddressFilter
from perdure.core.webhooks.deliveries import FORBIDDEN, DeliveryResponse
from perdure.runtime.webhooks.post import Post

LOOPBACK = ["127.0.0.0/8"]
NOW = 1_700_000_000_000


class Names:
    """A resolver that counts, and answers in turn."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_the_body_arrives_under_the_name_at_the_address_that_was_looked_at() -> None:
    """S0.60"""
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    with receiving() as receiver:
        post = Post(AddressFilter.from_allow_list(LOOPBACK, names))
        url = f"http://ops.example:{receiver.port}/hook?key=1"
        assert await post.send(url, {"webhook-id": "d_1"}, b"{}", NOW) == DeliveryResponse(204)
        (got,) = receiver.got
    assert (got.path, got.body, got.id) == ("/hook?key=1", b"{}", "d_1")
    assert got.headers["host"] == f"ops.example:{receiver.port}"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["user-agent"].startswith("perdure/")
    assert names.asked == ["ops.example"]  # once: nobody resolves it again behind our back


async def test_a_name_that_leads_home_is_not_called() -> None:
    """S0.60"""
    with receiving() as receiver:
        for answer in (["127.0.0.1"], ["::ffff:127.0.0.1"], ["93.184.215.14", "127.0.0.1"]):
            post = Post(AddressFilter.from_allow_list([], Names(answer)))
            sent = await post.send(f"http://ops.example:{receiver.port}/", {}, b"{}", NOW)
            assert sent == DeliveryResponse(error=FORBIDDEN)
        for url in (receiver.url, f"http://0x7f000001:{receiver.port}/"):
            assert await Post(AddressFilter()).send(url, {}, b"{}", NOW) == DeliveryResponse(
                error=FORBIDDEN
            )
        assert receiver.got == []


async def test_a_redirect_is_not_followed() -> None:
    """S0.60"""
    with receiving() as receiver:
        receiver.answer(307, Location=f"http://127.0.0.1:{receiver.port}/inner")
        sent = await Post(AddressFilter.from_allow_list(LOOPBACK)).send(
            receiver.url, {}, b"{}", NOW
        )
        assert sent == DeliveryResponse(307)
        assert [one.path for one in receiver.got] == ["/hook"]


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """S0.60"""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with receiving() as receiver:
        post = Post(AddressFilter.from_allow_list(LOOPBACK))
        assert await post.send(receiver.url, {}, b"{}", NOW) == DeliveryResponse(204)


@pytest.mark.parametrize(
    "said, wait",
    [
        ("120", 120_000),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60_000),
        ("Tue, 14 Nov 2000 22:14:20 GMT", 0),
        ("soon", None),
        ("-5", None),
        ("9" * 40, 999_999_999_000),
    ],
)
async def test_what_the_receiver_asks_for_is_read(said: str, wait: int | None) -> None:
    """S0.60"""
    with receiving() as receiver:
        receiver.answer(429, Retry_After=said)
        sent = await Post(AddressFilter.from_allow_list(LOOPBACK)).send(
            receiver.url, {}, b"{}", NOW
        )
        assert sent == DeliveryResponse(429, retry_after_ms=wait)


async def test_another_address_of_the_name_is_tried_where_one_cannot_be_reached() -> None:
    with receiving() as receiver:
        post = Post(AddressFilter.from_allow_list(LOOPBACK, Names(["127.0.0.2", "127.0.0.1"])))
        sent = await post.send(f"http://ops.example:{receiver.port}/", {}, b"{}", NOW)
        assert sent == DeliveryResponse(204)


async def test_what_goes_wrong_on_the_way_is_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        silent = Post(AddressFilter.from_allow_list(LOOPBACK), timeout_s=0.05)
        sent = await silent.send(f"http://127.0.0.1:{port}/", {}, b"{}", NOW)
        assert sent == DeliveryResponse(error="it did not answer in time")
    post = Post(AddressFilter.from_allow_list(LOOPBACK))
    sent = await post.send(f"http://127.0.0.1:{port}/", {}, b"{}", NOW)
    assert sent == DeliveryResponse(error="it could not be reached")

    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError

    sent = await Post(AddressFilter.from_allow_list([], unknown)).send(
        "http://x.example/", {}, b"{}", NOW
    )
    assert sent == DeliveryResponse(error="its name could not be resolved")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for ops.example, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("makes a certificate with openssl")
    cert, key = tmp_path / "cert", tmp_path / "key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=ops.example", "-keyout", key),
            *("-addext", "subjectAltName=DNS:ops.example", "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


async def test_the_certificate_must_be_that_of_the_name(certificate: tuple[Path, Path]) -> None:
    """S0.60: the connection goes to an address, and TLS is for the name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    screen = AddressFilter.from_allow_list(LOOPBACK, Names(["127.0.0.1"]))
    with receiving(server) as receiver:
        for host, post, answer in (
            ("ops.example", Post(screen, trusting), DeliveryResponse(204)),
            ("other.example", Post(screen, trusting), None),
            ("ops.example", Post(screen), None),
        ):
            sent = await post.send(f"https://{host}:{receiver.port}/x", {}, b"{}", NOW)
            assert sent == answer or sent == DeliveryResponse(
                error="its certificate was not accepted"
            )
            assert (sent.status == 204) == (answer is not None)
        assert [one.path for one in receiver.got] == ["/x"]


async def test_a_delivery_to_a_host_that_is_not_a_name_fails() -> None:
    """An earlier version recorded such URLs."""
    sent = await Post(AddressFilter()).send("http://a..b.example/x", {}, b"{}", NOW)
    assert sent == DeliveryResponse(error=FORBIDDEN)
