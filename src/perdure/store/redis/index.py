"""The index of pending calls in Redis: by session, by status and by deadline.

Everything here may be lost, late or wrong, so the store compares it with its entries. Other
programs may read `pending:by-session:{session}` and `pending:by-status:{status}` (sets of ids) and
`pending:expiration` (ids by deadline). `pending:known` has the item of each id. `pending:index` has
the position in the store's feed that the index has reached, and the number of members of each key.
"""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final, Protocol

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from perdure.store.base import Entry

DEADLINES: Final = "pending:expiration"
MOST: Final = 10_000  # members that one lookup reads
_BATCH: Final = 500
_REBUILDING: Final = "pending:rebuilding"
_REBUILD_MS: Final = 60_000
_OURS: Final = ("pending:index", "pending:known", DEADLINES)
_MANY: Final = ("pending:by-session:*", "pending:by-status:*")


class EntryNames(Protocol):
    """Session and status of an entry, which a store does not know."""

    def session(self, stream: str) -> str:
        """Return the session of a stream."""
        ...

    def status(self, entry: Entry) -> str:
        """Return the status of a pending call."""
        ...

    def statuses(self, state: str) -> Sequence[str]:
        """Return every status that an entry in this state may have."""
        ...


class Item(Struct, frozen=True, omit_defaults=True):
    """One entry in the index; without a version it was deleted."""

    id: str
    version: int | None = None
    stream: str = ""
    session: str = ""
    status: str = ""
    state: str = ""
    due: str | None = None  # as text: Lua's numbers are floats

    @property
    def due_at(self) -> int | None:
        """When the entry is due."""
        return None if self.due is None else int(self.due)


class Anchor(Struct, frozen=True, omit_defaults=True):
    """Position in the feed that the index has reached, and the record that must be there.

    The feed is read from `cursor` on; its next record must be `record` (stream, seq and time),
    which the index already has. A store that was restored or recreated has another one, or none.
    """

    cursor: str
    record: tuple[str, int, int] | None = None


class IndexLookup(Struct, frozen=True):
    """Result of a lookup, all of one moment."""

    anchor: Anchor
    items: Sequence[Item]


class TooMany(Exception):
    """There are more members than one lookup reads: the store must reply, page by page."""


class RedisIndex:
    """Keys of the index in one Redis database."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        folder = files("perdure.store") / "lua"
        self._apply = client.register_script((folder / "apply.lua").read_text("utf-8"))
        self._lookup = client.register_script((folder / "lookup.lua").read_text("utf-8"))

    async def lookup(self, keys: Sequence[str], latest: int | None = None) -> IndexLookup | None:
        """Return the members of these sets, or of the deadlines until `latest`.

        None if there is no index or it is inconsistent. Raises TooMany.
        """
        args = [str(MOST), "" if latest is None else str(latest), *keys]
        reply = await self._lookup(args=args)
        if not reply:
            return None
        if isinstance(reply[0], int):
            raise TooMany
        try:
            anchor = msgspec.json.decode(reply[0], type=Anchor)
            items = [msgspec.json.decode(text, type=Item) for text in reply[1:]]
        except msgspec.MsgspecError:
            return None
        is_unique = len({item.id for item in items}) == len(items)
        return IndexLookup(anchor, items) if is_unique else None

    async def apply(
        self, items: Sequence[Item], before: Anchor | None = None, after: Anchor | None = None
    ) -> None:
        """Apply these items, and move the index from `before` to `after` if it is still there."""
        texts = [_text(item) for item in items]
        for start in range(0, len(texts), _BATCH):
            await self._apply(args=["", "", *texts[start : start + _BATCH]])
        if before is not None:
            await self._apply(args=[_text(before), _text(after)])

    async def drop(self) -> None:
        """Delete the index; the next lookup rebuilds it."""
        await self._client.delete("pending:index")

    async def begin_rebuild(self, token: str) -> bool:
        """Delete all keys for a rebuild; False if another process is rebuilding."""
        if not await self._client.set(_REBUILDING, token, nx=True, px=_REBUILD_MS):
            return False
        await self._client.unlink(*_OURS)
        for pattern in _MANY:
            keys = [key async for key in self._client.scan_iter(pattern, count=_BATCH)]
            for start in range(0, len(keys), _BATCH):
                await self._client.unlink(*keys[start : start + _BATCH])
        return True

    async def finish_rebuild(self, token: str, anchor: Anchor) -> None:
        """Publish the rebuilt index at this anchor, unless another rebuild has started."""
        if await self._client.get(_REBUILDING) == token:
            await self._client.hset("pending:index", "place", _text(anchor))
            await self._client.delete(_REBUILDING)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def index_items(entries: Iterable[Entry], names: EntryNames) -> list[Item]:
    """Return the items of these entries."""
    return [
        Item(
            entry.key,
            entry.version,
            entry.stream,
            names.session(entry.stream),
            names.status(entry),
            entry.state,
            None if entry.due is None else str(entry.due),
        )
        for entry in entries
    ]


def _text(value: Struct | None) -> str:
    return msgspec.json.encode(value).decode()
