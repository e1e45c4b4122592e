"""Options of a Runtime, and the address that a server gives to the runtime it loads."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

from perdure.address_filter import AddressFilter, parse_url
from perdure.core.driver.plan import POISON_AFTER
from perdure.core.options import check_options
from perdure.core.webhooks.deliveries import TYPES
from perdure.errors import ConfigError, Refused
from perdure.options import RecoveryOptions, WebhookTarget
from perdure.runtime.agents.prices import Prices
from perdure.runtime.engine.heartbeat import LEASE_MS
from perdure.runtime.records.retention import KEEP_MS
from perdure.runtime.telemetry import Telemetry
from perdure.runtime.webhooks.callbacks import PublicAddress
from perdure.runtime.webhooks.outbox import WARNING_SHARE, Receiver
from perdure.tasks.settings import TaskSettings

_RECOVERY: Final = 'write Runtime(recovery={"running": "fail", "poison_after": 3})'
_RECEIVER: Final = (
    'a receiver is {"url": "https://…", "secret": …, "on": [' + ", ".join(TYPES) + "]}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """Everything that a runtime is made of, besides its store and agents."""

    deps: Any = None
    worker: bool = False
    address: PublicAddress = field(default_factory=PublicAddress)
    targets: tuple[Receiver, ...] | None = None  # None: no configuration names receivers
    address_filter: AddressFilter = field(default_factory=AddressFilter)
    warning_share: float = WARNING_SHARE
    telemetry: Telemetry = field(default_factory=Telemetry)
    prices: Prices = field(default_factory=Prices)
    lease_ms: int = LEASE_MS
    is_tracked: bool = True
    resumes_running: bool = True
    poison_after: int = POISON_AFTER
    keep_settled_ms: int = KEEP_MS
    tasks: TaskSettings = field(default_factory=TaskSettings)


def webhook_targets(
    receivers: Sequence[WebhookTarget] | None,
) -> tuple[Receiver, ...] | None:
    """Return the receivers that `Runtime(webhooks=)` names, as in YAML. Raises ConfigError."""
    if receivers is None:
        return None
    if isinstance(receivers, str | Mapping) or not isinstance(receivers, Sequence):
        raise ConfigError(f"webhooks is {receivers!r:.100} and must be a list", hint=_RECEIVER)
    return tuple(_webhook_target(receiver) for receiver in receivers)


def _webhook_target(receiver: WebhookTarget) -> Receiver:
    check_options(receiver, WebhookTarget, "webhooks: a receiver")
    occasions = receiver.get("on", tuple(TYPES))
    if isinstance(occasions, str) or set(occasions) - set(TYPES):
        raise ConfigError(f"webhooks: on is {occasions!r}", hint=_RECEIVER)
    try:
        parse_url(receiver["url"])
    except Refused as error:
        raise ConfigError(f"webhooks: {error.message}", hint=error.hint) from error
    return Receiver(receiver["url"], receiver.get("secret"), frozenset(occasions))


def allowed_addresses(hosts: Sequence[str]) -> AddressFilter:
    """Return the filter that `Runtime(webhook_allow=)` describes. Raises ConfigError."""
    hint = "name hosts and networks, such as ci.internal or 10.0.0.0/8"
    if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
        raise ConfigError("webhook_allow must be a list of hosts and networks", hint=hint)
    try:
        return AddressFilter.from_allow_list(hosts)
    except ValueError as error:
        raise ConfigError(f"webhook_allow: {error}", hint=hint) from error


def recovery_fields(recovery: RecoveryOptions) -> dict[str, Any]:
    """Return the options that `Runtime(recovery=)` names, as in YAML. Raises ConfigError."""
    check_options(recovery, RecoveryOptions, "recovery")
    running, count = recovery.get("running", "resume"), recovery.get("poison_after", POISON_AFTER)
    if running not in ("resume", "fail"):
        raise ConfigError(
            f"recovery: running is {running!r} and must be resume or fail", hint=_RECOVERY
        )
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(
            f"recovery: poison_after is {count!r} and must be 1 or more", hint=_RECOVERY
        )
    return {"resumes_running": running == "resume", "poison_after": count}


def check_flag(value: Any, name: str) -> bool:
    """Return a value that must be True or False. Raises ConfigError."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r} and must be True or False")
    return value


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
