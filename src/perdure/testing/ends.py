"""Ends of sessions: what a story has left in the store."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.app import Runtime
from perdure.core.session.naming import parse_session_stream
from perdure.store.base import Record, Store


@dataclass(frozen=True, slots=True)
class End:
    """State of a session at the end of the story."""

    state: str
    output: Any
    pending: tuple[str, ...]  # tools of the open calls
    messages: tuple[Any, ...]
    turns: int


async def all_records(store: Store) -> list[Record]:
    """Return all records of a store, in the order of its feed."""
    await store.open()
    records: list[Record] = []
    cursor = ""
    while True:
        feed = await store.tail(cursor)
        records += feed.records
        if feed.cursor == cursor:
            return records
        cursor = feed.cursor


async def session_ends(store: Store) -> dict[str, End]:
    """Return the end of every session, by its name."""
    messages: dict[str, list[Any]] = {}
    turns: Counter[str] = Counter()
    for record in await all_records(store):
        name = _name(*(parse_session_stream(record.stream) or ("", "")))
        if record.type == "user":
            messages.setdefault(name, []).append(msgspec.json.decode(record.data)["content"])
        turns[name] += record.type == "assistant"
    ends = {}
    async with Runtime(store) as rt:
        async for result in rt.sessions():
            name = _name(result.tenant, result.session_id)
            tools = tuple(sorted(call.tool for call in result.pending))
            contents = tuple(messages.get(name, ()))
            ends[name] = End(result.state, result.output, tools, contents, turns[name])
    return ends


def _name(tenant: str, session_id: str) -> str:
    return f"{tenant}/{session_id}" if tenant else session_id
