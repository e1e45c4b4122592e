"""Records of tasks: the row that lists show, its names in a store, and its index entries.

A task is a stream of the kind `task`. Its entry, by tenant and id, has the row. Two more entries
have the same row under a key that decreases with time, so that lists need no sorting: one is found
by kind, tenant and status, one by kind, tenant, owner and status. All three are always put
together, so they always have the same version.
"""

from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from perdure.core.session.naming import quote, unquote
from perdure.errors import Corrupt
from perdure.tasks.model.status import Status

TaskKind = Literal["sandbox", "background"]
KINDS: Final[tuple[TaskKind, ...]] = ("sandbox", "background")
LISTED: Final[TaskKind] = "sandbox"  # the kind of every row; background agents have other entries

STREAM_KIND: Final = "task"  # of the streams; no session worker claims it
ROW: Final = "task"  # kind of the entry by tenant and id
BY_STATUS: Final = "task:status"  # kind of the list entry by status
BY_OWNER: Final = "task:owner"  # kind of the list entry by owner and status
STATE: Final = "task:state"  # kind of the entry with the saved state
CHECKPOINT: Final = "task:checkpoint"  # kind of the entries of checkpoints
BACKGROUND: Final = "child:status"  # kind of the list entry of a background agent, by status
GROUP: Final = "task:group"  # kind of the entry that says that a tenant has tasks of a kind
STALE: Final = "task:stale"  # kind of the entry that says that a process elsewhere has written
_NEWEST: Final = 10**15  # above every instant in ms


class TaskRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A task as its entries store it. Instants are ms; `host` and `root` locate its folder."""

    id: str
    tenant: str = ""
    kind: TaskKind = "sandbox"
    name: str
    status: Status = Status.PENDING
    owner: str = "system"
    metadata: dict[str, Any] = field(default_factory=dict)
    agents: tuple[str, ...] = ()  # attached now, in the order of their attachment
    result: dict[str, Any] | None = None
    created_at: int = field(name="createdAt")
    updated_at: int = field(name="updatedAt")
    host: str = ""
    root: str = ""
    sandbox: str = ""  # that its commands run in
    require: tuple[str, ...] = ()  # guarantees that every command needs
    since: int = 0  # the last record that a caller has removed from its log and decisions
    is_blank: bool = field(default=False, name="isBlank")  # no state since they were removed


_decoder = msgspec.json.Decoder(TaskRecord)


def encode(record: TaskRecord) -> bytes:
    """Return the record as the data of its entries."""
    return msgspec.json.encode(record)


def decode(data: bytes) -> TaskRecord:
    """Return the record of an entry. Raises Corrupt."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a task cannot be read: {error}") from error


# --- names ----------------------------------------------------------------------------------------


def task_key(tenant: str, task_id: str) -> str:
    """Return the key of a task's entry."""
    return f"{quote(tenant)}/{task_id}"


def group_key(tenant: str, kind: str) -> str:
    """Return the key of the entry of a tenant's tasks of a kind."""
    return f"{quote(tenant)}|{kind}"


def parse_group_key(key: str) -> tuple[str, str]:
    """Return tenant and kind of such an entry."""
    tenant, _, kind = key.partition("|")
    return unquote(tenant), kind


def task_stream(tenant: str, task_id: str, generation: int = 1) -> str:
    """Return the stream of a task; one recreated after deletion has the next generation."""
    name = f"t/{quote(tenant)}/{quote(task_id)}"
    return name if generation == 1 else f"{name}#{generation}"


def parse_task_stream(stream: str) -> tuple[str, str] | None:
    """Return tenant and id of a task's stream; None if it is not a task's."""
    parts = stream.split("#", 1)[0].split("/")
    if len(parts) != 3 or parts[0] != "t":
        return None
    return unquote(parts[1]), unquote(parts[2])


def generation_of(stream: str) -> int:
    """Return the generation of a task's stream."""
    _, mark, number = stream.partition("#")
    return int(number) if mark else 1


def list_key(record: TaskRecord) -> str:
    """Return the key of a task's list entries; a newer task has a smaller one."""
    return newest_first_key(record.created_at, record.tenant, record.id)


def newest_first_key(created_at: int, tenant: str, task_id: str) -> str:
    """Return the key of a list entry of any kind of task; a newer task has a smaller one."""
    return f"{_NEWEST - created_at:015d}/{task_key(tenant, task_id)}"


def checkpoint_key(tenant: str, task_id: str, at: int, checkpoint_id: str) -> str:
    """Return the key of a checkpoint's entry; a newer one has a smaller key."""
    return f"{task_key(tenant, task_id)}|{_NEWEST - at:015d}|{checkpoint_id}"


class ListState(NamedTuple):
    """State of a list entry: what lists filter by. The owner is None in lists by status."""

    kind: str
    tenant: str
    status: str
    owner: str | None = None

    @property
    def text(self) -> str:
        """The state as entries have it."""
        end = () if self.owner is None else (quote(self.owner),)
        return "|".join((self.kind, quote(self.tenant), self.status, *end))

    @classmethod
    def parse(cls, text: str) -> "ListState":
        """Return the state of an entry."""
        kind, tenant, status, *owner = text.split("|")
        return cls(kind, unquote(tenant), status, unquote(owner[0]) if owner else None)


def list_states(record: TaskRecord) -> tuple[str, str]:
    """Return the states of a task's two list entries: by status, and by owner."""
    by_status = f"{record.kind}|{quote(record.tenant)}|{record.status.value}"
    return by_status, f"{by_status}|{quote(record.owner)}"
