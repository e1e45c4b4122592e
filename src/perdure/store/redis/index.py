"""The index in Redis: which pending calls there are by session, by status and by deadline.

Everything here may be lost, late or wrong: who uses it compares. The keys of others to read are
`pending:by-session:{session}`, `pending:by-status:{status}` (sets of ids) and `pending:expiration`
(ids by deadline); `pending:known` has what the index knows of each id, and `pending:index` the
place in the store's feed that it stands at, with the number of members that each key should have.
"""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final, Protocol

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from perdure.store.base import Entry

DEADLINES: Final = "pending:expiration"
MOST: Final = 10_000  # members; more are not read at once
_BATCH: Final = 500
_REBUILDING: Final = "pending:rebuilding"
_REBUILD_MS: Final = 60_000
_OURS: Final = ("pending:index", "pending:known", DEADLINES)
_MANY: Final = ("pending:by-session:*", "pending:by-status:*")


class Names(Protocol):
    """What the index needs to know of an entry besides what a store knows."""

    def session(self, stream: str) -> str:
        """The session that a stream is of."""
        ...

    def status(self, entry: Entry) -> str:
        """The status of the call, as people know it."""
        ...

    def statuses(self, state: str) -> Sequence[str]:
        """All that an entry in this state may have as its status."""
        ...


class Item(Struct, frozen=True, omit_defaults=True):
    """One entry as the index knows it; without a version it is there no more."""

    id: str
    version: int | None = None
    stream: str = ""
    session: str = ""
    status: str = ""
    state: str = ""
    due: str | None = None  # as text: Lua's numbers are not whole ones

    @property
    def place(self) -> tuple[int, str]:
        """Its place among those that are due."""
        return int(self.due or 0), self.id


class Anchor(Struct, frozen=True, omit_defaults=True):
    """The place in the feed that the index stands at, and the record that must be there.

    The feed is read from `cursor` on; `record` (its stream, seq and instant) is the next one then,
    and is known. A store that was restored or made anew has another one there, or none.
    """

    cursor: str
    record: tuple[str, int, int] | None = None


class Seen(Struct, frozen=True):
    """What a lookup found, all of one moment."""

    anchor: Anchor
    items: Sequence[Item]


class TooMany(Exception):
    """There are more members than are read at once: the store has pages."""


class RedisIndex:
    """The keys in one Redis database."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        folder = files("perdure.store") / "lua"
        self._apply = client.register_script((folder / "apply.lua").read_text("utf-8"))
        self._look = client.register_script((folder / "look.lua").read_text("utf-8"))

    async def look(self, keys: Sequence[str], latest: int | None = None) -> Seen | None:
        """The members of these sets, or of the deadlines until `latest`.

        None if there is no index, or it is not as it should be; TooMany.
        """
        args = [str(MOST), "" if latest is None else str(latest), *keys]
        answer = await self._look(args=args)
        if not answer:
            return None
        if isinstance(answer[0], int):
            raise TooMany
        try:
            anchor = msgspec.json.decode(answer[0], type=Anchor)
            items = [msgspec.json.decode(text, type=Item) for text in answer[1:]]
        except msgspec.MsgspecError:
            return None
        is_whole = len({item.id for item in items}) == len(items)
        return Seen(anchor, items) if is_whole else None

    async def apply(
        self, items: Sequence[Item], before: Anchor | None = None, after: Anchor | None = None
    ) -> None:
        """Take these over, and stand at `after`, if it stands at `before` still."""
        texts = [_text(item) for item in items]
        for start in range(0, len(texts), _BATCH):
            await self._apply(args=["", "", *texts[start : start + _BATCH]])
        if before is not None:
            await self._apply(args=[_text(before), _text(after)])

    async def drop(self) -> None:
        """There is no index from now on; the next one who looks makes it anew."""
        await self._client.delete("pending:index")

    async def begin(self, token: str) -> bool:
        """Remove what there is, to make it anew; False if somebody else is doing that."""
        if not await self._client.set(_REBUILDING, token, nx=True, px=_REBUILD_MS):
            return False
        await self._client.unlink(*_OURS)
        for pattern in _MANY:
            found = [key async for key in self._client.scan_iter(pattern, count=_BATCH)]
            for start in range(0, len(found), _BATCH):
                await self._client.unlink(*found[start : start + _BATCH])
        return True

    async def end(self, token: str, anchor: Anchor) -> None:
        """It is made, and stands here; not if it took so long that somebody began anew."""
        if await self._client.get(_REBUILDING) == token:
            await self._client.hset("pending:index", "place", _text(anchor))
            await self._client.delete(_REBUILDING)

    async def close(self) -> None:
        """Let the connections go."""
        await self._client.aclose()


def items_of(entries: Iterable[Entry], names: Names) -> list[Item]:
    """The entries as the index knows them."""
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
