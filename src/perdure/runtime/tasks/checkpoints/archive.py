"""Archives of checkpoints: a tar file with the manifest and its objects, and nothing else.

An archive is never unpacked by path: its members can only be the manifest and objects, and every
object must have the content that its name says.
"""

import io
import re
import tarfile
import zlib
from pathlib import Path
from typing import IO, Final

from perdure.core.tasks import manifest as manifests
from perdure.core.tasks.manifest import Manifest
from perdure.errors import Corrupt, Refused
from perdure.runtime.tasks.checkpoints.manifests import ManifestFolder
from perdure.runtime.tasks.checkpoints.workspace import CheckpointLimits

_MANIFEST: Final = "manifest.json"
_OBJECT: Final = re.compile(r"objects/([0-9a-f]{64})")
_MAX_MANIFEST: Final = 256 * 2**20


def write_archive(target: IO[bytes], manifest: Manifest, folder: ManifestFolder) -> None:
    """Write a checkpoint as a compressed tar file. Raises Corrupt, OSError."""
    with tarfile.open(fileobj=target, mode="w|gz", format=tarfile.PAX_FORMAT) as archive:
        content = manifests.encode(manifest)
        archive.addfile(_member(_MANIFEST, len(content)), io.BytesIO(content))
        for digest in sorted(manifest.digests()):
            path = folder.objects.path(digest)
            if (problem := folder.objects.problem(digest)) is not None:
                raise Corrupt(problem, code="CHECKPOINT_DAMAGED")
            with path.open("rb") as file:
                archive.addfile(_member(f"objects/{digest}", path.stat().st_size), file)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o444
    return member


def read_archive(source: Path, folder: ManifestFolder, limits: CheckpointLimits) -> Manifest:
    """Store the objects of an archive, and return its manifest. Raises Refused, OSError.

    What was stored before a refusal is not referenced, and is collected later.
    """
    manifest: Manifest | None = None
    left, digests = limits.size, set[str]()
    try:
        with source.open("rb") as file, tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                if len(digests) > limits.files or member.size > left:
                    raise _bad("it is larger than a checkpoint may be", "CHECKPOINT_TOO_LARGE")
                left -= member.size
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise _bad(f"{member.name!a} is not a plain file")
                if member.name == _MANIFEST and manifest is None:
                    manifest = _read_manifest(content)
                else:
                    digests.add(_read_object(member.name, content, folder, limits))
    except (tarfile.TarError, EOFError, zlib.error, Corrupt) as error:
        reason = error.message if isinstance(error, Corrupt) else str(error)
        raise _bad(reason or "it is cut off") from error
    if manifest is None or (missing := manifest.digests() - digests):
        raise _bad(
            "it has no manifest" if manifest is None else f"{len(missing)} objects are missing"
        )
    return manifest


def _read_manifest(content: IO[bytes]) -> Manifest:
    data = content.read(_MAX_MANIFEST + 1)
    if len(data) > _MAX_MANIFEST:
        raise _bad("its manifest is too large", "CHECKPOINT_TOO_LARGE")
    return manifests.decode(data)


def _read_object(
    name: str, content: IO[bytes], folder: ManifestFolder, limits: CheckpointLimits
) -> str:
    match = _OBJECT.fullmatch(name)
    if match is None:
        raise _bad(f"{name!a} is not part of a checkpoint")
    digest = folder.objects.put_stream(content, limits.size)
    if digest != match[1]:
        raise _bad(f"{name} has other content than its name says")
    return digest


def _bad(reason: str, code: str = "CHECKPOINT_INVALID") -> Refused:
    return Refused(
        f"the file is not a checkpoint that can be imported: {reason}",
        code=code,
        hint="export it again with export_checkpoint",
    )
