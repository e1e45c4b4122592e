"""The store contract: the operations of every backend, their values and their errors.

The only write is `commit`: append these records and put these entries if these conditions hold.
Every wake-up is a record. A fact needs only the fence; a driver's decision also names the head
that the driver has folded.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol, TypedDict, Unpack, runtime_checkable

from msgspec import Struct

from perdure.errors import StoreError

BROADCAST_BYTES: Final = 6_000  # of data in one broadcast, which every backend can carry


Order = Literal["oldest", "newest", "due"]  # of the entries of a listing
# The listing of entries that a program without listings wrote; their instant is 0 or that of a put.
UNLISTED: Final = "?"
SUSPECT_TRIES: Final = 2  # claims without a write after which a stream may stop its processes
ANY_TRIES: Final = 2**31

__all__ = [
    "DELETE",
    "Census",
    "Check",
    "Clock",
    "Delete",
    "Entry",
    "Feed",
    "Fenced",
    "FindOptions",
    "ForeignWrite",
    "Gone",
    "Growth",
    "HeadMoved",
    "Heads",
    "Lease",
    "ListingOptions",
    "Lost",
    "NoStream",
    "OnDisk",
    "Page",
    "Put",
    "Record",
    "Release",
    "RenewsInThreads",
    "Slice",
    "Store",
    "StoreRefusal",
    "StreamState",
    "SuspectLimit",
    "Unavailable",
    "Unknown",
    "VersionMoved",
    "WallClock",
    "Write",
]


class Clock(Protocol):
    """The source of a store's time: milliseconds since 1970."""

    def now(self) -> int:
        """Return the present instant."""
        ...


class WallClock:
    """The machine's own clock."""

    def now(self) -> int:
        """Return the present instant by the machine's clock."""
        return time.time_ns() // 1_000_000


class Record(Struct, frozen=True, gc=False):
    """One immutable item of a stream; `data` is opaque to the store.

    The store sets `seq`, `pos` and `stream`, and `at` where the writer left it 0.
    """

    type: str
    data: bytes
    at: int = 0
    seq: int = 0
    pos: int = 0
    stream: str = ""


class Lease(Struct, frozen=True, gc=False):
    """The right to drive one stream, with the epoch that fences it."""

    stream: str
    epoch: int
    holder: str
    head: int
    tries: int
    now: int


class SuspectLimit(NamedTuple):
    """The suspects that a claim takes: streams with SUSPECT_TRIES or more.

    At most `most`, those with the fewest tries, and none with `last` tries or more. With
    `or_last`, if all have so many, one. The others are not touched.
    """

    most: int
    last: int
    or_last: bool = False

    @property
    def tries_of_one(self) -> int:
        """Return below how many tries a single stream is claimed."""
        if not self.most:
            return SUSPECT_TRIES
        return ANY_TRIES if self.or_last else max(self.last, SUSPECT_TRIES)


class Release(Struct, frozen=True, gc=False):
    """Return of a lease; a worker may claim the stream from `due` on, None: after a wake-up.

    Not `counted`: nothing was driven, and `tries` is as it was before the claim.
    """

    due: int | None = None
    counted: bool = True


class Write(Struct, frozen=True, gc=False):
    """Changes of one stream: conditions (`fence`, `head`, `create`), then effects.

    `create` makes a stream of that kind if it does not exist; with `head=0` it must not exist.
    `epoch` is the first epoch of a new stream: above those that its records name. A `wake` does
    nothing while a driver holds the stream. A write that erases a stream does nothing else.

    `claim` names the holder of a caller without a lease that will drive: if the stream is free and
    due after the write, and the holder's row is alive, the commit leases the stream to it. It reaps
    nobody. Without a lease in the reply the write counts all the same, as if it had no claim.

    `foreign_writes` is a condition of a caller without a lease that trusts what it knows of the
    stream: no other process may have written the store since a commit that returned this count.

    A commit of which no write is `synced` survives the end of its process, and may be lost with the
    power: for changes that mean nothing after that, such as the release of a lock. A backend may
    sync it all the same, and the next commit that is synced makes it durable.
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
    claim: str | None = None
    synced: bool = True
    foreign_writes: int | None = None


class Delete:
    """Data of a put that deletes its entry."""

    def __repr__(self) -> str:
        return "DELETE"


DELETE: Final = Delete()


class Put(Struct, frozen=True, gc=False):
    """Write of an index entry, if its version is still `expect` (0: it does not exist).

    `listing` names the ordered list of its kind that the entry is in from now on, None: in none.
    `at` is its instant there; None is when it was first put into a listing.
    """

    kind: str
    key: str
    expect: int
    stream: str
    state: str
    due: int | None
    data: bytes | Delete
    listing: str | None = None
    at: int | None = None


class Check(Struct, frozen=True, gc=False):
    """Condition of a put without its write: the entry still has the version `expect`."""

    kind: str
    key: str
    expect: int
    stream: str


class Entry(Struct, frozen=True, gc=False):
    """Index row that finds a stream without folding it: pending call, session, message key, …"""

    kind: str
    key: str
    stream: str
    version: int
    state: str
    due: int | None
    data: bytes
    listing: str | None = None
    at: int | None = None  # its instant in the listing


_NO_LEASES: Final[Mapping[str, Lease]] = MappingProxyType({})


class Heads(dict[str, int]):
    """The new head of each stream of a commit, and the leases of its claims that were granted.

    `foreign_writes` is a count that rises when the store notices that another process, or another
    store of this process, has written its data. While it stays the same, nobody but this store has
    written. None: the backend cannot tell.
    """

    __slots__ = ("foreign_writes", "leases")

    def __init__(
        self,
        heads: Mapping[str, int],
        leases: Mapping[str, Lease] = _NO_LEASES,
        foreign_writes: int | None = None,
    ) -> None:
        super().__init__(heads)
        self.leases = leases  # by stream
        self.foreign_writes = foreign_writes


class Slice(Struct, frozen=True, gc=False):
    """Records of one stream, oldest first, with its head, holder and due time."""

    records: Sequence[Record]
    head: int
    holder: str | None = None  # of its lease, if a driver has one
    due: int | None = None  # from when on it may be claimed; meaningless while held
    tries: int = 0  # claims since a driver last wrote; a store that does not say has none


class StreamState(Struct, frozen=True, gc=False):
    """State of one stream, without its records; the head of a gone stream is 0."""

    stream: str
    kind: str
    head: int
    epoch: int
    holder: str | None
    due: int | None  # meaningless while held
    gone: bool


class FindOptions(TypedDict, total=False):
    """Conditions of `Store.find`, and the page: None and a missing key mean the same."""

    state: str | None
    stream: str | None
    due_before: int | None
    after: str | None  # the `next` of the previous page
    skip: int  # 0: so many entries from there on are left out
    limit: int  # 100


class ListingOptions(TypedDict, total=False):
    """Order and page of `Store.find_listed`."""

    order: Order  # "oldest"
    after: str | None  # the `next` of the previous page
    limit: int  # 100


class Page(Struct, frozen=True, gc=False):
    """Entries, and the cursor of the next page (None: this is the last one)."""

    entries: Sequence[Entry]
    next: str | None


class Feed(Struct, frozen=True, gc=False):
    """Records of all streams, and the cursor to continue from."""

    records: Sequence[Record]
    cursor: str
    is_held: bool = False  # more exist, but a transaction that is open may append before them


class Growth(Struct, frozen=True, gc=False):
    """Streams that have grown, each with its newest seq, and the cursor to continue from."""

    heads: Mapping[str, int]
    cursor: str
    more: bool = False  # the limit was reached


class Census(Struct, frozen=True, gc=False):
    """Numbers of the streams and entries that exist at one moment."""

    entries: dict[tuple[str, str], int]  # by kind and state
    listings: dict[tuple[str, str], int]  # entries by kind and listing
    overdue: dict[str, int]  # entries that are due by now, by kind
    held: int  # streams with a lease
    due: int  # streams that a worker could claim now
    alive: tuple[str, ...]  # names of the holders whose rows have not expired
    # Ever appended, erased ones too. A backend whose positions have gaps counts the gaps.
    records: int
    commits: int  # through this store object since it was created


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
    """The caller's lease is over: another holder has the stream, or none."""

    code = "FENCED"


class HeadMoved(StoreRefusal):
    """The stream's head is not the one that the caller named."""

    code = "HEAD_MOVED"

    def __init__(self, message: str, *, stream: str = "", head: int = 0) -> None:
        super().__init__(message, stream=stream)
        self.head = head


class ForeignWrite(StoreRefusal):
    """Another process has written the store since the commit that the caller relies on."""

    code = "FOREIGN_WRITE"


class VersionMoved(StoreRefusal):
    """An entry has another version or stream than expected; `entry` is the present entry."""

    code = "VERSION_MOVED"

    def __init__(self, message: str, *, stream: str = "", entry: Entry | None = None) -> None:
        super().__init__(message, stream=stream)
        self.entry = entry


class Lost(StoreError):
    """The caller's holder row is missing or expired, and with it all its leases."""

    code = "LEASE_LOST"


class Unavailable(StoreError):
    """Nothing was written; the caller may try again."""

    code = "STORE_UNAVAILABLE"


class Unknown(StoreError):
    """The outcome of the commit is unknown: the caller must read before it writes again."""

    code = "COMMIT_UNKNOWN"


class Store(Protocol):
    """Operations of a backend. All instants are the store's own milliseconds (`now`)."""

    def now(self) -> int:
        """Return the store's time, in ms since the epoch."""
        ...

    async def open(self) -> None:
        """Connect, create or migrate. Raises StoreError with a hint; idempotent."""
        ...

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        """Write everything durably and return the new heads, or raise and write nothing.

        Raises ValueError for a malformed commit and Refused for a name of more than 2,500 bytes;
        then the first StoreRefusal of NoStream, Gone, Fenced, HeadMoved, ForeignWrite and
        VersionMoved. Unavailable: nothing was written. Unknown: read before you write again; the
        store itself takes back what such a commit may have claimed, before it extends the holder's
        row, and counts no try. Cancelling the caller does not withdraw the commit: a caller that
        claims must not be cancelled while it waits, or nobody drives under the lease.
        """
        ...

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """Return the records after `after`, oldest first; limit 0: only head, holder and due.

        Raises NoStream for an unknown stream and Gone for an erased one.
        """
        ...

    async def get(self, kind: str, key: str) -> Entry | None:
        """Return the entry with this key, or None."""
        ...

    async def find(self, kind: str, **options: Unpack[FindOptions]) -> Page:
        """Return entries of a kind by key; with `due_before` those due by then, by (due, key).

        `after` is the `next` of the previous page of the same query. The entries that `skip` leaves
        out cost a step in an index each: their data are not read.
        """
        ...

    async def find_listed(self, kind: str, listing: str, **options: Unpack[ListingOptions]) -> Page:
        """Return the entries of a listing, at a cost that does not depend on their number.

        `oldest` and `newest` first by (at, key), or by (due, at, key), in which entries without a
        due time come last. `after` is the `next` of the previous page of the same query. Raises
        ValueError for a cursor of another one.
        """
        ...

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Return every entry of a stream by (kind, key); none for an unknown stream."""
        ...

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Return streams by id, gone ones too; `after` is the last id of the previous page."""
        ...

    async def claim(
        self,
        holder: str,
        kind: str,
        limit: int,
        *,
        only: str | None = None,
        suspects: SuspectLimit | None = None,
    ) -> list[Lease]:
        """Reap dead holders, then lease up to `limit` due streams of a kind, oldest due first.

        `only` restricts the claim to one stream, `suspects` the choice among those whose processes
        stopped; streams behind them are claimed in their place. Raises Lost if the caller's own row
        is missing or expired.
        """
        ...

    async def reap(self, now: int) -> None:
        """Free the leases of the holders whose heartbeat stopped, as every `claim` does first.

        That is each holder whose row has expired at `now` (pass `store.now()`), and each whose
        process the backend knows to have ended. Their streams are due at `now`, after repeated
        deaths later, and fenced against them. The caller needs no holder row. Idempotent.
        """
        ...

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and return its new end; `join` creates the row, once per name.

        ttl 0 removes the row, and the holder's streams are due at once. Raises Lost if the row
        does not exist, or, with `join`, if the name is taken.
        """
        ...

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Return records of all streams after the cursor, each exactly once.

        The cursor "" is the beginning. "$" is the end: it returns the cursor of now, no records.
        """
        ...

    async def growth(self, cursor: str, limit: int = 500) -> Growth:
        """Return the streams of the records that `tail` would return, without the records."""
        ...

    async def census(self, kinds: Collection[str]) -> Census:
        """Count what exists at this moment, by indexes; entries of these kinds only."""
        ...

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed since this task last read, or after the timeout.

        A hint: it may come late, twice or not at all.
        """
        ...

    def broadcast(self, topic: str, data: bytes) -> None:
        """Send a lossy message to the present subscribers of this data, in any process.

        Never waits, never raises, stores nothing. The message may get lost; one of more than
        BROADCAST_BYTES may always be dropped. The topic is a short word, the data UTF-8 text.
        """
        ...

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Call the callback in the event loop with each broadcast, this store's own included."""
        ...

    async def close(self) -> None:
        """Finish the commits that were submitted and release everything; idempotent."""
        ...


@runtime_checkable
class OnDisk(Protocol):
    """Store whose small commits may succeed on a full disk, because they reuse space of a file."""

    def free_bytes(self) -> int:
        """Return the free space of its disk."""
        ...


@runtime_checkable
class RenewsInThreads(Protocol):
    """Store that renews a holder's row without its event loop, which may be busy for long."""

    def renew_in_thread(self, holder: str, ttl_ms: int) -> int:
        """Extend a holder's row as `renew` does; call it in a thread, which waits for it.

        Raises Lost if the row does not exist, else StoreError.
        """
        ...
