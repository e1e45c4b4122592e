"""Checkpoints: what they hold, how a task goes back to one, and hostile workspaces."""

import gzip
import hashlib
import io
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from perdure import NotFound, Refused, Runtime
from perdure.app import service_of
from perdure.errors import Corrupt
from perdure.tasks import MultiLayerPersistence, OpenCodeError, TaskLifecycle, TaskRegistry
from perdure.tasks.checkpoints.budget import CheckpointLimits
from perdure.tasks.checkpoints.objects import ObjectStore
from perdure.tasks.checkpoints.workspace import build, walk
from perdure.tasks.model import manifest as manifests
from perdure.tasks.model.manifest import Manifest, file_entry
from perdure.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/h.db"


@pytest.fixture
async def workspace(lifecycle: TaskLifecycle, root: Path) -> Path:
    await lifecycle.create_task({"name": "n", "id": "t"})
    return root / "t" / "workspace"


def tree(folder: Path) -> dict[str, Any]:
    """Return everything below a folder, by path: content, link or permissions."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("dir", stat.S_IMODE(path.stat().st_mode))
        else:
            found[name] = (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
    return found


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def wait_for_tick(path: Path) -> None:
    """Wait until the clock of the file system is beyond the last change of a file."""
    while time.time_ns() < path.stat().st_ctime_ns + 50_000_000:
        os.sched_yield()


def replace_by_link(folder: Path, target: Path) -> None:
    folder.rmdir()
    folder.symlink_to(target)


def plant(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src/main.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").mkdir(mode=0o700)
    (folder / "link").symlink_to("src/main.py")
    (folder / "big").write_bytes(os.urandom(3 * 2**20 + 7))


async def test_a_task_goes_back_to_a_checkpoint_and_forward_again(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence, workspace: Path
) -> None:
    """S3.47, S3.48, S3.49, C26"""
    assert await layers.list_checkpoints("t") == []
    plant(workspace)
    await layers.save_state("t", {"status": "pending", "data": {"step": 1}})
    first = await layers.create_checkpoint("t", "before the change")
    before = tree(workspace)
    await lifecycle.start_task("t", "a")
    shutil.rmtree(workspace / "src")
    (workspace / "run.sh").write_text("changed")
    (workspace / "new").write_text("new")
    await layers.save_state("t", {"status": "running", "data": {"step": 2}})
    after = tree(workspace)
    log = await layers.load_logs("t")
    await layers.restore_checkpoint("t", first)
    assert tree(workspace) == before
    state = await layers.load_state("t")
    assert state is not None
    assert (state.status, state.data) == ("running", {"step": 1})
    lines = (await layers.load_logs("t"))[len(log) :]
    assert [line.message for line in lines] == ["Checkpoint created", "Checkpoint restored"]
    listed = await layers.list_checkpoints("t")
    assert [item.id for item in listed][1:] == [first]
    assert listed[0].description == f"Before restoring {first}"
    assert listed[1].description == "before the change"
    assert {"state.json", "logs.jsonl", "workspace/src/main.py"} <= set(listed[1].files)
    assert "workspace/empty" not in listed[1].files
    await layers.restore_checkpoint("t", listed[0].id)
    assert tree(workspace) == after
    assert {path.name for path in workspace.parent.iterdir()} == {
        "checkpoints",
        "executions",
        "logs.jsonl",
        "state.json",
        "workspace",
    }


async def test_a_task_without_a_state_has_checkpoints_of_real_files_only(
    layers: MultiLayerPersistence,
) -> None:
    """S3.47"""
    await layers.append_log("bare", {"message": "m"})
    await layers.create_checkpoint("bare")
    assert (await layers.list_checkpoints("bare"))[0].files == ["logs.jsonl"]
    with pytest.raises(NotFound):
        await layers.create_checkpoint("nobody")


async def test_ids_are_unique_and_lists_newest_first_within_one_millisecond(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    """S3.47, S3.48"""
    ids = [await layers.create_checkpoint("t") for _ in range(5)]
    assert [item.id for item in await layers.list_checkpoints("t")] == ids[::-1]


async def test_a_part_of_a_checkpoint_is_restored(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    plant(workspace)
    first = await layers.create_checkpoint("t")
    await layers.save_state("t", {"status": "x", "data": {"kept": True}})
    (workspace / "src/main.py").write_text("changed")
    (workspace / "src/more.py").write_text("more")
    (workspace / "run.sh").write_text("changed")
    await layers.restore_checkpoint("t", first, paths=["src"])
    assert (workspace / "src/main.py").read_text() == "print(1)\n"
    assert not (workspace / "src/more.py").exists()
    assert (workspace / "run.sh").read_text() == "changed"
    state = await layers.load_state("t")
    assert state is not None
    assert state.data == {"kept": True}
    with pytest.raises(NotFound) as refused:
        await layers.restore_checkpoint("t", first, paths=["nothing"])
    assert refused.value.code == "PATH_NOT_FOUND"


async def test_a_diff_names_what_was_added_removed_and_changed(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    plant(workspace)
    first = await layers.create_checkpoint("t")
    (workspace / "run.sh").chmod(0o700)
    (workspace / "link").unlink()
    (workspace / "new").write_text("")
    expected = {"added": ["new"], "removed": ["link"], "changed": ["run.sh"]}
    assert await layers.diff_checkpoints("t", first) == expected
    second = await layers.create_checkpoint("t")
    assert await layers.diff_checkpoints("t", first, second) == expected
    assert await layers.diff_checkpoints("t", second) == {"added": [], "removed": [], "changed": []}


async def test_unchanged_files_are_not_read_again_and_a_forged_mtime_is_noticed(
    layers: MultiLayerPersistence, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (workspace / f"f{number}").write_text("same size")
        os.utime(workspace / f"f{number}", ns=(10**18, 10**18))
    wait_for_tick(workspace / "f4")
    first = await layers.create_checkpoint("t")
    read: list[int] = []
    put_file = ObjectStore.put_file

    def counted(self: ObjectStore, source: int, limit: int) -> tuple[str, int]:
        read.append(source)
        return put_file(self, source, limit)

    monkeypatch.setattr(ObjectStore, "put_file", counted)
    await layers.create_checkpoint("t")
    assert read == []
    (workspace / "f3").write_text("SAME SIZE")
    os.utime(workspace / "f3", ns=(10**18, 10**18))
    second = await layers.create_checkpoint("t")
    assert len(read) == 1
    assert (await layers.diff_checkpoints("t", first, second))["changed"] == ["f3"]


async def test_one_damaged_manifest_is_reported_and_the_others_are_listed(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    """S3.48"""
    ids = [await layers.create_checkpoint("t", f"c{number}") for number in range(3)]
    path = workspace.parent / "checkpoints" / f"{ids[1]}.json"
    path.write_bytes(path.read_bytes().replace(b"c1", b"cX"))
    listed = await layers.list_checkpoints("t")
    assert [item.id for item in listed] == ids[::-1]
    assert [item.problem is None for item in listed] == [True, False, True]
    assert await layers.verify_checkpoint("t", ids[0]) == []
    assert len(await layers.verify_checkpoint("t", ids[1])) == 1
    with pytest.raises(Corrupt) as refused:
        await layers.restore_checkpoint("t", ids[1])
    assert refused.value.code == "CHECKPOINT_DAMAGED"
    await layers.delete_checkpoint("t", ids[1])
    await layers.restore_checkpoint("t", ids[2])


async def test_a_damaged_object_refuses_the_restore_and_leaves_the_workspace(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    """S3.49"""
    (workspace / "a").write_text("content")
    first = await layers.create_checkpoint("t")
    (workspace / "a").write_text("present")
    digest = hashlib.sha256(b"content").hexdigest()
    path = workspace.parent / "checkpoints/objects" / digest[:2] / digest[2:]
    path.chmod(0o600)
    path.write_text("changed")
    assert await layers.verify_checkpoint("t", first) == [f"object {digest[:12]} was changed"]
    with pytest.raises(Corrupt):
        await layers.restore_checkpoint("t", first)
    assert tree(workspace) == {"a": (b"present", 0o644)}
    assert not list(workspace.parent.glob("restore-*"))


async def test_deleting_a_checkpoint_removes_what_no_other_needs(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    (workspace / "shared").write_text("shared")
    (workspace / "own").write_text("own")
    first = await layers.create_checkpoint("t")
    (workspace / "own").unlink()
    second = await layers.create_checkpoint("t")
    await layers.delete_checkpoint("t", first)
    objects = {
        p.parent.name + p.name for p in (workspace.parent / "checkpoints/objects").glob("*/*")
    }
    assert hashlib.sha256(b"shared").hexdigest() in objects
    assert hashlib.sha256(b"own").hexdigest() not in objects
    assert await layers.verify_checkpoint("t", second) == []
    with pytest.raises(NotFound) as refused:
        await layers.restore_checkpoint("t", first)
    assert refused.value.code == "CHECKPOINT_NOT_FOUND"
    for bad in ("../../x", "x\n"):
        with pytest.raises(OpenCodeError):
            await layers.delete_checkpoint("t", bad)


async def test_a_checkpoint_moves_to_another_task(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence, workspace: Path, tmp_path: Path
) -> None:
    plant(workspace)
    first = await layers.create_checkpoint("t", "to move")
    await layers.export_checkpoint("t", first, tmp_path / "c.tar.gz")
    with pytest.raises(Refused):
        await layers.export_checkpoint("t", first, tmp_path / "c.tar.gz")
    await lifecycle.create_task({"name": "n", "id": "u"})
    imported = await layers.import_checkpoint("u", tmp_path / "c.tar.gz")
    await layers.restore_checkpoint("u", imported)
    assert tree(workspace.parent.parent / "u/workspace") == tree(workspace)
    assert (await layers.list_checkpoints("u"))[1].description == "to move"


# --- hostile workspaces (rows 33 to 38 of the suite) ----------------------------------------------


async def test_the_state_of_an_imported_checkpoint_belongs_to_the_task_that_imported_it(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence, workspace: Path, tmp_path: Path
) -> None:
    """S3.49"""
    await lifecycle.create_task({"name": "n", "id": "u"})
    await layers.save_state("t", {"status": "pending", "data": {"of": "t"}})
    checkpoint = await layers.create_checkpoint("t")
    await layers.save_state("t", {"status": "pending", "data": {"of": "t, later"}})
    await layers.export_checkpoint("t", checkpoint, tmp_path / "c.tar.gz")
    imported = await layers.import_checkpoint("u", tmp_path / "c.tar.gz")
    await layers.restore_checkpoint("u", imported)
    restored, other = await layers.load_state("u"), await layers.load_state("t")
    assert restored is not None
    assert other is not None
    assert (restored.task_id, restored.data) == ("u", {"of": "t"})
    assert (other.task_id, other.data) == ("t", {"of": "t, later"})


@pytest.mark.parametrize(
    "paths, code",
    [
        (["../x"], "PATH_NOT_FOUND"),
        (["/etc"], "PATH_NOT_FOUND"),
        ([""], "INVALID_REQUEST"),
        (["link/key"], "PATH_NOT_FOUND"),
        (["missing"], "PATH_NOT_FOUND"),
        ("text", "INVALID_REQUEST"),
        ([3], "INVALID_REQUEST"),
    ],
)
async def test_paths_that_cannot_be_restored_are_refused_before_anything_is_written(
    layers: MultiLayerPersistence, workspace: Path, tmp_path: Path, paths: Any, code: str
) -> None:
    (tmp_path / "key").write_text("SECRET")
    (workspace / "link").symlink_to(tmp_path)
    (workspace / "a").write_text("1")
    checkpoint = await layers.create_checkpoint("t")
    lines = await layers.load_logs("t")
    error = NotFound if code == "PATH_NOT_FOUND" else Refused
    with pytest.raises(error) as refused:
        await layers.restore_checkpoint("t", checkpoint, paths=paths)
    assert refused.value.code == code
    assert [item.id for item in await layers.list_checkpoints("t")] == [checkpoint]
    assert await layers.load_logs("t") == lines


async def test_a_link_out_of_the_workspace_is_kept_as_text_and_never_followed(
    layers: MultiLayerPersistence, workspace: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("SECRET")
    (workspace / "report").symlink_to(secret / "key")
    (workspace / "folder").symlink_to(secret)
    assert (workspace / "report").read_text() == "SECRET"  # a plain open follows it
    checkpoint = await layers.create_checkpoint("t")
    objects = (workspace.parent / "checkpoints/objects").glob("*/*")
    assert not [path for path in objects if b"SECRET" in path.read_bytes()]
    await layers.restore_checkpoint("t", checkpoint)
    assert (workspace / "folder").readlink() == secret
    assert (secret / "key").read_text() == "SECRET"


async def test_a_workspace_that_is_itself_a_link_is_refused(
    layers: MultiLayerPersistence, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").write_text("x")
    replace_by_link(workspace, tmp_path / "elsewhere")
    with pytest.raises(OpenCodeError):
        await layers.create_checkpoint("t")


async def release_reader(pipe: Path) -> None:
    """End the wait of a thread that has opened the pipe, or is about to."""
    with anyio.fail_after(30):
        while True:
            try:
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # it has not opened the pipe yet
                await anyio.sleep(0.01)
            else:
                return


async def test_pipes_sockets_and_devices_are_skipped_and_named(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    os.mkfifo(workspace / "pipe")
    if os.geteuid() == 0:
        os.mknod(workspace / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(TimeoutError), anyio.fail_after(0.05):  # a plain open hangs
        await anyio.to_thread.run_sync((workspace / "pipe").read_bytes, abandon_on_cancel=True)
    await release_reader(workspace / "pipe")
    with anyio.fail_after(10):
        checkpoint = await layers.create_checkpoint("t")
    (listed,) = await layers.list_checkpoints("t")
    assert "pipe" in listed.manifest["skipped"]
    await layers.restore_checkpoint("t", checkpoint)
    assert tree(workspace) == {}


def hostile_archives() -> Iterator[Any]:
    def add(
        archive: tarfile.TarFile, name: str, kind: bytes = tarfile.REGTYPE, **fields: Any
    ) -> None:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.size = len(fields.get("data", b""))
        member.linkname = fields.get("link", "")
        member.mode = fields.get("mode", 0o644)
        archive.addfile(member, io.BytesIO(fields.get("data", b"")))

    members: dict[str, list[tuple[str, bytes, dict[str, Any]]]] = {
        "absolute": [("/etc/x", tarfile.REGTYPE, {"data": b"x"})],
        "parent": [("../x", tarfile.REGTYPE, {"data": b"x"})],
        "link then write": [
            ("objects", tarfile.SYMTYPE, {"link": "/var"}),
            ("objects/x", tarfile.REGTYPE, {"data": b"x"}),
        ],
        "hard link": [("objects/" + "a" * 64, tarfile.LNKTYPE, {"link": "/etc/passwd"})],
        "device": [("objects/" + "a" * 64, tarfile.CHRTYPE, {})],
        "pipe": [("objects/" + "a" * 64, tarfile.FIFOTYPE, {})],
        "setuid": [("objects/" + "a" * 64, tarfile.REGTYPE, {"data": b"x", "mode": 0o4755})],
        "wrong content": [("objects/" + "a" * 64, tarfile.REGTYPE, {"data": b"x"})],
        "long name": [("objects/" + "a" * 64, tarfile.GNUTYPE_LONGNAME, {"data": b"objects/x"})],
        "extended header": [("x", tarfile.XHDTYPE, {"data": b"20 path=/etc/passwd\n"})],
        "sparse": [("objects/" + "a" * 64, tarfile.GNUTYPE_SPARSE, {"data": b"x"})],
        "no manifest": [
            ("objects/" + hashlib.sha256(b"x").hexdigest(), tarfile.REGTYPE, {"data": b"x"})
        ],
    }
    for name, parts in members.items():
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz") as archive:
            for member, kind, fields in parts:
                add(archive, member, kind, **fields)
        yield pytest.param(target.getvalue(), id=name)
    evil = Manifest(
        id="c", task_id="t", timestamp="", entries=(file_entry(b"../x", "file", sha256="a" * 64),)
    )
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        add(archive, "manifest.json", data=manifests.encode(evil))
    yield pytest.param(target.getvalue(), id="manifest with a path outside")
    repeated = io.BytesIO()
    with tarfile.open(fileobj=repeated, mode="w:gz") as archive:
        empty = manifests.encode(Manifest(id="c", task_id="t", timestamp=""))
        add(archive, "manifest.json", data=empty)
        for _ in range(2):
            add(archive, "objects/" + hashlib.sha256(b"").hexdigest(), data=b"")
    yield pytest.param(repeated.getvalue(), id="the same object twice")
    yield pytest.param(b"not an archive", id="not an archive")
    yield pytest.param(target.getvalue()[:40], id="cut off")


def test_such_archives_escape_if_they_are_unpacked_by_path(tmp_path: Path) -> None:
    """So it is the reader that contains them, not the archives that are harmless."""
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "target").mkdir()
    escape = io.BytesIO()
    with tarfile.open(fileobj=escape, mode="w") as archive:
        for name, kind, link in (
            ("../above", tarfile.REGTYPE, ""),
            ("objects", tarfile.SYMTYPE, str(tmp_path / "target")),
            ("objects/through", tarfile.REGTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            archive.addfile(member)
    escape.seek(0)
    with tarfile.open(fileobj=escape) as archive:
        archive.extractall(folder, filter="fully_trusted")  # noqa: S202 - that is the point
    assert (tmp_path / "above").exists()
    assert (tmp_path / "target/through").exists()


@pytest.mark.parametrize("archive", list(hostile_archives()))
async def test_a_hostile_archive_is_refused_and_changes_nothing(
    layers: MultiLayerPersistence, workspace: Path, tmp_path: Path, archive: bytes
) -> None:
    (tmp_path / "c.tar.gz").write_bytes(archive)
    before = names_below(tmp_path)
    with pytest.raises(Refused) as refused:
        await layers.import_checkpoint("t", tmp_path / "c.tar.gz")
    assert refused.value.code == "CHECKPOINT_INVALID"
    assert await layers.list_checkpoints("t") == []
    new = names_below(tmp_path) - before
    assert not [name for name in new if not name.startswith("tasks/t/checkpoints")]
    assert not list((workspace.parent / "checkpoints/objects").glob("*/*"))
    assert tree(workspace) == {}


async def test_an_archive_that_expands_without_end_is_refused_before_it_is_stored(
    rt: Runtime, layers: MultiLayerPersistence, workspace: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    limit = CheckpointLimits(size=2**20)
    monkeypatch.setattr(service_of(rt).tasks.transfer, "_limits", limit)
    bomb = io.BytesIO()
    with tarfile.open(fileobj=bomb, mode="w") as archive:
        member = tarfile.TarInfo("objects/" + "a" * 64)
        member.size = 64 * 2**20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    packed = gzip.compress(bomb.getvalue(), 9)
    assert len(gzip.decompress(packed)) > 900 * len(packed)
    (tmp_path / "bomb").write_bytes(packed)
    with pytest.raises(Refused) as refused:
        await layers.import_checkpoint("t", tmp_path / "bomb")
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"
    assert not list((workspace.parent / "checkpoints/objects").glob("*/*"))


def deep_folder(folder: Path, depth: int) -> None:
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


async def test_a_tree_of_three_thousand_folders_is_refused_whole_and_can_be_deleted(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence, workspace: Path
) -> None:
    deep_folder(workspace, 3_000)
    with pytest.raises((RecursionError, OSError)):  # the standard library gives up
        shutil.rmtree(workspace)
    with pytest.raises(Refused) as refused:
        await layers.create_checkpoint("t")
    assert refused.value.code == "CHECKPOINT_TOO_DEEP"
    assert await layers.list_checkpoints("t") == []
    await lifecycle.delete_task("t")
    assert not workspace.parent.exists()


async def test_names_of_any_bytes_are_kept(layers: MultiLayerPersistence, workspace: Path) -> None:
    names = [b"new\nline", b"\xff\xfe", b"-rf", b"a" * 255, b" ", b"\x1b[31m", "ü".encode()]
    folder = os.open(workspace, os.O_RDONLY)
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    with pytest.raises(UnicodeEncodeError):  # names as text cannot be written as UTF-8
        "\n".join(entry.name for entry in os.scandir(folder)).encode()
    checkpoint = await layers.create_checkpoint("t")
    for name in names:
        os.unlink(name, dir_fd=folder)
    os.close(folder)
    await layers.restore_checkpoint("t", checkpoint)
    folder = os.open(workspace, os.O_RDONLY)
    assert sorted(os.fsencode(entry.name) for entry in os.scandir(folder)) == sorted(names)
    os.close(folder)


@pytest.mark.parametrize(
    "limits, code",
    [
        (CheckpointLimits(files=3), "CHECKPOINT_TOO_LARGE"),
        (CheckpointLimits(size=10), "CHECKPOINT_TOO_LARGE"),
        (CheckpointLimits(depth=1), "CHECKPOINT_TOO_DEEP"),
    ],
)
def test_limits_are_counted_while_walking(
    tmp_path: Path, limits: CheckpointLimits, code: str
) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "d").mkdir()
    for number in range(4):
        (folder / f"f{number}").write_text("12345")
    with pytest.raises(Refused) as refused:
        walk(folder, ObjectStore(tmp_path / "o"), limits)
    assert refused.value.code == code


def test_a_folder_with_too_many_names_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Whatever they are: pipes are in no checkpoint, but their names take memory as well."""
    (tmp_path / "w").mkdir()
    for number in range(4):
        os.mkfifo(tmp_path / f"w/p{number}")
    objects = ObjectStore(tmp_path / "o")
    assert len(walk(tmp_path / "w", objects, CheckpointLimits(files=4)).skipped) == 4
    with pytest.raises(Refused) as refused:
        walk(tmp_path / "w", objects, CheckpointLimits(files=3))
    assert refused.value.code == "CHECKPOINT_TOO_LARGE"


def test_a_sparse_file_counts_with_its_size(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    with (tmp_path / "w/huge").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(Refused):
        walk(tmp_path / "w", ObjectStore(tmp_path / "o"), CheckpointLimits())


def test_setuid_bits_are_never_restored(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/f").write_text("x")
    (tmp_path / "w/f").chmod(0o6755)
    objects = ObjectStore(tmp_path / "o")
    entries = walk(tmp_path / "w", objects, CheckpointLimits()).entries
    build(tmp_path / "n", entries, objects, CheckpointLimits())
    assert stat.S_IMODE((tmp_path / "n/f").stat().st_mode) == 0o755


async def test_two_checkpoints_at_once_wait_for_each_other(
    layers: MultiLayerPersistence, workspace: Path
) -> None:
    (workspace / "a").write_text("1")
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(layers.create_checkpoint, "t")
    listed = await layers.list_checkpoints("t")
    assert len({item.id for item in listed}) == 4
    assert all(item.problem is None for item in listed)


async def test_a_task_elsewhere_has_no_checkpoints_here(
    url: Any, clock: ManualClock, tmp_path: Path
) -> None:
    async with Runtime(url, clock=clock, tasks={"root": tmp_path / "home"}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
    async with Runtime(url, clock=clock, tasks={"root": tmp_path / "away"}) as rt:
        assert await TaskRegistry(rt).get_by_id("t") is not None
        layers = MultiLayerPersistence(rt)
        for attempt in (layers.create_checkpoint("t"), layers.list_checkpoints("t")):
            with pytest.raises(Refused) as refused:
                await attempt
            assert refused.value.code == "TASK_ELSEWHERE"
