"""Static files: each has a hash of its content in its name, so that browsers may keep it."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.responses import Response

PREFIX: Final = "/static/"
_TYPES: Final = {
    "perdure.css": "text/css; charset=utf-8",
    "perdure.js": "text/javascript; charset=utf-8",
    "icons.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the pages, under a name that changes with its content."""

    name: str
    media_type: str
    data: bytes
    packed: bytes

    def response(self, accept_encoding: str) -> Response:
        """Return the file, which a browser may keep for ever."""
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        headers["Vary"] = "Accept-Encoding"
        if "gzip" in accept_encoding:
            headers["Content-Encoding"] = "gzip"
            return Response(self.packed, headers=headers, media_type=self.media_type)
        return Response(self.data, headers=headers, media_type=self.media_type)


@cache
def static_files() -> dict[str, StaticFile]:
    """Return all static files by their plain names."""
    folder = files("perdure.serve.ui").joinpath("assets")
    return {name: _load(name, folder.joinpath(name).read_bytes()) for name in _TYPES}


def _load(name: str, data: bytes) -> StaticFile:
    stem, _, suffix = name.rpartition(".")
    digest = hashlib.sha256(data).hexdigest()[:12]
    packed = gzip.compress(data, mtime=0)
    return StaticFile(f"{stem}-{digest}.{suffix}", _TYPES[name], data, packed)


@cache
def _by_hashed_name() -> dict[str, StaticFile]:
    return {item.name: item for item in static_files().values()}


def find_static(path: str) -> StaticFile | None:
    """Return the file at a path; None if there is none."""
    return _by_hashed_name().get(path.removeprefix(PREFIX))
