"""Deliveries that must happen: made in the very commit of the fact that they report.

Whoever commits a fact asks `also` what goes with it: the stream and the entry of a delivery for
each of those who are told. Without anybody to tell, that is nothing, and costs nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session.naming import SessionRecord
from perdure.core.webhooks import deliveries
from perdure.core.webhooks.deliveries import (
    CALL_HOOK,
    FOR_ALL,
    KEY_ONLY,
    KIND,
    TYPES,
    Delivery,
    Hook,
    Occasion,
)
from perdure.core.webhooks.signatures import callback_url, derive
from perdure.runtime.ids import secret_id
from perdure.runtime.views import pending_json
from perdure.runtime.webhooks.addresses import Screen
from perdure.store.base import Put, Record, Store, VersionMoved, Write

SHARE: Final = 0.8  # of a call's time, after which it is told that it will expire
LARGEST: Final = 16 * 1024  # bytes of a fact in a body; what is larger can be asked for

SERVER: Final = "server:"  # how the targets of the server's own list are named
_ENDS: Final[dict[str, Occasion]] = {"agent_complete": "completed", "agent_error": "failed"}
_MARK: Final = b'"hooks":'


@dataclass(frozen=True, slots=True)
class Target:
    """Somebody who is told of everything, on these occasions."""

    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    on: frozenset[str] = frozenset(TYPES)
    named: str = ""  # by another process, whose configuration has its address

    @property
    def name(self) -> str:
        """How deliveries name it: they hold no address, which may be a secret."""
        return self.named or SERVER + hashlib.sha256(self.url.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Fact:
    """Something to tell."""

    occasion: Occasion
    tenant: str
    session_id: str
    hooks: tuple[str, ...]
    data: dict[str, Any]
    call: PendingRecord | None = None
    at: int | None = None  # not before this


@dataclass(slots=True)
class Outbox:
    """Who is told, and what must be written so that they are."""

    store: Store
    screen: Screen = field(default_factory=Screen)
    targets: tuple[Target, ...] = ()
    is_configured: bool = False  # the targets are ours, and not learned from another process
    share: float = SHARE
    public_url: str | None = None
    webhook_secret: str | None = field(default=None, repr=False)

    # --- with a commit ------------------------------------------------------------------------

    def also(
        self, writes: Sequence[Write], puts: Sequence[Put]
    ) -> tuple[Sequence[Write], Sequence[Put]]:
        """A commit with the deliveries of the facts in it."""
        if not self.targets and not any(map(_has_hooks, puts)):
            return writes, puts
        more: list[Write] = []
        entries: list[Put] = []
        for fact in self._facts(writes, puts):
            for target in self._told(fact):
                write, put = self._delivery(fact, target)
                more.append(write)
                entries.append(put)
        return [*writes, *more], [*puts, *entries]

    def _told(self, fact: _Fact) -> Iterator[str]:
        unsaid = KEY_ONLY if fact.call else (KEY_ONLY, CALL_HOOK)
        yield from (name for name in fact.hooks if not name.startswith(unsaid))
        yield from (one.name for one in self.targets if fact.occasion in one.on)

    def _facts(self, writes: Sequence[Write], puts: Sequence[Put]) -> Iterator[_Fact]:
        session: SessionRecord | None = None
        moved = {one for write in writes for one in _moved_deadlines(write.records)}
        for put in puts:
            if put.kind == "session" and isinstance(put.data, bytes):
                session = index.decode(put.data)
            elif put.kind == "pending" and isinstance(put.data, bytes):
                yield from self._of_call(pending.decode(put.data), put, moved)
        for write in writes:
            for record in write.records:
                if record.type in _ENDS:
                    yield _of_end(record, write.stream, session)

    def _of_call(self, record: PendingRecord, put: Put, moved: set[str]) -> Iterator[_Fact]:
        names = (record.tenant, record.session_id, record.hooks)
        shown = pending_json(record, self.callback_url(record))
        occasion = deliveries.of_call(record, is_new=put.expect == 0)
        if occasion is not None:
            yield _Fact(occasion, *names, shown, record)
        at = deliveries.warn_at(record, self.share)
        if at is not None and (put.expect == 0 or record.id in moved):
            yield _Fact("expiring", *names, shown, record, at)

    def callback_url(self, record: PendingRecord) -> str | None:
        """Where the result of a call may be posted."""
        return callback_url(self.public_url, record.id) if record.kind == "tool" else None

    def _delivery(self, fact: _Fact, target: str) -> tuple[Write, Put]:
        now, delivery_id = self.store.now(), secret_id("d")
        at = now if fact.at is None else max(now, fact.at)
        made = Delivery(
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
        data = msgspec.json.encode({**body, "data": _bounded(fact.data)})
        stream = deliveries.stream_of(delivery_id)
        record = Record("delivery", data, now)
        return (
            Write(stream, [record], create=_kind(target), head=0, wake=at),
            delivery_put(made, 0),
        )

    # --- who is told --------------------------------------------------------------------------

    async def hook(self, stream: str, hook: Hook) -> tuple[str, Put]:
        """Whom a session or call tells besides: its name, and the entry that keeps it.

        Refused if we would not call that address.
        """
        if hook.url:
            await self.screen.check(hook.url)
        name = hook.prefix + hashlib.sha256(f"{stream}|{hook.url}".encode()).hexdigest()[:32]
        return name, Put("hook", name, 0, stream, "kept", None, deliveries.encode(hook))

    async def own_secrets(self, hooks: Sequence[str]) -> list[str]:
        """The secrets that were given for a call itself, of those whom it tells."""
        own = [name for name in hooks if name.startswith((CALL_HOOK, KEY_ONLY))]
        entries = [await self.store.get("hook", name) for name in own]
        kept = [deliveries.decode_hook(entry.data) for entry in entries if entry is not None]
        return [hook.secret for hook in kept if hook.secret]

    async def find(self, name: str) -> Hook | None:
        """Where a target is and what signs for it; None if it is not known (here, any more)."""
        if name.startswith(SERVER):
            known = {one.name: one for one in self.targets if one.url}.get(name)
            found = None if known is None else Hook(known.url, known.secret)
        else:
            entry = await self.store.get("hook", name)
            found = None if entry is None else deliveries.decode_hook(entry.data)
        if found is None or found.secret is not None or self.webhook_secret is None:
            return found
        return Hook(found.url, notify_secret(self.webhook_secret))

    # --- the server's own list ----------------------------------------------------------------

    async def publish(self) -> None:
        """Let processes that have no configuration know whom the server tells, not where."""
        told = [_Told(one.name, sorted(one.on)) for one in self.targets]
        entry = await self.store.get("hook", SERVER)
        data = msgspec.json.encode(told)
        if not self.is_configured or data == (b"[]" if entry is None else entry.data):
            return
        put = Put("hook", SERVER, entry.version if entry else 0, SERVER, "kept", None, data)
        with suppress(VersionMoved):  # another worker of the same fleet did
            await self.store.commit([Write(SERVER, create="hooks")], [put])

    async def learn(self) -> None:
        """Know whom the server tells, where no configuration says so."""
        entry = None if self.is_configured else await self.store.get("hook", SERVER)
        if entry is not None:
            told = msgspec.json.decode(entry.data, type=list[_Told])
            self.targets = tuple(Target("", None, frozenset(o.on), o.name) for o in told)


class _Told(msgspec.Struct):
    name: str
    on: list[str]


def _kind(target: str) -> str:
    return FOR_ALL if target.startswith(SERVER) else KIND


def notify_secret(webhook_secret: str) -> str:
    """What signs for those who have no secret of their own.

    Not the server's own: what we send must never be taken for something that was sent to us.
    """
    return derive(webhook_secret, "notify")


def delivery_put(made: Delivery, expect: int) -> Put:
    """The write of a delivery's entry."""
    stream = deliveries.stream_of(made.id)
    return Put(KIND, made.id, expect, stream, str(made.status), None, deliveries.encode(made))


def _has_hooks(put: Put) -> bool:
    return put.kind in ("pending", "session") and isinstance(put.data, bytes) and _MARK in put.data


class _Moved(msgspec.Struct):
    pending_id: str = msgspec.field(name="pendingID")
    expires_at: int | None = msgspec.field(default=None, name="expiresAt")


def _moved_deadlines(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        if record.type == "progress" and b'"expiresAt"' in record.data:
            yield msgspec.json.decode(record.data, type=_Moved).pending_id


def _of_end(record: Record, stream: str, session: SessionRecord | None) -> _Fact:
    occasion = _ENDS[record.type]
    said = msgspec.json.decode(record.data)
    tenant, session_id = index.names_in(stream) or ("", "")
    data = {
        "sessionID": session_id,
        "tenant": tenant,
        "agent": "" if session is None else session.agent,
        "taskID": said.get("run"),
        "state": occasion,
    }
    if occasion == "completed":
        data["output"] = said.get("output")
    else:
        data["error"] = {key: said.get(key) for key in ("error", "code", "hint")}
    hooks = () if session is None else session.hooks
    return _Fact(occasion, tenant, session_id, hooks, data)


def _bounded(data: dict[str, Any]) -> dict[str, Any]:
    """The fact without its large parts, if it has some: receivers take small bodies."""
    if len(msgspec.json.encode(data)) <= LARGEST:
        return data
    large = {k for k, v in data.items() if len(msgspec.json.encode(v)) > LARGEST // 8}
    return {**{k: None if k in large else v for k, v in data.items()}, "truncated": sorted(large)}
