"""Resources that all drives of a runtime share, and pending calls as public values."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.core.driver.plan import POISON_AFTER
from perdure.core.pending.record import PendingRecord
from perdure.errors import ConfigError, PerdureError, Refused
from perdure.runtime.agents.prices import Prices
from perdure.runtime.inbox.children import ChildInbox
from perdure.runtime.inbox.commits import Commits
from perdure.runtime.inbox.pending import PendingInbox
from perdure.runtime.inbox.sessions import SessionInbox
from perdure.runtime.inbox.tree_calls import OpenTrees
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.verification import LogVerifier
from perdure.runtime.streaming import Bus
from perdure.runtime.telemetry import Telemetry
from perdure.runtime.thread_calls import callable_from_threads
from perdure.runtime.views import call_view
from perdure.runtime.webhooks.callbacks import PublicAddress
from perdure.runtime.webhooks.outbox import Outbox
from perdure.store.base import Store
from perdure.views.base import bind
from perdure.views.calls import PendingCall
from perdure.views.literals import Act

if TYPE_CHECKING:
    from perdure.tasks.session_shell import SessionShell

logger = logging.getLogger("perdure")


class Deps:
    """Dependencies that the user passes to tools; a factory is entered when the runtime opens."""

    def __init__(self, source: Any = None) -> None:
        self._source = source
        self.value: Any = None

    async def enter(self, stack: AsyncExitStack) -> None:
        """Set the value for the time that the stack is open. Raises ConfigError."""
        if not callable(self._source):
            self.value = self._source
            return
        context = self._source()
        if not isinstance(context, AbstractAsyncContextManager):
            raise ConfigError(
                f"deps {self._source!r} is called when the runtime opens, and did not return "
                "an async context manager",
                code="DEPS_INVALID",
                hint="pass the value itself, or a function with @asynccontextmanager",
            )
        self.value = await stack.enter_async_context(context)


@dataclass(frozen=True, slots=True)
class Resources:
    """Objects that every drive of a runtime uses."""

    store: Store
    session_inbox: SessionInbox
    pending_inbox: PendingInbox
    child_inbox: ChildInbox
    commits: Commits
    bus: Bus
    outbox: Outbox
    cache: SessionCache
    verifier: LogVerifier
    address: PublicAddress
    deps: Deps
    telemetry: Telemetry
    prices: Prices
    shell: "Callable[[], SessionShell]"  # it is built with the tasks, at their first use
    runtime: Callable[[str], Any]  # of a tenant, for tools
    poison_after: int = POISON_AFTER  # processes that stopped while they drove a session
    records_starts: bool = False  # before the first effect of a run, not with its outcome
    is_tracked: bool = True  # sessions are stored, so that an approver can decide later

    @property
    def open_trees(self) -> OpenTrees:
        """Reader of the open calls of trees of sessions."""
        return OpenTrees(self.store, self.session_inbox, self.child_inbox)

    async def own_secrets(self, pending_id: str) -> list[str]:
        """Return the secrets that were given for one call; none for an unknown call."""
        try:
            record = await self.pending_inbox.pending_record(pending_id)
        except PerdureError:
            return []
        return await self.outbox.own_secrets(record.hooks)

    def pending_call(
        self,
        record: PendingRecord,
        can: tuple[Act, ...] | None = None,
        schema: dict[str, Any] | None = None,
        *,
        inside: bool = False,
        own: Sequence[str] = (),
    ) -> PendingCall:
        """Return a pending record as the public value; `inside` its own tool with its secret.

        `can` is what the caller may do about it, and `schema` what a call without one has.
        """
        url = self.address.callback_url(record.id) if record.kind == "tool" else None
        call = bind(call_view(record, url, can, schema, secrets=inside), _record=record)
        if not inside:
            return call
        mark, secret = self._tool_access(record.id, own)
        return bind(call, _mark_started=mark, _secret=secret)

    def _tool_access(
        self, pending_id: str, own: Sequence[str]
    ) -> tuple[Callable[[], Awaitable[None]], Callable[[], str]]:
        """Return the functions that only the tool of a call gets."""

        async def mark() -> None:
            await self.pending_inbox.mark_started(pending_id)

        def secret() -> str:
            try:
                return own[0] if own else self.address.callback_secret(pending_id)
            except Refused as error:  # the operator can help, and the model cannot
                logger.warning("call %s: %s; %s", pending_id, error.message, error.hint)
                raise

        return callable_from_threads(mark), secret
