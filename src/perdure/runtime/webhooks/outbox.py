"""Outbox of webhook deliveries: created in the same commit as the fact that they report.

Every commit of a fact passes through `with_deliveries`, which adds the stream and the entry of one
delivery per receiver. Without receivers it adds nothing and costs nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from perdure.address_filter import AddressFilter
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session.naming import SessionRecord
from perdure.core.webhooks import deliveries
from perdure.core.webhooks.deliveries import (
    CALL_HOOK,
    KEY_ONLY,
    KIND,
    SERVER_KIND,
    TYPES,
    DeliveryRecord,
    Hook,
    Occasion,
)
from perdure.ids import secret_id
from perdure.runtime.views import call_view
from perdure.runtime.webhooks.callbacks import PublicAddress
from perdure.store.base import Put, Record, Store, VersionMoved, Write

WARNING_SHARE: Final = 0.8  # of a call's time, after which receivers are warned that it will expire
MAX_FACT_BYTES: Final = 16 * 1024  # of a fact in a body; larger fields are left out

SERVER: Final = "server:"  # prefix of the names of configured targets
_ENDS: Final[dict[str, Occasion]] = {"agent_complete": "completed", "agent_error": "failed"}
_MARK: Final = b'"hooks":'
_HOOKED: Final = ("pending", "session")  # kinds of the entries that name their receivers


@dataclass(frozen=True, slots=True)
class Receiver:
    """Configured receiver of the deliveries of all sessions, on these occasions."""

    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    on: frozenset[str] = frozenset(TYPES)
    remote_name: str = ""  # published by another process, whose configuration has its URL

    @property
    def name(self) -> str:
        """The name that deliveries hold instead of the URL, which may be a secret."""
        return self.remote_name or SERVER + hashlib.sha256(self.url.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Fact:
    """A fact to deliver."""

    occasion: Occasion
    tenant: str
    session_id: str
    hooks: tuple[str, ...]
    data: dict[str, Any]
    call: PendingRecord | None = None
    at: int | None = None  # deliver not before this


@dataclass(slots=True)
class Outbox:
    """Receivers of webhooks, and the writes that create their deliveries."""

    store: Store
    address: PublicAddress
    address_filter: AddressFilter = field(default_factory=AddressFilter)
    targets: tuple[Receiver, ...] = ()
    is_configured: bool = (
        False  # by our own configuration; else another process may publish targets
    )
    warning_share: float = WARNING_SHARE

    # --- with a commit ------------------------------------------------------------------------

    def with_deliveries(
        self, writes: Sequence[Write], puts: Sequence[Put]
    ) -> tuple[Sequence[Write], Sequence[Put]]:
        """Return a commit with the deliveries of its facts."""
        if not self.targets:
            for put in puts:
                if put.kind in _HOOKED and isinstance(put.data, bytes) and _MARK in put.data:
                    break
            else:
                return writes, puts
        more: list[Write] = []
        entries: list[Put] = []
        for fact in self._facts(writes, puts):
            for target in self._target_names(fact):
                write, put = self._delivery(fact, target)
                more.append(write)
                entries.append(put)
        return [*writes, *more], [*puts, *entries]

    def _target_names(self, fact: _Fact) -> Iterator[str]:
        excluded = KEY_ONLY if fact.call else (KEY_ONLY, CALL_HOOK)
        yield from (name for name in fact.hooks if not name.startswith(excluded))
        yield from (target.name for target in self.targets if fact.occasion in target.on)

    def _facts(self, writes: Sequence[Write], puts: Sequence[Put]) -> Iterator[_Fact]:
        session: SessionRecord | None = None
        moved = {call for write in writes for call in _changed_deadlines(write.records)}
        for put in puts:
            if put.kind == "session" and isinstance(put.data, bytes):
                session = index.decode(put.data)
            elif put.kind == "pending" and isinstance(put.data, bytes):
                yield from self._call_facts(pending.decode(put.data), put, moved)
        for write in writes:
            for record in write.records:
                if record.type in _ENDS:
                    yield _end_fact(record, write.stream, session)

    def _call_facts(self, record: PendingRecord, put: Put, moved: set[str]) -> Iterator[_Fact]:
        names = (record.tenant, record.session_id, record.hooks)
        data = call_view(record, self.callback_url(record)).to_json()
        occasion = deliveries.call_occasion(record, is_new=put.expect == 0)
        if occasion is not None:
            yield _Fact(occasion, *names, data, record)
        at = deliveries.warning_at(record, self.warning_share)
        if at is not None and (put.expect == 0 or record.id in moved):
            yield _Fact("expiring", *names, data, record, at)

    def callback_url(self, record: PendingRecord) -> str | None:
        """Return where the result of a call may be posted."""
        return self.address.callback_url(record.id) if record.kind == "tool" else None

    def _delivery(self, fact: _Fact, target: str) -> tuple[Write, Put]:
        now, delivery_id = self.store.now(), secret_id("d")
        at = now if fact.at is None else max(now, fact.at)
        delivery = DeliveryRecord(
            id=delivery_id,
            occasion=fact.occasion,
            target=target,
            tenant=fact.tenant,
            session_id=fact.session_id,
            pending_id=None if fact.call is None else fact.call.id,
            timeout=fact.call.timeout if fact.call and fact.occasion == "expiring" else None,
            created_at=now,
            begun_at=at,
            next_at=at,
        )
        body = {"id": delivery_id, "type": TYPES[fact.occasion], "timestamp": at}
        data = msgspec.json.encode({**body, "data": _bound_size(fact.data)})
        stream = deliveries.delivery_stream(delivery_id)
        record = Record("delivery", data, now)
        return (
            Write(stream, [record], create=_kind(target), head=0, wake=at),
            delivery_put(delivery, 0),
        )

    # --- receivers ----------------------------------------------------------------------------

    async def hook_put(self, stream: str, hook: Hook) -> tuple[str, Put]:
        """Return the name and the put of an additional receiver of a session or call.

        Raises Refused if its address is not allowed.
        """
        if hook.url:
            await self.address_filter.check(hook.url)
        name = hook.prefix + hashlib.sha256(f"{stream}|{hook.url}".encode()).hexdigest()[:32]
        return name, Put("hook", name, 0, stream, "kept", None, deliveries.encode(hook))

    async def own_secrets(self, hooks: Sequence[str]) -> list[str]:
        """Return the secrets of the receivers that were given for a call itself."""
        own = [name for name in hooks if name.startswith((CALL_HOOK, KEY_ONLY))]
        entries = [await self.store.get("hook", name) for name in own]
        stored = [deliveries.decode_hook(entry.data) for entry in entries if entry is not None]
        return [hook.secret for hook in stored if hook.secret]

    async def find_hook(self, name: str) -> Hook | None:
        """Return the URL and secret of a receiver; None if it was removed or is not configured."""
        if name.startswith(SERVER):
            target = {item.name: item for item in self.targets if item.url}.get(name)
            hook = None if target is None else Hook(target.url, target.secret)
        else:
            entry = await self.store.get("hook", name)
            hook = None if entry is None else deliveries.decode_hook(entry.data)
        if hook is None or hook.secret is not None:
            return hook
        return Hook(hook.url, self.address.notify_secret)

    # --- configured targets -------------------------------------------------------------------

    async def publish_targets(self) -> None:
        """Store the names of the targets, not their URLs, for processes without a configuration."""
        published = [_PublishedTarget(target.name, sorted(target.on)) for target in self.targets]
        entry = await self.store.get("hook", SERVER)
        data = msgspec.json.encode(published)
        if not self.is_configured or data == (b"[]" if entry is None else entry.data):
            return
        put = Put("hook", SERVER, entry.version if entry else 0, SERVER, "kept", None, data)
        with suppress(VersionMoved):  # another worker of the same fleet has stored them
            await self.store.commit([Write(SERVER, create="hooks")], [put])

    async def load_targets(self) -> None:
        """Load the names of targets that another process has published."""
        entry = None if self.is_configured else await self.store.get("hook", SERVER)
        if entry is not None:
            published = msgspec.json.decode(entry.data, type=list[_PublishedTarget])
            self.targets = tuple(
                Receiver("", None, frozenset(target.on), target.name) for target in published
            )


class _PublishedTarget(msgspec.Struct):
    name: str
    on: list[str]


def _kind(target: str) -> str:
    return SERVER_KIND if target.startswith(SERVER) else KIND


def delivery_put(delivery: DeliveryRecord, expect: int) -> Put:
    """Return the put of a delivery's entry."""
    stream, data = deliveries.delivery_stream(delivery.id), deliveries.encode(delivery)
    return Put(KIND, delivery.id, expect, stream, str(delivery.status), None, data)


class _ProgressRecord(msgspec.Struct):
    pending_id: str = msgspec.field(name="pendingID")
    expires_at: int | None = msgspec.field(default=None, name="expiresAt")


def _changed_deadlines(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        if record.type == "progress" and b'"expiresAt"' in record.data:
            yield msgspec.json.decode(record.data, type=_ProgressRecord).pending_id


def _end_fact(record: Record, stream: str, session: SessionRecord | None) -> _Fact:
    occasion = _ENDS[record.type]
    payload = msgspec.json.decode(record.data)
    tenant, session_id = index.parse_session_stream(stream) or ("", "")
    data = {
        "sessionID": session_id,
        "tenant": tenant,
        "agent": "" if session is None else session.agent,
        "taskID": payload.get("run"),
        "state": occasion,
    }
    if occasion == "completed":
        data["output"] = payload.get("output")
    else:
        data["error"] = {key: payload.get(key) for key in ("error", "code", "hint")}
    hooks = () if session is None else session.hooks
    return _Fact(occasion, tenant, session_id, hooks, data)


def _bound_size(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fact without its large fields: many receivers limit the size of a body."""
    if len(msgspec.json.encode(data)) <= MAX_FACT_BYTES:
        return data
    large = {k for k, v in data.items() if len(msgspec.json.encode(v)) > MAX_FACT_BYTES // 8}
    return {**{k: None if k in large else v for k, v in data.items()}, "truncated": sorted(large)}
