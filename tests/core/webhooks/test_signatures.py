"""Signatures: good ones and bad ones, computed here with hmac alone."""

import base64
import hashlib
import hmac
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.webhooks.signatures import (
    BAD_SIGNATURE,
    TOLERANCE_S,
    SignatureCheck,
    derive_secret,
    sign,
    verify,
)
from perdure.errors import Refused

NOW = 1_700_000_000_000
AT = str(NOW // 1000)
BODY = b'{"pendingID": "p_1", "result": {"output": "done"}}'
KEY = bytes(range(24))
WHSEC = "whsec_" + base64.b64encode(KEY).decode()
PLAIN = "s3cret"


def plain(body: bytes = BODY, secret: str = PLAIN) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def standard(body: bytes = BODY, key: bytes = KEY, at: str = AT) -> dict[str, str]:
    mark = hmac.new(key, b"m_1." + at.encode() + b"." + body, hashlib.sha256).digest()
    signature = "v1," + base64.b64encode(mark).decode()
    return {"webhook-id": "m_1", "webhook-timestamp": at, "webhook-signature": signature}


def judged(headers: Mapping[str, str], *secrets: str, body: bytes = BODY) -> SignatureCheck:
    return verify(headers, body, secrets or (PLAIN, WHSEC), NOW)


GOOD = {
    "hex": {"X-Webhook-Signature": plain()},
    "hex with its algorithm": {"X-Webhook-Signature": f"sha256={plain()}"},
    "upper case": {"x-webhook-signature": f"SHA256={plain().upper()}"},
    "standard": standard(),
    "standard, other case": {name.title(): value for name, value in standard().items()},
    "standard, plain text secret": standard(key=PLAIN.encode()),
    "standard, at the edge": standard(at=str(NOW // 1000 - TOLERANCE_S)),
    "standard, several": {
        **standard(),
        "webhook-signature": "v1a,xyz v1,AAAA " + standard()["webhook-signature"],
    },
}


@pytest.mark.parametrize("headers", GOOD.values(), ids=GOOD)
def test_a_signature_over_the_raw_bytes_holds(headers: Mapping[str, str]) -> None:
    """S0.55 S0.56"""
    assert judged(headers).ok


BAD = {
    "missing": ({}, "there is no signature"),
    "empty": ({"X-Webhook-Signature": ""}, "no secret gives this signature"),
    "wrong": ({"X-Webhook-Signature": "0" * 64}, "no secret gives this signature"),
    "cut off": ({"X-Webhook-Signature": plain()[:-1]}, "no secret gives this signature"),
    "not ascii": ({"X-Webhook-Signature": "ü" * 64}, "no secret gives this signature"),
    "other body": ({"X-Webhook-Signature": plain(b"{}")}, "no secret gives this signature"),
    "other secret": ({"X-Webhook-Signature": plain(BODY, "x")}, "no secret gives this signature"),
    "stale": (standard(at=str(NOW // 1000 - 301)), "webhook-timestamp is 301 s old"),
    "ahead": (standard(at=str(NOW // 1000 + 301)), "webhook-timestamp is 301 s ahead"),
    "no instant": (
        {k: v for k, v in standard().items() if k != "webhook-timestamp"},
        "webhook-timestamp is not a number of seconds",
    ),
    "odd instant": (standard(at="1_700_000_000"), "webhook-timestamp is not a number of seconds"),
    "no id": (
        {k: v for k, v in standard().items() if k != "webhook-id"},
        "webhook-id is missing",
    ),
    "other id": ({**standard(), "webhook-id": "m_2"}, "no secret gives this signature"),
    "other version": (
        {**standard(), "webhook-signature": standard()["webhook-signature"].replace("v1", "v2")},
        "no secret gives this signature",
    ),
    "stale beside a plain one": (
        {**standard(at="1"), "X-Webhook-Signature": plain()},
        "webhook-timestamp is 1699999999 s old",
    ),
}


@pytest.mark.parametrize("headers, why", BAD.values(), ids=BAD)
def test_a_missing_wrong_or_stale_signature_is_refused_and_the_log_is_told_why(
    headers: Mapping[str, str], why: str
) -> None:
    """S0.57 S0.58"""
    verdict = judged(headers)
    assert (verdict.ok, verdict.reason) == (False, why)


def test_outsiders_are_told_nothing_but_that_it_is_bad() -> None:
    """S0.57"""
    assert BAD_SIGNATURE == "bad signature"


def test_a_body_that_was_written_anew_is_another_body() -> None:
    """S0.56"""
    again = BODY.replace(b": ", b":")
    assert not judged({"X-Webhook-Signature": plain()}, body=again).ok
    assert not judged(standard(), body=again).ok


def test_each_of_several_secrets_is_accepted_while_one_replaces_another() -> None:
    """S0.59"""
    headers = {"X-Webhook-Signature": plain(BODY, "old")}
    assert judged(headers, "new", "old").ok
    assert not judged(headers, "new").ok


@pytest.mark.parametrize("secrets", [(), ("",), ("whsec_",)], ids=repr)
def test_without_a_secret_nothing_is_accepted(secrets: tuple[str, ...]) -> None:
    """S0.57: an empty key would let anybody sign."""
    empty = standard(key=b"")
    for secret in ("", *secrets):
        bare = {"X-Webhook-Signature": plain(BODY, secret)}
        assert not verify(bare, BODY, secrets, NOW).ok
    assert not verify(empty, BODY, secrets, NOW).ok


@pytest.mark.parametrize("secret", ["", "whsec_"])
def test_nothing_is_signed_with_an_empty_secret(secret: str) -> None:
    with pytest.raises(Refused, match="the secret is empty"):
        sign(BODY, secret, "m_1", NOW)


def test_a_secret_without_prefix_may_be_read_as_base64_by_who_signs() -> None:
    bare = WHSEC.removeprefix("whsec_")
    assert judged(standard(key=KEY), bare).ok
    assert judged(standard(key=bare.encode()), bare).ok


def test_what_is_signed_here_carries_both_signatures() -> None:
    """S0.55 S0.60"""
    assert sign(BODY, WHSEC, "m_1", NOW) == {
        "X-Webhook-Signature": f"sha256={plain(BODY, WHSEC)}",
        **standard(),
    }


def test_the_vector_that_standard_webhooks_publishes_holds() -> None:
    """S0.55"""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - as published
    body = b'{"test": 2432232314}'
    verdict = verify(headers, body, [secret], 1_614_265_330_000)
    assert verdict == SignatureCheck(
        ok=True, scheme="standard", message_id="msg_p5jXN8AQM9LWM0D4loKWxJek"
    )


def test_the_secret_of_a_call_signs_no_other_call() -> None:
    """S0.59"""
    mine, other = derive_secret(PLAIN, "p_1"), derive_secret(PLAIN, "p_2")
    assert mine == hmac.new(PLAIN.encode(), b"p_1", hashlib.sha256).hexdigest()
    assert judged(sign(BODY, mine, "m_1", NOW), mine).ok
    assert not judged(sign(BODY, mine, "m_1", NOW), other, PLAIN).ok


@given(
    body=st.binary(max_size=200), secret=st.text(min_size=1, max_size=40), at=st.integers(0, NOW)
)
def test_what_is_signed_is_accepted_and_nothing_but_it(body: bytes, secret: str, at: int) -> None:
    """S0.55 S0.56"""
    headers = sign(body, secret, "m_1", at)
    for way in ({"X-Webhook-Signature": headers["X-Webhook-Signature"]}, headers):
        assert verify(way, body, [secret], at).ok
        assert not verify(way, body + b" ", [secret], at).ok
        assert not verify(way, body, [secret + "x"], at).ok


@given(
    headers=st.dictionaries(
        st.sampled_from(sorted({*standard(), "X-Webhook-Signature"})), st.text()
    )
)
def test_no_header_makes_it_stumble(headers: dict[str, str]) -> None:
    """S0.57"""
    assert not verify(headers, BODY, [PLAIN, WHSEC], NOW).ok
