"""What somebody says, as it comes in JSON: text, or parts of text and files."""

import base64
import binascii
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType, field

from perdure.core.log import events
from perdure.errors import NotFound, Refused
from perdure.runtime.records.content import stored_content
from perdure.runtime.records.entries import SessionEntry, erased_as_not_found
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.service import Service
from perdure.runtime.transfer.archive import blobs_in
from perdure.runtime.values import File

MEDIA_TYPE: Final = r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$"

MediaType = Annotated[str, Meta(max_length=200, pattern=MEDIA_TYPE)]


class TextIn(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """A part that is text."""

    text: str


class FileIn(Struct, tag="file", tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """A part that is a file: its bytes in base64, a url, or a file that the session has."""

    media_type: MediaType = field(name="mediaType")
    name: Annotated[str, Meta(max_length=200)] | None = None
    data: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    blob: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Say no to a line's end, which a pattern lets pass behind what it describes."""
        if self.media_type.endswith("\n"):
            raise ValueError("mediaType is one line")


ContentIn = str | list[TextIn | FileIn]


def text_of(content: ContentIn | None) -> str | None:
    """The text, where there is nothing else."""
    if content is None or isinstance(content, str):
        return content
    texts = [part.text for part in content if isinstance(part, TextIn)]
    return "\n".join(texts) if len(texts) == len(content) else None


async def stored(
    service: Service, known: SessionEntry | None, content: ContentIn
) -> events.Content:
    """The content as its event keeps it; bytes are stored first. Raises Refused."""
    if isinstance(content, str):
        return await stored_content(service.desk.store, content)
    kept: list[events.Part] = []
    for part in content:
        if isinstance(part, FileIn) and part.blob is not UNSET:
            kept.append(await _had(service, known, part))
            continue
        made = await stored_content(service.desk.store, [_taken(part)])
        kept += [one for one in made if not isinstance(one, str)]
    if not kept:
        raise Refused("the message has no parts", code="CONTENT_INVALID")
    return kept


def _taken(part: TextIn | FileIn) -> str | File:
    if isinstance(part, TextIn):
        return part.text
    if (part.data is UNSET) == (part.url is UNSET):
        raise Refused(
            "a file has one of data, url and blob",
            code="CONTENT_INVALID",
            hint="data is base64",
        )
    data = None if part.data is UNSET else _bytes(part.data)
    url = None if part.url is UNSET else part.url
    return File(part.media_type, data=data, url=url, name=part.name)


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(f"data is not base64: {error}", code="CONTENT_INVALID") from error


async def _had(service: Service, known: SessionEntry | None, part: FileIn) -> events.Part:
    """A file that the session has already; others are nobody's to name."""
    found = None if known is None else await file_of(service, known, str(part.blob))
    if found is None or part.data is not UNSET or part.url is not UNSET:
        raise Refused(
            f"the session has no file {part.blob!a}",
            code="CONTENT_INVALID",
            hint="send its bytes as data",
        )
    return {**found, "mediaType": part.media_type, **({"name": part.name} if part.name else {})}


async def file_of(service: Service, known: SessionEntry, digest: str) -> events.Part | None:
    """The part of a session's log that names a file, the newest; None if none does."""
    log = Log(service.desk.store, known.stream)
    with erased_as_not_found(known.record.id):
        await log.catch_up()
    for one in reversed(log.events):
        if digest in blobs_in(one.event):
            return next(part for part in _parts(one.event) if part.get("blob") == digest)
    return None


def _parts(event: events.Event) -> list[events.Part]:
    content: Any = ""
    if isinstance(event, events.User):
        content = event.content
    elif isinstance(event, events.ToolResult):
        content = event.result
    return content if isinstance(content, list) else []


def header_of(media_type: str) -> str:
    """The type of a file as a header may say it: tools, unlike messages, may call it anything."""
    fits = media_type.isascii() and media_type.isprintable()
    return media_type if fits else "application/octet-stream"


def no_file(digest: str) -> NotFound:
    """The refusal of a file that a session does not name."""
    return NotFound(
        f"the session has no file {digest!a}",
        code="FILE_NOT_FOUND",
        hint="GET /sessions/{id}/messages names its files",
    )
