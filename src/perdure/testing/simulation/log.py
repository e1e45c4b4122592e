"""Records of a simulated fleet as plain JSON, as the store has accepted them."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from perdure.store.base import Record

Data = dict[str, Any]

_ENDS: Final = ("agent_complete", "agent_error", "cancelled")
_SHOWN: Final = 14  # records of a log in the text of a problem
_NAMES: Final = ("id", "toolCallId", "pendingID", "turn", "key", "kind", "status", "code", "by")


class RawRecord(NamedTuple):
    """A record and the process that committed it."""

    type: str
    data: Data
    at: int
    process: str
    start: int  # which start of a process, of all


class RawLog(list[RawRecord]):
    """Records of one session."""

    def of(self, *types: str) -> Iterator[Data]:
        """Yield the data of the records of these types."""
        return (row.data for row in self if row.type in types)

    def of_call(self, call_id: str, *types: str) -> list[Data]:
        """Return the data of the records of these types that belong to a call."""
        ids = ("callID", "toolCallId", "id")
        return [data for data in self.of(*types) if call_id in (data.get(name) for name in ids)]

    def open_calls(self) -> list[Data]:
        """Return the data of the calls that wait."""
        settled = {data["pendingID"] for data in self.of("settled", "decision")}
        return [data for data in self.of("pending") if data["pendingID"] not in settled]

    @property
    def is_over(self) -> bool:
        """True if the last run has ended."""
        last = [row.type for row in self if row.type in ("user", *_ENDS)]
        return bool(last) and last[-1] in _ENDS

    @property
    def is_fork(self) -> bool:
        """True if another session's records were copied into it."""
        return any(self.of("forked"))

    def __str__(self) -> str:
        lines = [f"    {seq:4} {row.type} {_names(row)}" for seq, row in enumerate(self, 1)]
        hidden = ["         …"] if len(lines) > _SHOWN else []
        return "\n".join(hidden + lines[-_SHOWN:])


def _names(row: RawRecord) -> str:
    names = " ".join(str(row.data[name]) for name in _NAMES if row.data.get(name))
    return f"{names} ({row.process})"


def decoded(record: Record, process: str, start: int) -> RawRecord:
    """Return a record as JSON."""
    return RawRecord(record.type, msgspec.json.decode(record.data), record.at, process, start)


def session_of(stream: str) -> str:
    """Return the name of a session by its stream; "" for another stream."""
    parts = stream.split("#", 1)[0].split("/")
    if len(parts) != 3 or parts[0] != "s":
        return ""
    return session_name(unquote(parts[1]), unquote(parts[2]))


def session_name(tenant: str, session_id: str) -> str:
    """Return the name of a session as reports show it."""
    return f"{tenant}/{session_id}" if tenant else session_id
