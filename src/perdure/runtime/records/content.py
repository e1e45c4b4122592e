"""Messages and results with files: their bytes are stored once per store, by digest."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from perdure.core.json_depth import encode_value
from perdure.core.log import events
from perdure.errors import Refused
from perdure.store.base import HeadMoved, NoStream, Record, Store, Write
from perdure.views.values import Content, File

MAX_BYTES: Final = 10 * 1024 * 1024
_SURROGATE_HINT: Final = "it is half of a character: decode the text correctly before sending it"


def check_size(text: str | bytes, label: str, limit: int = MAX_BYTES) -> None:
    """Raise Refused if the text or bytes are too large to be stored."""
    if len(text) * 4 <= limit:
        return  # UTF-8 has at most four bytes per character
    size = len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else len(text)
    if size > limit:
        raise Refused(
            f"{label} has {size:,} bytes; the limit is {limit:,}",
            code="TOO_LARGE",
            hint="store it elsewhere and pass a reference",
        )


def check_text(name: str, text: Any) -> None:
    """Raise Refused if a value is not text that can be stored; `by` must not be empty."""
    if not isinstance(text, str) or (name == "by" and not text):
        raise Refused(
            f"{name} must be text, not {text!a}",
            code="VALUE_INVALID",
            hint=f"pass {name} as text, or leave it out",
        )
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise Refused(
            f"{name} has a lone surrogate", code="VALUE_INVALID", hint=_SURROGATE_HINT
        ) from error
    if len(text) * 4 > MAX_BYTES:
        check_size(text, f"the {name}")


def check_json(label: str, value: Any, code: str = "VALUE_INVALID") -> bytes:
    """Return a value as JSON. Raises Refused if it cannot be stored as that."""
    try:
        return encode_value(value, label)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Refused(
            f"{label} is not JSON: {error}", code=code, hint="use text, numbers, lists and objects"
        ) from error


async def stored_content(store: Store, content: Content) -> events.Content:
    """Return a message as its event holds it, after storing the bytes of its files."""
    if isinstance(content, str):
        check_size(content, "the message")
        return _check_unicode(content)
    if isinstance(content, File):
        content = [content]
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise _not_a_message(content)
    items: Sequence[str | File] = content
    return [await _part(store, item) for item in items]


async def _part(store: Store, item: str | File) -> events.Part:
    if isinstance(item, str):
        check_size(item, "the message")
        return {"type": "text", "text": _check_unicode(item)}
    if not isinstance(item, File):
        raise _not_a_message(item)
    part: dict[str, Any] = {"type": "file", "mediaType": item.media_type}
    if item.name is not None:
        part["name"] = item.name
    if item.data is None:
        return {**part, "url": item.url}
    return {**part, "blob": await store_bytes(store, item.data)}


def _not_a_message(value: Any) -> Refused:
    return Refused(
        f"a message is text, a File, or a list of them, not {type(value).__name__}",
        code="CONTENT_INVALID",
        hint="pass text, File(…), or a list such as [text, File(…)]",
    )


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(
            "the text has a lone surrogate, which no store can keep",
            code="CONTENT_INVALID",
            hint=_SURROGATE_HINT,
        ) from error
    return text


def content_digest(data: bytes) -> str:
    """Return the name under which bytes are stored."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def store_bytes(store: Store, data: bytes) -> str:
    """Store bytes and return their digest; the same bytes are stored once."""
    check_size(data, "the file")
    digest = content_digest(data)
    stream = f"blob/{digest}"
    try:
        record = Record("blob", data, store.now())
        await store.commit([Write(stream, [record], create="blob", head=0)])
    except HeadMoved:
        pass  # stored already
    return digest


async def read_bytes(store: Store, digest: str) -> bytes:
    """Return the bytes with this digest. Raises NoStream."""
    blob = await store.read(f"blob/{digest}")
    return blob.records[0].data


async def find_bytes(store: Store, digest: str) -> bytes | None:
    """Return the bytes with this digest, or None if they are not stored."""
    try:
        return await read_bytes(store, digest)
    except NoStream:
        return None


def event_blobs(event: events.Event) -> Iterable[str]:
    """Yield the digests of the files that an event refers to."""
    content: events.Content | dict[str, Any] = ""
    if isinstance(event, events.User | events.FollowUpQueued):
        content = event.content
    elif isinstance(event, events.ToolResult):
        content = event.result
    if isinstance(content, list):
        for part in content:
            if isinstance(part.get("blob"), str):
                yield part["blob"]
