"""Archives of checkpoints: a tar file with the manifest and its objects, and nothing else.

An archive is never unpacked by path: its members can only be the manifest and objects, and every
object must have the content that its name says. Its headers are read one block at a time, without
the extensions of the format, so that none of them can name a link, a path or a size of its own.
"""

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Callable
from typing import IO, Final

from msgspec.structs import replace

from perdure.errors import Corrupt, Refused
from perdure.tasks.checkpoints.budget import CheckpointLimits, FreeSpace
from perdure.tasks.checkpoints.manifests import ManifestFolder
from perdure.tasks.checkpoints.workspace import check_tree
from perdure.tasks.model import manifest as manifests
from perdure.tasks.model.manifest import Manifest
from perdure.tasks.values import check_description, parse_instant

_MANIFEST: Final = "manifest.json"
_OBJECT: Final = re.compile(r"objects/([0-9a-f]{64})")
_MAX_MANIFEST: Final = 256 * 2**20
_MAX_PARTS: Final = 20  # commas for each file: twice those of an entry, and some in its name
_FILE_TYPES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE)


def write_archive(target: IO[bytes], manifest: Manifest, folder: ManifestFolder) -> None:
    """Write a checkpoint as a compressed tar file. Raises Corrupt, OSError."""
    with tarfile.open(fileobj=target, mode="w|gz", format=tarfile.GNU_FORMAT) as archive:
        content = manifests.encode(manifest)
        archive.addfile(_member(_MANIFEST, len(content)), io.BytesIO(content))
        for digest in sorted(manifest.digests()):
            path = folder.objects.path(digest)
            if (problem := folder.objects.problem(digest)) is not None:
                raise Corrupt(
                    problem,
                    code="CHECKPOINT_DAMAGED",
                    hint="export another checkpoint, and delete this one",
                )
            with path.open("rb") as file:
                archive.addfile(_member(f"objects/{digest}", path.stat().st_size), file)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o444
    return member


def read_archive(source: IO[bytes], folder: ManifestFolder, limits: CheckpointLimits) -> Manifest:
    """Store the objects of an archive, and return its manifest. Raises Refused, OSError.

    The entries have the sizes of their objects, whatever the archive says. What was stored before
    a refusal is not referenced, and is collected later.
    """
    manifest: Manifest | None = None
    sizes: dict[str, int] = {}
    # A small archive may expand to anything: it must leave some of the disk to the store.
    space = FreeSpace(folder.folder)
    left = min(limits.size, space.usable)
    try:
        content = _expanded(source)
        while (member := _next_member(content)) is not None:
            if len(sizes) > limits.files or member.size > left:
                raise _bad("it is larger than a checkpoint may be", "CHECKPOINT_TOO_LARGE")
            left -= member.size
            body = MemberContent(content, member.size, space)
            if member.name == _MANIFEST and manifest is None:
                manifest = _read_manifest(body, limits)
            else:
                digest = _read_object(member.name, body.read, folder, member.size)
                if digest in sizes:  # a small archive can repeat an empty object without end
                    raise _bad(f"{member.name} is in it twice")
                sizes[digest] = member.size
            body.skip_padding()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, Corrupt) as error:
        reason = error.message if isinstance(error, Corrupt) else str(error)
        raise _bad(reason or "it is cut off") from error
    if manifest is None or (missing := manifest.digests() - sizes.keys()):
        raise _bad(
            "it has no manifest" if manifest is None else f"{len(missing)} objects are missing"
        )
    entries = tuple(
        replace(item, size=sizes[item.sha256] if item.type == "file" else 0)
        for item in manifest.entries
    )
    check_tree("the file", entries, sizes.__getitem__, limits, FreeSpace(folder.folder))
    _check_layers(manifest, folder)
    return replace(manifest, entries=entries)


def _check_layers(manifest: Manifest, folder: ManifestFolder) -> None:
    """Check what lists and restores use beside the entries. Raises Refused."""
    try:
        check_description(manifest.description)
        if manifest.timestamp:
            parse_instant(manifest.timestamp, "timestamp")
        if manifest.state:
            folder.state(manifest.state)
    except (Refused, Corrupt) as error:
        if error.code == "CHECKPOINT_TOO_LARGE":
            raise
        raise _bad(error.message) from error


def _expanded(source: IO[bytes]) -> IO[bytes] | gzip.GzipFile:
    source.seek(0)
    is_compressed = source.read(2) == b"\x1f\x8b"
    source.seek(0)
    return gzip.open(source) if is_compressed else source


def _next_member(content: IO[bytes] | gzip.GzipFile) -> tarfile.TarInfo | None:
    """Read the next header; None at the end. Raises Refused, TarError, EOFError."""
    block = content.read(tarfile.BLOCKSIZE)
    if not block.strip(b"\0"):
        if len(block) < tarfile.BLOCKSIZE:
            raise EOFError
        return None
    if len(block) < tarfile.BLOCKSIZE:
        raise EOFError
    member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    if member.type not in _FILE_TYPES or member.size < 0:
        raise _bad(f"{member.name!a} is not a plain file")
    return member


class MemberContent:
    """Content of one member, which can be read to its end and not beyond."""

    def __init__(self, content: IO[bytes] | gzip.GzipFile, size: int, space: FreeSpace) -> None:
        self._content = content
        self._space = space
        self._left = size
        self._padding = -size % tarfile.BLOCKSIZE

    def read(self, size: int) -> bytes:
        """Return the next bytes; none at the end. Raises EOFError if the archive ends, Refused."""
        piece = self._content.read(min(size, self._left))
        if not piece and self._left:
            raise EOFError
        self._left -= len(piece)
        self._space.spend(len(piece))
        return piece

    def skip_padding(self) -> None:
        """Go on to the next header."""
        self._content.read(self._padding)


def _read_manifest(content: MemberContent, limits: CheckpointLimits) -> Manifest:
    pieces: list[bytes] = []
    size = 0
    while piece := content.read(2**20):
        size += len(piece)
        if size > _MAX_MANIFEST:
            raise _bad("its manifest is too large", "CHECKPOINT_TOO_LARGE")
        pieces.append(piece)
    parts = sum(piece.count(b",") for piece in pieces)
    if parts > _MAX_PARTS * limits.files:  # each may take 40 times its bytes once it is decoded
        raise _bad("its manifest has too many parts", "CHECKPOINT_TOO_LARGE")
    return manifests.decode(b"".join(pieces))


def _read_object(name: str, read: Callable[[int], bytes], folder: ManifestFolder, size: int) -> str:
    match = _OBJECT.fullmatch(name)
    if match is None:
        raise _bad(f"{name!a} is not part of a checkpoint")
    digest = folder.objects.put_stream(read, size)
    if digest != match[1]:
        raise _bad(f"{name} has other content than its name says")
    return digest


def _bad(reason: str, code: str = "CHECKPOINT_INVALID") -> Refused:
    return Refused(
        f"the file is not a checkpoint that can be imported: {reason}",
        code=code,
        hint="export it again with export_checkpoint",
    )
