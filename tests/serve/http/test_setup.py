"""From a configuration to what protects a server."""

import pytest
from tests.support.http_client import MakeClient

from perdure import Runtime
from perdure.config import ServerConfig
from perdure.config.settings import RateLimits, TokenConfig
from perdure.core.roles import Principal
from perdure.errors import ConfigError
from perdure.serve.http.app import application
from perdure.serve.http.setup import is_loopback, setup
from perdure.serve.limits import Rate

OPS = TokenConfig(name="ops", token="t0", role="operator", tenant="acme", on_behalf=True)  # noqa: S106


def test_tokens_come_from_the_configuration_or_else_from_the_environment() -> None:
    ops = Principal("ops", "operator", "acme", on_behalf=True)
    assert setup(ServerConfig(tokens=(OPS,)), "env", None).principals == {"t0": ops}
    assert setup(ServerConfig(), "env", None).principals == {"env": Principal("admin", "admin")}
    assert setup(ServerConfig(), "", None).principals == {}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "no-such-name.invalid"])  # noqa: S104
def test_nobody_but_this_machine_reaches_a_server_without_a_token(host: str) -> None:
    """S0.61 G11"""
    with pytest.raises(ConfigError) as caught:
        setup(ServerConfig(host=host), None, None)
    assert caught.value.code == "TOKEN_NEEDED"
    assert "PERDURE_TOKEN" in (caught.value.hint or "")
    assert setup(ServerConfig(host=host), "env", None).principals


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    assert setup(ServerConfig(host=host), None, None).principals == {}


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 200),
        ({"Host": "localhost:4747"}, 200),
        ({"X-Request-Id": "1", "Traceparent": "00-1-1-00", "User-Agent": "x"}, 200),
        ({"Host": "agents.example"}, 401),
        ({"X-Forwarded-For": "8.8.8.8"}, 401),
        ({"X-Forwarded-Host": "agents.example"}, 401),
        ({"Forwarded": "for=8.8.8.8"}, 401),
        *[
            ({name: "8.8.8.8"}, 401)
            for name in (
                "Via",
                "X-Forwarded-Proto",
                "X-Forwarded-Prefix",
                "X-Real-IP",
                "CF-Connecting-IP",
                "CF-Ray",
                "CDN-Loop",
                "True-Client-IP",
                "Fastly-Client-IP",
                "Fly-Client-IP",
                "X-Client-IP",
                "X-Cluster-Client-IP",
                "X-Original-Forwarded-For",
                "X-Envoy-External-Address",
                "X-Azure-ClientIP",
                "X-Amzn-Trace-Id",
                "Tailscale-User-Login",
                "CloudFront-Viewer-Address",
                "X-NF-Client-Connection-IP",
                "WL-Proxy-Client-IP",
                "X-Sucuri-ClientIP",
                "DO-Connecting-IP",
                "X-Tunnel-Skip-AntiPhishing-Page",
            )
        ],
    ],
)
async def test_what_a_tunnel_passes_on_is_not_from_this_machine(
    rt: Runtime, client_of: MakeClient, headers: dict[str, str], status: int
) -> None:
    """S0.61 G11"""
    made = setup(ServerConfig(), None, "https://agents.example")
    app = application(rt, made.authenticate, made.rules)
    client = client_of(app, as_=None, headers={"Host": "127.0.0.1:4747", **headers})
    assert (await client.get("/sessions")).status_code == status


async def test_a_request_through_a_proxy_learns_that_the_server_needs_tokens(
    rt: Runtime, client_of: MakeClient
) -> None:
    made = setup(ServerConfig(), None, None)
    app = application(rt, made.authenticate, made.rules)
    client = client_of(app, as_=None, headers={"Host": "127.0.0.1:4747", "Via": "1.1 box"})
    for headers in ({}, {"Authorization": "Bearer sesame"}):
        refusal = (await client.get("/sessions", headers=headers)).json()
        assert refusal["code"] == "NOT_AUTHENTICATED"
        assert "through a proxy or tunnel, so set server.tokens" in refusal["hint"]


def test_the_known_hosts_are_loopback_the_public_one_and_the_configured_one() -> None:
    rules = setup(ServerConfig(host="Box.example"), "t", "https://agents.example/base").rules
    for good in ("localhost:4747", "127.0.0.1", "[::1]:80", "box.example", "agents.example:443"):
        assert rules.is_allowed_host(good), good
    for bad in ("evil.example", "", "agents.example.evil", "192.168.1.5", "[", "localhost@evil"):
        assert not rules.is_allowed_host(bad), bad
    everywhere = setup(ServerConfig(host="0.0.0.0"), "t", None).rules  # noqa: S104
    assert everywhere.is_allowed_host(
        "192.168.1.5:4747"
    )  # a number cannot be bound to another name
    assert not everywhere.is_allowed_host("evil.example")


def test_a_burst_grows_and_shrinks_with_its_rate() -> None:
    usual = setup(ServerConfig(), None, None).rules
    assert (usual.per_source, usual.per_id) == (Rate(100, 200), Rate(20, 50))
    limits = RateLimits(per_source=1000.0, per_id=1 / 60)
    changed = setup(ServerConfig(rate_limit=limits), None, None).rules
    assert (changed.per_source, changed.per_id) == (Rate(1000, 2000), Rate(1 / 60, 1))


def test_the_public_address_is_the_configured_one_or_host_and_port() -> None:
    assert setup(ServerConfig(), None, "https://a.example").public_url == "https://a.example"
    assert setup(ServerConfig(port=80), None, None).public_url == "http://127.0.0.1:80"
    assert setup(ServerConfig(host="::1"), None, None).public_url == "http://[::1]:4747"


def test_no_token_is_ever_shown() -> None:
    """SX.7"""
    made = setup(ServerConfig(tokens=(OPS,)), None, None)
    assert "t0" not in made.protection
    assert made.protection == "tokens: ops (operator)"


def test_a_token_that_can_be_guessed_is_a_warning_that_does_not_show_it() -> None:
    (warning,) = setup(ServerConfig(), "q", None).warnings
    assert warning.startswith("the token of admin has 1 of at least 8 characters")
    assert "openssl" in warning
    assert setup(ServerConfig(), "long-enough", None).warnings == []
