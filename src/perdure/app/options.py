"""Options of a Runtime, and the address that a server gives to the runtime it loads."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.runtime.agents.prices import Prices
from perdure.runtime.engine.heartbeat import LEASE_MS
from perdure.runtime.records.retention import KEEP_MS
from perdure.runtime.telemetry import Telemetry
from perdure.runtime.webhooks.address_filter import AddressFilter
from perdure.runtime.webhooks.callbacks import PublicAddress
from perdure.runtime.webhooks.outbox import WARNING_SHARE, WebhookTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """Everything that a runtime is made of, besides its store and agents."""

    deps: Any = None
    worker: bool = False
    address: PublicAddress = field(default_factory=PublicAddress)
    targets: tuple[WebhookTarget, ...] | None = None  # None: no configuration names receivers
    address_filter: AddressFilter = field(default_factory=AddressFilter)
    warning_share: float = WARNING_SHARE
    telemetry: Telemetry = field(default_factory=Telemetry)
    prices: Prices = field(default_factory=Prices)
    lease_ms: int = LEASE_MS
    is_tracked: bool = True
    resumes_running: bool = True
    keep_settled_ms: int = KEEP_MS


_server_address: ContextVar[PublicAddress] = ContextVar("perdure_server_address")


@contextmanager
def serving_at(url: str, webhook_secret: str | None) -> Iterator[None]:
    """Give this address to runtimes that are created here without one of their own."""
    token = _server_address.set(PublicAddress(url, webhook_secret))
    try:
        yield
    finally:
        _server_address.reset(token)


def complete_address(address: PublicAddress) -> PublicAddress:
    """Return the address, with the server's URL and secret where it has none."""
    server = _server_address.get(None)
    if server is None:
        return address
    return replace(
        address,
        url=address.url or server.url,
        webhook_secret=address.webhook_secret or server.webhook_secret,
    )
