"""What all drives of a runtime share, and pending calls as their users hold them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from perdure.core.pending.record import PendingRecord
from perdure.core.webhooks import signatures as webhooks
from perdure.errors import PerdureError, Refused
from perdure.runtime.agents.prices import Prices
from perdure.runtime.inbox.pending import PendingInbox
from perdure.runtime.inbox.sessions import SessionInbox
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.streaming import Bus
from perdure.runtime.telemetry import Telemetry
from perdure.runtime.values import PendingCall
from perdure.runtime.views import decision_of, instant, problem_of
from perdure.runtime.webhooks.outbox import Outbox
from perdure.store.base import Store


@dataclass(slots=True)
class Resources:
    """What every drive of a runtime works with."""

    store: Store
    outside: SessionInbox
    settling: PendingInbox
    bus: Bus
    outbox: Outbox
    deps: Any = None
    public_url: str | None = None
    webhook_secret: str | None = field(default=None, repr=False)
    former_secrets: tuple[str, ...] = field(default=(), repr=False)  # still good for checking
    threads: anyio.CapacityLimiter | None = None
    tracked: bool = True  # sessions are kept, so that somebody can be asked and answer
    near: SessionCache = field(default_factory=SessionCache)
    telemetry: Telemetry = field(default_factory=Telemetry)
    prices: Prices = field(default_factory=Prices)

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        """What a signature may have been made with; none if there is no webhook_secret."""
        return () if self.webhook_secret is None else (self.webhook_secret, *self.former_secrets)

    def secrets_for(self, pending_id: str) -> list[str]:
        """What may sign a message about one call: its own secret, or the server's."""
        derived = [webhooks.derive(secret, pending_id) for secret in self.webhook_secrets]
        return [*derived, *self.webhook_secrets]

    async def own_secrets(self, pending_id: str) -> list[str]:
        """The secrets that were given for one call; none for a call that is not known."""
        try:
            record = await self.settling.pending(pending_id)
        except PerdureError:
            return []
        return await self.outbox.own_secrets(record.hooks)

    def callback_url(self, pending_id: str) -> str | None:
        """Where a result may be posted; None without a public address."""
        return webhooks.callback_url(self.public_url, pending_id)

    def callback_secret(self, pending_id: str) -> str:
        """What signs the result of one call: derived, never stored."""
        if self.webhook_secret is None:
            raise Refused(
                "there is no webhook_secret to derive a callback secret from",
                code="NO_WEBHOOK_SECRET",
                hint="give Runtime(webhook_secret=…), or server.webhook_secret in YAML",
            )
        return webhooks.derive(self.webhook_secret, pending_id)

    def pending_call(
        self, record: PendingRecord, *, inside: bool = False, own: Sequence[str] = ()
    ) -> PendingCall:
        """A pending record as users hold it; `inside` its own tool it knows its secret."""
        mark, secret = self._inside(record.id, own) if inside else (None, None)
        return PendingCall(
            id=record.id,
            kind=record.kind,
            status=record.status.value,
            session_id=record.session_id,
            tenant=record.tenant,
            agent=record.agent,
            tool=record.tool,
            args=record.input if inside else record.shown.input,
            call_id=record.call_id,
            effect_id=record.effect_id,
            prompt=record.prompt,
            external_ref=record.external_ref,
            created_at=instant(record.time.created),
            expires_at=None if record.timeout is None else instant(record.timeout),
            decision=decision_of(record.decision if inside else record.shown.decision),
            ancestry=record.ancestry,
            problem=problem_of(record.problem),
            callback_url=self.callback_url(record.id) if record.kind == "tool" else None,
            _secret=secret,
            _mark_started=mark,
        )

    def _inside(
        self, pending_id: str, own: Sequence[str]
    ) -> tuple[Callable[[], Awaitable[None]], Callable[[], str]]:
        """What only the tool of a call can do with it."""

        async def mark() -> None:
            await self.settling.mark_started(pending_id)

        def secret() -> str:
            return own[0] if own else self.callback_secret(pending_id)

        return mark, secret
