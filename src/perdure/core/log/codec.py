"""Codec between events and bytes, with versions; unknown types are kept and ignored.

A version other than 1 is written into the data as `v`. `UPGRADES` converts old data to the
version that this code reads, one version at a time; data of a newer version becomes `Unknown`.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from perdure.core.json_depth import READABLE_DEPTH, check_readable
from perdure.core.log import events
from perdure.errors import Corrupt

TYPES: dict[str, type[events.Event]] = {
    "user": events.User,
    "assistant": events.Assistant,
    "tool_call": events.ToolCall,
    "tool_started": events.ToolStarted,
    "tool_result": events.ToolResult,
    "pending": events.Pending,
    "progress": events.Progress,
    "decision": events.Decision,
    "vote": events.Vote,
    "revoked": events.Revoked,
    "settled": events.Settled,
    "agent_start": events.AgentStart,
    "agent_complete": events.AgentComplete,
    "agent_error": events.AgentError,
    "retry": events.Retry,
    "compacted": events.Compacted,
    "compaction_requested": events.CompactionRequested,
    "compaction_failed": events.CompactionFailed,
    "agent_changed": events.AgentChanged,
    "cancelled": events.Cancelled,
    "forked": events.Forked,
    "metadata": events.Metadata,
    "restored": events.Restored,
    "launched": events.Launched,
    "follow_up_queued": events.FollowUpQueued,
    "follow_up_dropped": events.FollowUpDropped,
    "delegation": events.Delegation,
    "delegation_queued": events.DelegationQueued,
    "delegation_resumed": events.DelegationResumed,
    "delegation_complete": events.DelegationComplete,
    "delegation_cleared": events.DelegationCleared,
    "mail_taken": events.MailTaken,
    "reservation_ended": events.ReservationEnded,
    "session_recovery": events.SessionRecovery,
    "safety_limit": events.SafetyLimit,
    "agent_iteration": events.AgentIteration,
    "todo_update": events.TodoUpdate,
}
NAMES: dict[type, str] = {cls: name for name, cls in TYPES.items()}

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]  # gets fields that are kept as bytes as Raw
VERSIONS: dict[str, int] = {}  # the version this code writes, where it is not 1
UPGRADES: dict[tuple[str, int], Upgrade] = {}  # (type, version) -> to the next version

_RAW_FIELDS = frozenset({"native", "output"})
_encoder = msgspec.json.Encoder()
encode_json = _encoder.encode  # of an event whose version is 1
_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decoders = {name: msgspec.json.Decoder(cls) for name, cls in TYPES.items()}
_version_decoder = msgspec.json.Decoder(msgspec.defstruct("Version", [("v", int, 1)]))


def encode(event: events.Event) -> tuple[str, bytes]:
    """Return the record type and data of an event."""
    if isinstance(event, events.Unknown):
        return event.type, event.data
    name = NAMES[type(event)]
    version = VERSIONS.get(name, 1)
    if version == 1:
        return name, _encoder.encode(event)
    data = _raw_decoder.decode(_encoder.encode(event))
    return name, _encoder.encode({"v": version, **data})


def decode(kind: str, data: bytes) -> events.Event:
    """Return the event of a record; `Unknown` for a type or version that is newer than this code.

    Raises Corrupt if the data of a known type cannot be read.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        return events.Unknown(kind, data)
    try:
        if len(data) > READABLE_DEPTH:  # shorter data cannot be nested too deeply
            check_readable(data)
        if b'"v":' in data or kind in VERSIONS:
            return _decode_version(kind, data)
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, Corrupt) as error:
        raise Corrupt(f"an event of type {kind!r} cannot be read: {error}") from error


def _decode_version(kind: str, data: bytes) -> events.Event:
    version: int = _version_decoder.decode(data).v  # type: ignore[attr-defined]
    current = VERSIONS.get(kind, 1)
    if version > current:
        return events.Unknown(kind, data)
    if version == current:
        return _decoders[kind].decode(data)
    if version < 1:
        raise Corrupt(f"an event of type {kind!r} cannot be read: version {version}")
    raw_fields = _raw_decoder.decode(data)
    value: dict[str, Any] = {
        key: raw_fields[key] if key in _RAW_FIELDS else msgspec.json.decode(raw_fields[key])
        for key in raw_fields
    }
    for step in range(version, current):
        value = UPGRADES[kind, step](value)
    return _decoders[kind].decode(_encoder.encode(value))


def event_data(event: events.Event) -> Mapping[str, Any]:
    """Return the data of an event as plain JSON values, as HTTP, CLI and exports show it."""
    value: dict[str, Any] = msgspec.json.decode(encode(event)[1])
    return value


assert set(NAMES) | {events.Unknown} == set(get_args(events.Event))  # noqa: S101
