"""Messages and results with files in them: bytes are stored once per store, by content."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from perdure.core.log import events
from perdure.errors import Refused
from perdure.runtime.values import Content, File
from perdure.store.base import HeadMoved, NoStream, Record, Store, Write

MAX_BYTES: Final = 10 * 1024 * 1024


def check_size(text: str | bytes, what: str, limit: int = MAX_BYTES) -> None:
    """Refuse what is too large to be kept."""
    if len(text) * 4 <= limit:
        return  # no character has more than four bytes
    size = len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else len(text)
    if size > limit:
        raise Refused(
            f"{what} has {size:,} bytes; the limit is {limit:,}",
            code="TOO_LARGE",
            hint="store it elsewhere and pass a reference",
        )


def check_text(name: str, text: Any) -> None:
    """Refuse what is not text that can be kept; who did something must be said."""
    if not isinstance(text, str) or (name == "by" and not text):
        raise Refused(f"{name} must be text, not {text!a}", code="VALUE_INVALID")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(f"{name} has a lone surrogate", code="VALUE_INVALID") from error
    check_size(text, f"the {name}")


async def stored_content(store: Store, content: Content) -> events.Content:
    """A message as its event keeps it; the bytes of files are stored first."""
    if isinstance(content, str):
        check_size(content, "the message")
        return _clean(content)
    if isinstance(content, File):
        content = [content]
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise _no_message(content)
    items: Sequence[str | File] = content
    return [await _part(store, item) for item in items]


async def _part(store: Store, item: str | File) -> events.Part:
    if isinstance(item, str):
        check_size(item, "the message")
        return {"type": "text", "text": _clean(item)}
    if not isinstance(item, File):
        raise _no_message(item)
    part: dict[str, Any] = {"type": "file", "mediaType": item.media_type}
    if item.name is not None:
        part["name"] = item.name
    if item.data is None:
        return {**part, "url": item.url}
    return {**part, "blob": await store_bytes(store, item.data)}


def _no_message(value: Any) -> Refused:
    return Refused(
        f"a message is text, a File, or a list of them, not {type(value).__name__}",
        code="CONTENT_INVALID",
    )


def _clean(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(
            "the text has a lone surrogate, which no store can keep", code="CONTENT_INVALID"
        ) from error
    return text


def digest_of(data: bytes) -> str:
    """The name under which bytes are kept."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def store_bytes(store: Store, data: bytes) -> str:
    """Keep these bytes and answer their name; the same bytes again are kept once."""
    check_size(data, "the file")
    digest = digest_of(data)
    stream = f"blob/{digest}"
    try:
        record = Record("blob", data, store.now())
        await store.commit([Write(stream, [record], create="blob", head=0)])
    except HeadMoved:
        pass  # it is there already
    return digest


async def read_bytes(store: Store, digest: str) -> bytes:
    """The bytes that were stored under this name. Raises NoStream."""
    found = await store.read(f"blob/{digest}")
    return found.records[0].data


async def find_bytes(store: Store, digest: str) -> bytes | None:
    """The bytes that were stored under this name; None if they are gone."""
    try:
        return await read_bytes(store, digest)
    except NoStream:
        return None
