"""Handles of long calls: a durable, unguessable name for work that outlives its call.

A handle belongs to one principal and tenant. It is an entry of the stream of its work (a task, or
the session of a background agent), so it is erased together with it.
"""

from typing import Final, Literal, TypedDict, Unpack

import msgspec
from msgspec import Struct, field

from perdure.errors import Corrupt, NotFound
from perdure.ids import secret_id
from perdure.store.base import Gone, NoStream, Put, Store, Write

KIND: Final = "task:handle"
WorkKind = Literal["background", "execution"]


class WorkRef(Struct, frozen=True, omit_defaults=True):
    """Reference to work: a run of a background agent, or a command in a task."""

    kind: WorkKind
    task_id: str = field(name="taskId")
    number: str  # of the run, or the id of the execution
    stream: str  # of the task, or of the session of the background agent


class CallHandle(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a tool by a principal, and the work that it started."""

    id: str
    tenant: str = ""
    principal: str
    tool: str
    work: WorkRef
    created_at: int = field(name="createdAt")
    digest: str = ""  # of the arguments, if the call is repeated with the handle as its state
    is_reserved: bool = field(name="isReserved", default=False)  # the answer is for this call alone


class RepeatedCall(TypedDict, total=False):
    """Fields of a handle that is the state of a repeated call."""

    digest: str
    is_reserved: bool


_decoder = msgspec.json.Decoder(CallHandle)


class CallHandles:
    """The handles of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(
        self, tenant: str, principal: str, tool: str, work: WorkRef, **more: Unpack[RepeatedCall]
    ) -> CallHandle:
        """Record a handle; it is durable when this returns. Raises NotFound."""
        handle = CallHandle(
            id=secret_id("call"),
            tenant=tenant,
            principal=principal,
            tool=tool,
            work=work,
            created_at=self._store.now(),
            **more,
        )
        data = msgspec.json.encode(handle)
        put = Put(KIND, handle.id, 0, work.stream, "open", None, data)
        try:
            await self._store.commit([Write(work.stream)], [put])
        except (Gone, NoStream) as error:
            raise handle_not_found(work.task_id) from error
        return handle

    async def get(self, handle_id: str, tenant: str, principal: str) -> CallHandle:
        """Return a handle of this principal. Raises NotFound, for those of others too."""
        entry = await self._store.get(KIND, handle_id)
        handle = None if entry is None else _decode(entry.data)
        if handle is None or (handle.tenant, handle.principal) != (tenant, principal):
            raise handle_not_found(handle_id)
        return handle


def _decode(data: bytes) -> CallHandle:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a handle cannot be read: {error}") from error


def handle_not_found(handle_id: str) -> NotFound:
    """Return the error for a handle that does not exist, for this principal."""
    return NotFound(
        f"there is no task {handle_id!r}",
        code="TASK_NOT_FOUND",
        hint="it was deleted with its task, or belongs to another principal",
    )
