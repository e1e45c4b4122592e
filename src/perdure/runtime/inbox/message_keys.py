"""Keys of messages: a message that is sent again under its key changes nothing."""

import hashlib

import msgspec

from perdure.core.log import events
from perdure.core.session import naming as index
from perdure.core.session.naming import KeyRecord
from perdure.errors import Conflict
from perdure.store.base import Entry, Put


def entry_key(stream: str, key: str) -> str:
    """Return the key of the entry that remembers a message of a session."""
    return f"{stream}|{key}"


def message_key_puts(key: str | None, content: events.Content, stream: str) -> list[Put]:
    """Return the put that remembers a message by its key, if it has one."""
    if key is None:
        return []
    data = index.encode_key(KeyRecord(_digest(content)))
    return [Put("key", entry_key(stream, key), 0, stream, "sent", None, data)]


def check_same(key_entry: Entry, key: str | None, content: events.Content) -> None:
    """Raise Conflict if the entry of a key remembers another message than this one."""
    if index.decode_key(key_entry.data).digest != _digest(content):
        raise Conflict(
            f"another message was sent under the key {key!r}",
            code="KEY_REUSED",
            hint="use a new key for a new message",
        )


def _digest(content: events.Content) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:32]
