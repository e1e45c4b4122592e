"""Whom the server tells, as a configuration says it."""

from collections.abc import Callable

import pytest

from perdure import Runtime
from perdure.config import load
from perdure.errors import ConfigError

Refusal = Callable[[str], ConfigError]
Write = Callable[[str], str]


def test_webhooks_have_an_address_perhaps_a_secret_and_occasions(write: Write) -> None:
    """S0.60"""
    server = load(
        write("""
        server:
          webhooks:
            - {url: https://ops.example/hook, secret: hush, on: [expired, failed]}
            - {url: http://localhost:9000}
          webhook_allow: [localhost, 10.0.0.0/8, "::1"]
          expiring_after: 0.5
        """)
    ).server
    first, second = server.webhooks
    assert (first.url, first.secret, first.on) == (
        *("https://ops.example/hook", "hush", ("expired", "failed")),
    )
    assert second.on == ("pending", "expiring", "decided", "expired", "completed", "failed")
    assert server.webhook_allow == ("localhost", "10.0.0.0/8", "::1/128")
    assert server.expiring_after == 0.5
    assert "ops.example" not in repr(server)
    assert "hush" not in repr(server)


def test_a_runtime_tells_whom_its_configuration_names(write: Write) -> None:
    """S0.60"""
    rt = Runtime.from_config(
        write("""
        server:
          webhooks: [{url: https://ops.example/hook, on: [failed]}]
          webhook_allow: [localhost]
          expiring_after: 0.5
        """)
    )
    outbox = rt._resources.outbox
    assert [(one.url, one.on) for one in outbox.targets] == [
        ("https://ops.example/hook", frozenset({"failed"}))
    ]
    assert (outbox.warning_share, outbox.is_configured) == (0.5, True)
    assert outbox.address_filter.names == {"localhost"}


@pytest.mark.parametrize(
    "said, told",
    [
        ("webhooks: [{url: ftp://x}]", "webhooks[0].url: must be a URL"),
        ("webhooks: [{url: http://x, on: [never]}]", "webhooks[0].on[0]: invalid occasion"),
        ("webhook_allow: [10.0.0.0/99]", "webhook_allow[0]: must be an IP address or network"),
        ("webhook_allow: ['*']", "webhook_allow[0]: must be an IP address or network"),
        ("expiring_after: 1.5", "expiring_after: must be a number between 0 and 1"),
        ("expiring_after: true", "expiring_after: must be a number between 0 and 1"),
    ],
)
def test_a_mistake_is_told_by_its_key(refusal: Refusal, said: str, told: str) -> None:
    """S4.41"""
    assert f"perdure.yaml:2: server.{told}" in refusal(f"server:\n  {said}").message


@pytest.mark.parametrize("host", ["a..b.example", f"{'a' * 70}.example"])
def test_a_host_that_no_resolver_takes_is_refused(refusal: Refusal, host: str) -> None:
    error = refusal(f"server: {{webhooks: [{{url: 'https://{host}/x'}}]}}")
    assert f"{host!r} is not one" in str(error)
    error = refusal(f"server: {{webhook_allow: ['{host}']}}")
    assert f"{host!r} is not a host name" in str(error)
