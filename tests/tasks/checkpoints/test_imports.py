"""Imported checkpoints: what is accepted can be restored, whoever wrote the manifest."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Refused
from perdure.tasks import MultiLayerPersistence, TaskLifecycle
from perdure.tasks.checkpoints import budget
from perdure.tasks.model import manifest as manifests
from perdure.tasks.model.manifest import MAX_DEPTH

pytestmark = pytest.mark.anyio
CONTENT = b"content"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/h.db"


@pytest.fixture
async def workspace(lifecycle: TaskLifecycle, root: Path) -> Path:
    await lifecycle.create_task({"name": "n", "id": "t"})
    return root / "t/workspace"


def archive(manifest: bytes, *contents: bytes) -> bytes:
    """Return an archive with this JSON as its manifest, and a checksum that is right."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as packed:
        checksum = hashlib.sha256(manifest).hexdigest().encode()
        parts = {"manifest.json": manifest + b"\n" + checksum + b"\n"}
        parts |= {f"objects/{hashlib.sha256(item).hexdigest()}": item for item in contents}
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    return gzip.compress(target.getvalue())


def manifest_of(*entries: dict[str, Any], **fields: Any) -> bytes:
    document = {"id": "c", "taskId": "t", "timestamp": "", "entries": entries, **fields}
    return msgspec.json.encode(document)


def file_with(**fields: Any) -> bytes:
    return manifest_of({"name": "f", "sha256": DIGEST, **fields})


def link_with(**fields: Any) -> bytes:
    return manifest_of({"name": "l", "type": "link", **fields})


UNRESTORABLE = {
    "a setuid file": file_with(mode=0o4755),
    "a setgid file": file_with(mode=0o2755),
    "a sticky folder": manifest_of({"name": "d", "type": "dir", "mode": 0o1777}),
    "a mode that is too large": file_with(mode=2**40),
    "a negative mode": file_with(mode=-1),
    "a link to NUL": link_with(target="a\0b"),
    "a link to nothing": link_with(target=""),
    "a link that is too long": link_with(target="x" * 4096),
    "a link in bad base 64": link_with(rawTarget="é"),
    "a link in empty base 64": link_with(rawTarget="!!!"),
    "a folder that is too deep": manifest_of(
        *({"name": "/".join("d" * n), "type": "dir"} for n in range(1, MAX_DEPTH + 1))
    ),
    "a state that is none": manifest_of(state=DIGEST),
    "a long description": manifest_of(description="x" * 1_001),
    "a time that is none": manifest_of(timestamp="x" * 1_000),
}


@pytest.mark.parametrize("manifest", UNRESTORABLE.values(), ids=UNRESTORABLE.keys())
async def test_an_archive_that_cannot_be_restored_as_it_says_is_refused(
    layers: MultiLayerPersistence, workspace: Path, tmp_path: Path, manifest: bytes
) -> None:
    """S3.49: a setuid file of root's would be one command away from any user of the machine."""
    (tmp_path / "c.tar.gz").write_bytes(archive(manifest, CONTENT))
    with pytest.raises(Refused) as refused:
        await layers.import_checkpoint("t", tmp_path / "c.tar.gz")
    assert refused.value.code == "CHECKPOINT_INVALID"
    assert await layers.list_checkpoints("t") == []
    assert list((workspace.parent / "checkpoints/objects").glob("*/*")) == []


@pytest.mark.parametrize("part", [b"{},", b'"",'])
async def test_a_manifest_of_many_tiny_parts_is_refused_before_it_is_decoded(
    layers: MultiLayerPersistence,
    workspace: Path,
    tmp_path: Path,
    part: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S3.49: 3 bytes become 120 in memory, and 256 MB of them are 260 kB in the archive."""
    key = b"entries" if part == b"{}," else b"skipped"
    parts = part * 4_100_000 + part[:-1]
    manifest = b'{"id":"c","taskId":"t","timestamp":"","%s":[%s]}' % (key, parts)
    (tmp_path / "c.tar.gz").write_bytes(archive(manifest))
    assert (tmp_path / "c.tar.gz").stat().st_size < 100_000
    monkeypatch.setattr(manifests, "decode", lambda content: pytest.fail("decoded"))
    with pytest.raises(Refused) as refused:
        await layers.import_checkpoint("t", tmp_path / "c.tar.gz")
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"


async def test_an_import_stops_while_others_fill_the_disk(
    layers: MultiLayerPersistence,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S3.49"""
    content = bytes(65 * 2**20)
    (tmp_path / "c.tar.gz").write_bytes(archive(manifest_of(), content))
    free = iter([10**9, 10**7, 10**9])
    monkeypatch.setattr(budget, "free_bytes", lambda folder: next(free))
    with pytest.raises(Refused, match="more space than the disk") as refused:
        await layers.import_checkpoint("t", tmp_path / "c.tar.gz")
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"
    assert list((workspace.parent / "checkpoints/objects").glob("*/*")) == []
