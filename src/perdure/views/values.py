"""Values that callers pass: messages with files, and durations."""

import base64
import mimetypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import msgspec

from perdure.errors import Refused
from perdure.views.durations import duration_ms

Duration = str | float | timedelta


def parse_duration(value: Duration) -> int:
    """Return whole milliseconds of a duration: seconds, text such as `"1h30m"`, or a timedelta."""
    return duration_ms(value.total_seconds() if isinstance(value, timedelta) else value)


@dataclass(frozen=True, slots=True)
class File:
    """A file in a message or a tool result: its bytes, or a URL that perdure never fetches."""

    media_type: str
    data: bytes | None = field(default=None, repr=False)
    url: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise Refused(
                "a File has either data or a url",
                code="FILE_INVALID",
                hint="pass exactly one of data= and url=",
            )
        if "/" not in self.media_type:
            raise Refused(
                f"{self.media_type!r} is not a media type",
                code="FILE_INVALID",
                hint="write it as in image/png",
            )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read the file at a path; its media type is guessed from its name."""
        source = Path(path)
        return cls(_media_type(source.name), data=source.read_bytes(), name=source.name)


Content = str | File | Sequence[str | File]
Message = Content | Sequence[Mapping[str, Any]]  # or parts as HTTP has them


def _media_type(name: str) -> str:
    guess, encoding = mimetypes.guess_type(name, strict=False)
    if encoding is not None:  # the guess is for the content of a .tar.gz, not for its bytes
        return "application/gzip" if encoding == "gzip" else "application/octet-stream"
    return guess or "application/octet-stream"


def content_json(content: Message) -> str | list[dict[str, Any]]:
    """Return a message as HTTP takes it."""
    if isinstance(content, str):
        return content
    return [_part_json(part) for part in ([content] if isinstance(content, File) else content)]


def _part_json(part: str | File | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, File):
        return dict(part)
    shown: dict[str, Any] = {"type": "file", "mediaType": part.media_type}
    if part.name is not None:
        shown["name"] = part.name
    if part.data is None:
        return {**shown, "url": part.url}
    return {**shown, "data": base64.b64encode(part.data).decode("ascii")}


def metadata_texts(metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """Return values of metadata as a filter of sessions has them: text as it is, others in JSON."""
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in (metadata or {}).items()
    }
