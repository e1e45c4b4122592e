"""Restores that no archive and no command can turn against the task or its disk."""

import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.paths import ROOT

from perdure import NotFound, Refused, Runtime
from perdure.app import service_of
from perdure.errors import Corrupt
from perdure.tasks import MultiLayerPersistence, RestoredTask, TaskLifecycle
from perdure.tasks.checkpoints.budget import CheckpointLimits, FreeSpace
from perdure.tasks.checkpoints.objects import ObjectStore
from perdure.tasks.checkpoints.workspace import build
from perdure.tasks.files.removal import remove_tree
from perdure.tasks.model import manifest as manifests
from perdure.tasks.model.manifest import Manifest, file_entry

pytestmark = pytest.mark.anyio

DISK = 2_000_000
NOBODY = 65534


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/h.db"


@pytest.fixture
async def rt(url: str, root: Path) -> AsyncIterator[Runtime]:
    async with Runtime(url, tasks={"root": root, "limits": {"disk": DISK}}) as opened:
        yield opened


@pytest.fixture
async def workspace(lifecycle: TaskLifecycle, root: Path) -> AsyncIterator[Path]:
    await lifecycle.create_task({"name": "n", "id": "t"})
    yield root / "t/workspace"
    remove_tree(root)  # pytest cannot remove a deep one


def bomb(copies: int, size: int) -> bytes:
    """Return an archive whose one object is named by many entries, which say that it is empty."""
    content = bytes(size)
    digest = hashlib.sha256(content).hexdigest()
    entries = tuple(file_entry(b"f%d" % n, "file", sha256=digest, size=0) for n in range(copies))
    manifest = Manifest(id="c", task_id="t", timestamp="", entries=entries)
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        parts = {"manifest.json": manifests.encode(manifest), f"objects/{digest}": content}
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(target.getvalue())


def object_names(workspace: Path) -> list[Path]:
    return list((workspace.parent / "checkpoints/objects").glob("*/*"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def folder_names(workspace: Path) -> set[str]:
    return set(names(workspace.parent))


def change_flag(flag: str, folder: Path) -> bool:
    """Change the attribute of the files `a` below a folder; False if that is not possible."""
    words = ["chattr", flag, *map(str, folder.rglob("a"))]
    return subprocess.run(words, check=False).returncode == 0


# --- bytes ----------------------------------------------------------------------------------------


async def test_an_archive_that_names_one_object_many_times_is_refused_by_its_real_size(
    layers: MultiLayerPersistence, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "bomb").write_bytes(bomb(40, 100_000))
    assert (tmp_path / "bomb").stat().st_size < 4_000
    with pytest.raises(Refused) as refused:
        await layers.import_checkpoint("t", tmp_path / "bomb")
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"
    assert await layers.list_checkpoints("t") == []
    assert object_names(workspace) == []


async def test_sizes_in_an_imported_manifest_are_replaced_by_those_of_the_objects(
    layers: MultiLayerPersistence, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "small").write_bytes(bomb(3, 1_000))
    await layers.import_checkpoint("t", tmp_path / "small")
    (listed,) = await layers.list_checkpoints("t")
    assert [item["size"] for item in listed.manifest["entries"]] == [1_000] * 3


async def test_a_checkpoint_above_the_disk_limit_of_today_is_not_restored(
    url: str, root: Path, tmp_path: Path
) -> None:
    async with Runtime(url, tasks={"root": root}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        (tmp_path / "bomb").write_bytes(bomb(40, 100_000))
        checkpoint = await MultiLayerPersistence(rt).import_checkpoint("t", tmp_path / "bomb")
    (root / "t/workspace/a").write_text("present")
    async with Runtime(url, tasks={"root": root, "limits": {"disk": DISK}}) as rt:
        with pytest.raises(Refused, match=r"tasks\.limits\.disk") as refused:
            await MultiLayerPersistence(rt).restore_checkpoint("t", checkpoint)
        assert refused.value.code == "CHECKPOINT_TOO_LARGE"
    assert names(root / "t/workspace") == ["a"]
    assert not [name for name in names(root / "t") if name.startswith(("restore", "repl"))]


async def test_hard_links_and_sparse_files_count_with_the_bytes_that_a_restore_writes(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    (workspace / "a").write_text("first")
    first = await layers.create_checkpoint("t")
    (workspace / "big").write_bytes(os.urandom(500_000))
    for number in range(4):
        os.link(workspace / "big", workspace / f"link{number}")
    with pytest.raises(Refused) as refused:
        await layers.create_checkpoint("t")
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"
    for number in range(4):
        (workspace / f"link{number}").unlink()
    os.truncate(workspace / "big", 3_000_000)
    with pytest.raises(Refused) as refused:
        await layers.create_checkpoint("t")
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"
    assert len(object_names(workspace)) == len(
        {name for item in await layers.list_checkpoints("t") for name in digests(item.manifest)}
    )
    assert (await layers.restore_checkpoint("t", first)).problem is not None
    assert names(workspace) == ["a"]


def digests(manifest: Any) -> set[str]:
    files = {item["sha256"] for item in manifest["entries"]}
    return files | {manifest["state"], *manifest["logs"]}


async def test_many_small_files_count_with_the_blocks_that_they_take(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    for number in range(600):
        (workspace / f"f{number}").touch()
    with pytest.raises(Refused) as refused:
        await layers.create_checkpoint("t")
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


async def test_a_restore_leaves_a_tenth_of_the_free_space(
    layers: MultiLayerPersistence, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a").write_bytes(bytes(1_000_000))
    checkpoint = await layers.create_checkpoint("t")
    (workspace / "a").write_text("present")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 1_050_000))
    with pytest.raises(Refused) as refused:
        await layers.restore_checkpoint("t", checkpoint)
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"
    assert (workspace / "a").read_text() == "present"
    assert not [name for name in folder_names(workspace) if name.startswith("restore")]


def test_a_build_stops_when_others_have_used_up_the_disk_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = ObjectStore(tmp_path / "objects")
    digest = objects.put(bytes(70 * 2**20))
    entries = [file_entry(b"f%d" % number, "file", sha256=digest) for number in range(2)]
    free = iter([10**9, 10**7])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, next(free)))
    with pytest.raises(Refused) as refused:
        build(tmp_path / "new", entries, objects, CheckpointLimits())
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"
    assert not (tmp_path / "new").exists()


def test_an_object_that_grew_is_not_copied_beyond_the_size_that_was_counted(
    tmp_path: Path,
) -> None:
    objects = ObjectStore(tmp_path / "objects")
    digest = objects.put(b"content")
    objects.path(digest).chmod(0o644)
    pieces = objects.pieces(digest)
    with objects.path(digest).open("ab") as file:
        file.write(b"more")
    with pytest.raises(Corrupt):
        list(pieces)
    assert FreeSpace(tmp_path).usable > 0


async def test_a_state_that_is_too_large_for_memory_is_not_read(
    rt: Runtime,
    layers: MultiLayerPersistence,
    workspace: Path,
    tmp_path: Path,
) -> None:
    content = bytes(200 * 2**20)
    digest = hashlib.sha256(content).hexdigest()
    manifest = Manifest(id="c", task_id="t", timestamp="", state=digest)
    parts = {"manifest.json": manifests.encode(manifest), f"objects/{digest}": content}
    with tarfile.open(tmp_path / "c.tar", "w") as archive:
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with pytest.raises(Refused) as refused:
        await layers.import_checkpoint("t", tmp_path / "c.tar")
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"


# --- workspaces that cannot be saved --------------------------------------------------------------


def deepen(workspace: Path) -> None:
    fd = os.open(workspace, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def fill(workspace: Path) -> None:
    (workspace / "big").write_bytes(bytes(DISK + 1))


def crowd(workspace: Path) -> None:
    for number in range(11):
        (workspace / f"f{number}").touch()


@pytest.mark.parametrize("spoil", [deepen, fill, crowd])
async def test_a_workspace_that_cannot_be_saved_does_not_keep_a_checkpoint_from_its_restore(
    rt: Runtime,
    layers: MultiLayerPersistence,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Any,
) -> None:
    """S3.49: the files are moved aside, with the state that no checkpoint has."""
    limits = CheckpointLimits(files=10, disk=DISK)
    monkeypatch.setattr(service_of(rt).tasks.checkpoints, "_limits", limits)
    (workspace / "a").write_text("good")
    await layers.save_state("t", {"status": "pending", "data": {"of": "good"}})
    checkpoint = await layers.create_checkpoint("t")
    await layers.save_state("t", {"status": "pending", "data": {"of": "bad"}})
    spoil(workspace)
    with pytest.raises(Refused):
        await layers.create_checkpoint("t")
    restored = await layers.restore_checkpoint("t", checkpoint)
    assert (workspace / "a").read_text() == "good"
    assert names(workspace) == ["a"]
    state = await layers.load_state("t")
    assert state is not None
    assert state.data == {"of": "good"}
    assert restored.saved_as is None
    assert restored.problem is not None
    assert restored.kept_as is not None
    kept = workspace.parent / restored.kept_as
    assert len(names(kept)) > 1
    state_file = workspace.parent / f"{restored.kept_as}-state.json"
    assert json.loads(state_file.read_text())["data"] == {"of": "bad"}
    assert state_file.stat().st_mode & 0o077 == 0
    line = (await layers.load_logs("t"))[-1]
    assert (line.level, line.message) == ("warn", "Checkpoint restored")
    assert line.data is not None
    assert (line.data["keptAs"], line.data["problem"]) == (restored.kept_as, restored.problem)
    assert [item.id for item in await layers.list_checkpoints("t")] == [checkpoint]


async def test_the_newest_workspace_that_was_moved_aside_is_kept_until_it_is_deleted(
    layers: MultiLayerPersistence, workspace: Path, lifecycle: TaskLifecycle
) -> None:
    checkpoint = await layers.create_checkpoint("t")
    restored = RestoredTask()
    for _ in range(2):
        fill(workspace)
        restored = await layers.restore_checkpoint("t", checkpoint)
        kept = {name for name in folder_names(workspace) if name.startswith("replaced")}
        assert kept == {restored.kept_as, f"{restored.kept_as}-state.json"}
    saved = await layers.restore_checkpoint("t", checkpoint)  # saves an empty workspace
    assert saved == RestoredTask(saved_as=saved.saved_as)
    assert restored.kept_as in folder_names(workspace)
    await layers.delete_checkpoint("t", "replaced")
    assert not [name for name in folder_names(workspace) if name.startswith("replaced")]
    assert (await layers.load_logs("t"))[-1].data == {"checkpointId": "replaced"}
    with pytest.raises(NotFound) as missing:
        await layers.delete_checkpoint("t", "replaced")
    assert missing.value.code == "CHECKPOINT_NOT_FOUND"
    fill(workspace)
    await layers.restore_checkpoint("t", checkpoint)
    await lifecycle.delete_task("t")
    assert not workspace.parent.exists()


async def test_parts_of_a_checkpoint_need_a_workspace_that_can_be_saved_and_say_so(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    (workspace / "a").write_text("good")
    checkpoint = await layers.create_checkpoint("t")
    fill(workspace)
    with pytest.raises(Refused) as refused:
        await layers.restore_checkpoint("t", checkpoint, paths=["a"])
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"
    assert refused.value.hint is not None
    assert "without paths" in refused.value.hint
    assert (workspace / "big").exists()


async def test_an_old_workspace_that_cannot_be_deleted_does_not_fail_its_restore(
    layers: MultiLayerPersistence, workspace: Path, root: Path
) -> None:
    if os.geteuid() != 0 or shutil.which("chattr") is None:
        pytest.skip("needs root and chattr")
    checkpoint = await layers.create_checkpoint("t")
    (workspace / "d").mkdir()
    (workspace / "d/a").write_text("stays")
    if not change_flag("+i", workspace):
        pytest.skip("the file system has no immutable files")
    try:
        await layers.restore_checkpoint("t", checkpoint)
        assert names(workspace) == []
        assert change_flag("-i", root / ".trash")
        assert not [name for name in folder_names(workspace) if name.startswith("restore")]
    finally:
        change_flag("-i", root)


# --- as a user without privileges -----------------------------------------------------------------

CLOSED = """
import asyncio, json, os, sys, tempfile
from contextlib import redirect_stdout
from pathlib import Path
from perdure import Runtime
from perdure.errors import PerdureError
from perdure.tasks import MultiLayerPersistence, TaskLifecycle

def close_folder(w):
    (w / "c").mkdir()
    (w / "c/x").write_text("hidden")
    (w / "c").chmod(0)

def close_file(w):
    (w / "f").write_text("hidden")
    (w / "f").chmod(0)

def close_workspace(w):
    (w / "f").write_text("hidden")
    w.chmod(0)

def close_nested(w):
    (w / "r/s").mkdir(parents=True)
    (w / "r/s/x").write_text("x")
    (w / "r/s").chmod(0o500)
    (w / "r").chmod(0o500)

async def main(folder, spoil):
    root = Path(folder) / "tasks"
    async with Runtime(f"sqlite:///{folder}/h.db", tasks={"root": root}) as rt:
        layers, w = MultiLayerPersistence(rt), root / "t/workspace"
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        (w / "a").write_text("good")
        checkpoint = await layers.create_checkpoint("t")
        globals()[spoil](w)
        codes = []
        attempts = [
            lambda: layers.create_checkpoint("t"),
            lambda: layers.diff_checkpoints("t", checkpoint),
            lambda: layers.restore_checkpoint("t", checkpoint, paths=["a"]),
        ]
        for attempt in attempts:
            try:
                await attempt()
                codes.append("")
            except PerdureError as error:
                codes.append(error.code)
        restored = await layers.restore_checkpoint("t", checkpoint)
        kept = sorted(p.name for p in w.parent.iterdir() if p.name.startswith("re"))
        files = os.listdir(w)
        if restored.kept_as is not None:
            await layers.delete_checkpoint("t", "replaced")
        again = sorted(p.name for p in w.parent.iterdir() if p.name.startswith("re"))
        trash = root / ".trash"
        left = os.listdir(trash) if trash.exists() else []
        print(json.dumps([codes, restored.saved_as is None, files, len(kept), again, left]))

folder, spoil, user = sys.argv[1:]
os.chdir("/")
if os.geteuid() == 0:  # the interpreter may be in a closed folder: everything is imported first
    with tempfile.TemporaryDirectory() as other, redirect_stdout(None):
        asyncio.run(main(other, "close_nested"))
    os.setgroups([])
    os.setresgid(*3 * [int(user)])
    os.setresuid(*3 * [int(user)])
asyncio.run(main(folder, spoil))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder of a user without privileges."""
    folder = Path(tempfile.mkdtemp())
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    remove_tree(folder)


FAILED = ["CHECKPOINT_FAILED"] * 3


@pytest.mark.parametrize(
    "spoil, codes, is_kept",
    [
        ("close_folder", FAILED, True),
        ("close_file", FAILED, True),
        ("close_workspace", FAILED, True),
        ("close_nested", ["", "", ""], False),
    ],
)
def test_a_command_that_closes_files_to_its_own_user_keeps_no_checkpoint_from_its_restore(
    open_folder: Path, spoil: str, codes: list[str], is_kept: bool
) -> None:
    """S3.49"""
    words = [sys.executable, "-c", CLOSED, str(open_folder), spoil, str(NOBODY)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer == [codes, is_kept, ["a"], 2 if is_kept else 0, [], []]


def test_a_tree_of_folders_that_their_owner_may_not_change_is_removed(tmp_path: Path) -> None:
    inner = tmp_path / "tree/a/b"
    inner.mkdir(parents=True)
    (inner / "f").write_text("x")
    for path in (inner, inner.parent, tmp_path / "tree"):
        path.chmod(0o100)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    assert stat.S_ISDIR(tmp_path.stat().st_mode)
