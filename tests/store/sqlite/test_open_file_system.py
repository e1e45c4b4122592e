"""Which file systems a database may lie on."""

from pathlib import Path

import pytest

from perdure.errors import StoreError
from perdure.store.sqlite.open import check_file_system, check_path, file_system, rate_file_system

TABLE = r"""
/dev/vda / ext4 rw,relatime 0 0
server:/export /mnt/nfs nfs4 rw,vers=4.2 0 0
/dev/vdb /mnt/nfs/local xfs rw 0 0
//host/share /mnt/two\040words cifs rw 0 0
host /mnt/host virtiofs rw 0 0
/dev/vdc /mnt/over ext4 rw 0 0
u@h: /mnt/over fuse.sshfs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    file = tmp_path / "mounts"
    file.write_text(TABLE.strip())
    return file


@pytest.mark.parametrize(
    "path,kind,place",
    [
        ("/srv/perdure.db", "ext4", "local"),
        ("/mnt/nfs/perdure.db", "nfs4", "network"),
        ("/mnt/nfs/local/perdure.db", "xfs", "local"),
        ("/mnt/nfsx/perdure.db", "ext4", "local"),
        ("/mnt/two words/perdure.db", "cifs", "network"),
        ("/mnt/host/perdure.db", "virtiofs", "doubtful"),
        ("/mnt/over/perdure.db", "fuse.sshfs", "network"),
    ],
)
def test_the_nearest_mount_says_what_a_place_is(
    mounts: Path, path: str, kind: str, place: str
) -> None:
    found = file_system(Path(path), mounts)
    assert (found, rate_file_system(found)) == (kind, place)


def test_a_network_file_system_is_refused_with_its_name(mounts: Path) -> None:
    with pytest.raises(StoreError, match=r"network file system \(nfs4\)") as caught:
        check_file_system(Path("/mnt/nfs/perdure.db"), mounts)
    assert caught.value.code == "NETWORK_FILE_SYSTEM"
    assert caught.value.hint == "put the database on a local disk"
    check_file_system(Path("/srv/perdure.db"), mounts)


def test_opening_asks_for_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "mounts"
    where.write_text(f"server:/x {tmp_path} nfs rw 0 0")
    monkeypatch.setattr("perdure.store.sqlite.open.MOUNTS", where)
    monkeypatch.setattr(check_file_system, "__defaults__", (where,))
    with pytest.raises(StoreError, match="network file system"):
        check_path(tmp_path / "perdure.db")


def test_a_system_that_does_not_say_is_not_held_against_it(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "nothing") is None
    assert rate_file_system(None) == "local"
    check_file_system(tmp_path, tmp_path / "nothing")
