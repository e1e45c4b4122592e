"""The store contract: what every backend takes, answers and refuses.

The only write is `commit`: append these records and put these entries, if these conditions
hold. Every wake-up is a record; a fact needs the right to state it, a decision also needs to
have seen everything.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from msgspec import Struct

from perdure.errors import StoreError

WHISPER_BYTES: Final = 6_000  # of data that every backend can carry at once


class Clock(Protocol):
    """Where a store has its time from: milliseconds since 1970."""

    def now(self) -> int:
        """The present instant."""
        ...


class WallClock:
    """The machine's own clock."""

    def now(self) -> int:
        """The present instant, as the machine has it."""
        return time.time_ns() // 1_000_000


class Record(Struct, frozen=True, gc=False):
    """One immutable line of a stream; `data` is opaque.

    The store gives `seq`, `pos` and `stream`, and `at` where the writer left it 0.
    """

    type: str
    data: bytes
    at: int = 0
    seq: int = 0
    pos: int = 0
    stream: str = ""


class Lease(Struct, frozen=True, gc=False):
    """The right to drive one stream, and the number that fences it."""

    stream: str
    epoch: int
    holder: str
    head: int
    tries: int
    now: int


class Release(Struct, frozen=True, gc=False):
    """Give the lease back; `due` is when somebody must look again, None: not before a wake-up."""

    due: int | None = None


class Write(Struct, frozen=True, gc=False):
    """What happens to one stream: conditions (`fence`, `head`, `create`), then effects.

    `create` makes the stream, of that kind, if there is none; with `head=0` there must be none.
    `epoch` is where a new stream's count of claims begins: above those that its records name.
    A `wake` does nothing while somebody holds the stream. An erased stream takes nothing else.
    """

    stream: str
    records: Sequence[Record] = ()
    fence: Lease | None = None
    head: int | None = None
    create: str | None = None
    wake: int | None = None
    release: Release | None = None
    erase: bool = False
    epoch: int = 0


class _Delete:
    """The data of a put that removes its entry."""

    def __repr__(self) -> str:
        return "DELETE"


DELETE: Final = _Delete()


class Put(Struct, frozen=True, gc=False):
    """Write an index entry, if its version is still `expect` (0: there is none)."""

    kind: str
    key: str
    expect: int
    stream: str
    state: str
    due: int | None
    data: bytes | _Delete


class Check(Struct, frozen=True, gc=False):
    """A put that changes nothing: only the condition."""

    kind: str
    key: str
    expect: int
    stream: str


class Entry(Struct, frozen=True, gc=False):
    """What finds a stream again without reading it: a pending call, a session, a message key."""

    kind: str
    key: str
    stream: str
    version: int
    state: str
    due: int | None
    data: bytes


class Slice(Struct, frozen=True, gc=False):
    """Records of one stream, oldest first, and where the stream stands."""

    records: Sequence[Record]
    head: int
    holder: str | None = None  # who drives it now
    due: int | None = None  # from when on it may be claimed; meaningless while held


class StreamState(Struct, frozen=True, gc=False):
    """Where one stream stands, without its records; the head of a gone one is 0."""

    stream: str
    kind: str
    head: int
    epoch: int
    holder: str | None
    due: int | None  # meaningless while held
    gone: bool


class Page(Struct, frozen=True, gc=False):
    """Entries, and the cursor of the next page (None: that was all)."""

    entries: Sequence[Entry]
    next: str | None


class Feed(Struct, frozen=True, gc=False):
    """Records of all streams, and the cursor to go on from."""

    records: Sequence[Record]
    cursor: str


class Census(Struct, frozen=True, gc=False):
    """What a store holds, in numbers; streams and entries of the present, not of the past."""

    entries: dict[tuple[str, str], int]  # by kind and state
    overdue: dict[str, int]  # entries that are due by now, by kind
    held: int  # streams that somebody drives
    due: int  # streams that somebody could drive, and nobody does
    alive: tuple[str, ...]  # holders whose time has not run out, by name
    records: (
        int  # ever appended, erased ones too; a backend whose positions have holes counts those
    )
    commits: int  # that went through this very store since it was made


class StoreRefusal(StoreError):
    """A condition of a commit did not hold; nothing was written."""

    def __init__(self, message: str, *, stream: str = "") -> None:
        super().__init__(message)
        self.stream = stream


class NoStream(StoreRefusal):
    """The stream does not exist."""

    code = "NO_STREAM"


class Gone(StoreRefusal):
    """The stream was erased."""

    code = "STREAM_GONE"


class Fenced(StoreRefusal):
    """Somebody else holds the lease now, or nobody does."""

    code = "FENCED"


class HeadMoved(StoreRefusal):
    """The stream has records that the caller has not seen."""

    code = "HEAD_MOVED"

    def __init__(self, message: str, *, stream: str = "", head: int = 0) -> None:
        super().__init__(message, stream=stream)
        self.head = head


class VersionMoved(StoreRefusal):
    """An entry has another version (or stream) than expected; `entry` is the present one."""

    code = "VERSION_MOVED"

    def __init__(self, message: str, *, stream: str = "", entry: Entry | None = None) -> None:
        super().__init__(message, stream=stream)
        self.entry = entry


class Lost(StoreError):
    """The caller's own holder row is missing or over: it holds nothing any more."""

    code = "LEASE_LOST"


class Unavailable(StoreError):
    """Nothing was written; try again."""

    code = "STORE_UNAVAILABLE"


class Unknown(StoreError):
    """The commit's outcome is not known: read before you write again."""

    code = "COMMIT_UNKNOWN"


class Store(Protocol):
    """What a backend is. All instants are the store's own milliseconds (`now`)."""

    def now(self) -> int:
        """The store's clock, in ms since the epoch."""
        ...

    async def open(self) -> None:
        """Connect, create or migrate. Raises StoreError with a hint; idempotent."""
        ...

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> dict[str, int]:
        """Write everything durably and answer the new heads, or raise and write nothing.

        Raises ValueError for a commit that makes no sense and Refused for a name of more than
        2,500 bytes, else the first StoreRefusal of NoStream, Gone, Fenced, HeadMoved,
        VersionMoved; Unavailable: nothing was written; Unknown: read before you write again.
        Cancelling the caller does not withdraw it.
        """
        ...

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """The records after `after`, oldest first; limit 0: only where the stream stands.

        Raises NoStream for an unknown stream and Gone for an erased one.
        """
        ...

    async def get(self, kind: str, key: str) -> Entry | None:
        """One entry by its key, or None."""
        ...

    async def find(
        self,
        kind: str,
        *,
        state: str | None = None,
        stream: str | None = None,
        due_before: int | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Entries of a kind, by key; with `due_before` those due by then, by (due, key).

        `after` is the `next` of the page before, asked for with the same arguments.
        """
        ...

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Every entry of a stream, of whatever kind, by (kind, key); none for an unknown one."""
        ...

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Streams by their ids, gone ones too; `after` is the last one of the page before."""
        ...

    async def claim(
        self, holder: str, kind: str, limit: int, *, only: str | None = None
    ) -> list[Lease]:
        """Take up to `limit` due streams of a kind, oldest first, after reaping dead holders.

        `only` names the one stream wanted. Raises Lost if the caller's own row is not alive.
        """
        ...

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and answer until when; `join` makes the row, once per name.

        ttl 0 leaves: what the holder still has is due again at once. Raises Lost if there is no
        such row, or, joining, if the name is taken.
        """
        ...

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Records of all streams after the cursor, each exactly once.

        The cursor "" is the beginning, "$" is now: it answers no record, only where to go on.
        """
        ...

    async def census(self, kinds: Collection[str]) -> Census:
        """What there is at this moment, counted in indexes; of entries those of these kinds."""
        ...

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed since this task last looked, or after the timeout.

        A hint, never a promise: it may come late, twice or not at all.
        """
        ...

    def broadcast(self, topic: str, data: bytes) -> None:
        """Tell whoever overhears on this data at this moment, in any process; nothing is stored.

        Never waits and never raises. It may get lost, and does if nobody listens; what is longer
        than WHISPER_BYTES may always be. The topic is a short word, the data text in UTF-8.
        """
        ...

    def subscribe(self, heard: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Be handed, in the event loop, what is whispered meanwhile; also by this store itself."""
        ...

    async def close(self) -> None:
        """Finish what was begun and let go; idempotent."""
        ...
