"""Content of messages in JSON: text, or parts of text and files."""

import base64
import binascii
from typing import Any

from msgspec import UNSET

from perdure.core.log import events
from perdure.errors import NotFound, Refused
from perdure.runtime.records.content import event_blobs
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.sessions.service import Service
from perdure.views.bodies import ContentIn, FileIn, TextIn
from perdure.views.values import File


def plain_text(content: ContentIn | None) -> str | None:
    """Return the text of content without files; None if there are files or no content."""
    if content is None or isinstance(content, str):
        return content
    texts = [part.text for part in content if isinstance(part, TextIn)]
    return "\n".join(texts) if len(texts) == len(content) else None


async def store_content(
    service: Service, entry: SessionEntry | None, content: ContentIn
) -> events.Content:
    """Store the bytes of files, then return the content as its event has it. Raises Refused."""
    if isinstance(content, str):
        return await service.store_content(content)
    parts: list[events.Part] = []
    for part in content:
        if isinstance(part, FileIn) and part.blob is not UNSET:
            parts.append(await _existing_file(service, entry, part))
            continue
        stored = await service.store_content([_decode_part(part)])
        parts += [item for item in stored if not isinstance(item, str)]
    if not parts:
        raise Refused(
            "the message has no parts",
            code="CONTENT_INVALID",
            hint="send a text, or a list of parts that is not empty",
        )
    return parts


def _decode_part(part: TextIn | FileIn) -> str | File:
    if isinstance(part, TextIn):
        return part.text
    if (part.data is UNSET) == (part.url is UNSET):
        raise Refused(
            "a file part needs exactly one of data, url and blob",
            code="CONTENT_INVALID",
            hint="data is the file in base64",
        )
    data = None if part.data is UNSET else _decode_base64(part.data)
    url = None if part.url is UNSET else part.url
    return File(part.media_type, data=data, url=url, name=part.name)


def _decode_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(
            f"data is not base64: {error}",
            code="CONTENT_INVALID",
            hint="encode the bytes of the file in base64, without line breaks",
        ) from error


async def _existing_file(service: Service, entry: SessionEntry | None, part: FileIn) -> events.Part:
    """Return the part of a file that the session already has: a digest gives no other access."""
    existing = None if entry is None else await find_file(service, entry, str(part.blob))
    if existing is None or part.data is not UNSET or part.url is not UNSET:
        raise Refused(
            f"the session has no file {part.blob!a}",
            code="CONTENT_INVALID",
            hint="send its bytes as data",
        )
    return {**existing, "mediaType": part.media_type, **({"name": part.name} if part.name else {})}


async def find_file(service: Service, entry: SessionEntry, digest: str) -> events.Part | None:
    """Return the newest part in a session's log that refers to a file; None if none does."""
    async with service.reading(entry) as log:
        for stamped in reversed(log.events):
            if digest in event_blobs(stamped.event):
                return next(part for part in _parts(stamped.event) if part.get("blob") == digest)
    return None


def _parts(event: events.Event) -> list[events.Part]:
    content: Any = ""
    if isinstance(event, events.User | events.FollowUpQueued):
        content = event.content
    elif isinstance(event, events.ToolResult):
        content = event.result
    return content if isinstance(content, list) else []


def file_not_found(digest: str) -> NotFound:
    """Return the error for a file that a session does not have."""
    return NotFound(
        f"the session has no file {digest!a}",
        code="FILE_NOT_FOUND",
        hint="GET /sessions/{id}/messages lists its files",
    )
