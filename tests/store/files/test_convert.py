"""Folders of earlier versions: refused until they are converted, and converted completely."""

import shutil
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from tests.support.paths import DATA

from perdure.app.layouts import SessionFiles
from perdure.cli.root import cli
from perdure.errors import Conflict, StoreError
from perdure.store.base import Unavailable
from perdure.store.files import convert as conversion
from perdure.store.files.convert import convert
from perdure.store.files.folder import JOURNAL
from perdure.store.files.store import files_store
from perdure.store.shared.file_lock import WriteLock

LATER = DATA / "releases" / "0.2.0.dev0" / "files"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LATER, tmp_path / "shop"))


def file_bytes(folder: Path, pattern: str = "*") -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob(pattern) if path.is_file()}


async def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the numbers of records and entries of each stream."""
    store = files_store(folder, SessionFiles())
    await store.open()
    try:
        return {
            state.stream: (
                len((await store.read(state.stream)).records),
                len(await store.entries_of(state.stream)),
            )
            for state in await store.streams()
        }
    finally:
        await store.close()


async def test_a_folder_of_an_earlier_version_is_refused_with_the_command_to_type(
    folder: Path,
) -> None:
    before = file_bytes(folder)
    with pytest.raises(StoreError) as refused:
        await files_store(folder, SessionFiles()).open()
    assert refused.value.code == "FILES_OLD_FORMAT"
    assert refused.value.hint == f"convert them: perdure db convert {folder}"
    assert file_bytes(folder) == before


async def test_a_folder_without_its_journal_is_refused_too(folder: Path) -> None:
    shutil.rmtree(folder / ".perdure")
    with pytest.raises(StoreError) as refused:
        await files_store(folder, SessionFiles()).open()
    assert refused.value.code == "FILES_OLD_FORMAT"


async def test_what_a_folder_had_is_in_the_database_and_kept_aside(folder: Path) -> None:
    journal = (folder / JOURNAL).read_bytes()
    logs = {path.parent.name: log for path, log in file_bytes(folder, "events.jsonl").items()}
    converted = await convert(folder)
    assert (converted.streams, converted.records, converted.entries) == (26, 142, 67)
    assert converted.damaged == ()
    counts = await contents(folder)
    assert (len(counts), sum(records for records, _ in counts.values())) == (26, 142)
    assert (converted.kept / JOURNAL).read_bytes() == journal
    for name, before in logs.items():
        assert (converted.kept / name / "events.jsonl").read_bytes() == before
        assert (folder / name / "events.jsonl").read_bytes() != before


async def test_without_the_journal_the_logs_have_the_sessions(folder: Path) -> None:
    shutil.rmtree(folder / ".perdure")
    converted = await convert(folder)
    assert converted.damaged == ()
    assert (await contents(folder))["s//approval"] == (9, 3)


async def test_a_damaged_session_is_named_and_the_others_are_converted(folder: Path) -> None:
    log = folder / "finished" / "events.jsonl"
    journal = folder / JOURNAL
    log.write_bytes(log.read_bytes().replace(b'"Refunded."', b'"Refundet."'))
    journal.unlink()
    converted = await convert(folder)
    assert (converted.damaged, converted.streams) == (("s//finished",), 25)
    assert "s//finished" not in await contents(folder)
    assert b"Refundet" in (converted.kept / "finished" / "events.jsonl").read_bytes()


@pytest.mark.parametrize("step", ["_write", "_keep_old_files", "_finish"])
async def test_a_conversion_that_was_stopped_is_begun_again(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(conversion, step, stop)
        with pytest.raises(KeyboardInterrupt):
            await convert(folder)
    with pytest.raises(StoreError) as refused:
        await files_store(folder, SessionFiles()).open()
    assert refused.value.code == "FILES_OLD_FORMAT"
    assert (await convert(folder)).streams == 26
    assert len(await contents(folder)) == 26


async def test_a_folder_that_an_earlier_version_has_open_is_not_converted(folder: Path) -> None:
    lock = WriteLock(str(folder / ".perdure" / "lock"))
    lock.open()
    assert lock.try_acquire()
    with pytest.raises(Unavailable) as refused:
        await convert(folder)
    assert refused.value.code == "STORE_IN_USE"
    lock.close()


async def test_a_converted_folder_is_not_converted_again(folder: Path) -> None:
    await convert(folder)
    with pytest.raises(Conflict) as refused:
        await convert(folder)
    assert refused.value.code == "NOT_OLD_FORMAT"


async def test_an_earlier_version_refuses_a_folder_of_this_one(tmp_path: Path) -> None:
    """It reads the format in the first line of the journal."""
    store = files_store(tmp_path, SessionFiles())
    await store.open()
    await store.close()
    assert (tmp_path / JOURNAL).read_text() == '{"format":3,"crc":"9d28a1bb"}\n'


async def test_the_command_converts_and_says_where_the_old_files_are(folder: Path) -> None:
    done = await anyio.to_thread.run_sync(CliRunner().invoke, cli, ["db", "convert", str(folder)])
    assert done.exit_code == 0, done.output
    assert "converted 26 streams with 142 records and 67 entries" in done.output
    assert str(folder / ".perdure" / "old") in done.output
    shown = await anyio.to_thread.run_sync(
        CliRunner().invoke, cli, ["--store", f"files:{folder}", "sessions", "list", "--json"]
    )
    assert shown.exit_code == 0, shown.output
