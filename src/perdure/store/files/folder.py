"""Folder of a files store: what it must have before its database is opened."""

from pathlib import Path
from typing import Final

from perdure.errors import Corrupt, StoreError
from perdure.store.files.layout import DATABASE, LOG, OWN
from perdure.store.shared.file_lock import has_mark
from perdure.store.shared.line_files import read_lines, replace_file
from perdure.store.shared.lines import EventLine, add_checksum, decode_event
from perdure.store.shared.private_files import make_folder

JOURNAL: Final = f"{OWN}/journal.jsonl"  # of the earlier format
# An earlier version that finds this journal says that a newer one wrote the folder.
_NEWER: Final = add_checksum(b'{"format":3}', b"}") + b"\n"


def prepare_folder(base: Path) -> None:
    """Create a new folder, or check one that exists. Raises StoreError, Corrupt."""
    check_folder(base)
    try:
        make_folder(base / OWN)
        mark_as_new(base)
    except OSError as error:
        raise StoreError(
            f"{base} cannot be used: {error.strerror}",
            hint="it must be a folder that this process may write",
        ) from error


def check_folder(base: Path) -> None:
    """Raise StoreError for the files of an earlier version, Corrupt for a deleted database."""
    if is_old_format(base):
        raise StoreError(
            f"the files in {base} have the format of an earlier version",
            code="FILES_OLD_FORMAT",
            hint=f"convert them: perdure db convert {base}",
        )
    _check_database(base)


def mark_as_new(base: Path) -> None:
    """Write the journal that keeps earlier versions out, instead of theirs."""
    if not (base / JOURNAL).exists() or (base / JOURNAL).read_bytes() != _NEWER:
        replace_file(base / JOURNAL, _NEWER, is_locked=False)  # many may open a new folder


def is_old_format(base: Path) -> bool:
    """Return whether an earlier version has written a folder, which has no database then."""
    try:
        return (base / JOURNAL).read_bytes() != _NEWER
    except (FileNotFoundError, NotADirectoryError):
        pass
    if (base / DATABASE).exists():
        return False
    first = _first_event(base)
    return first is not None and bool(first.perdure.stream)


def _check_database(base: Path) -> None:
    """Raise Corrupt if the database was deleted."""
    database = base / DATABASE
    if database.exists():
        return
    if not has_mark(Path(f"{database}.lock")) and _first_event(base) is None:
        return
    raise Corrupt(
        f"the database {database} is missing, and sessions were in it",
        code="FILES_WITHOUT_DATABASE",
        hint=f"restore a backup of it. Without one: mv {base} {base}.lost, and import each "
        f"session: perdure sessions import {base}.lost/SESSION/{LOG} --store files:{base}",
    )


def _first_event(base: Path) -> EventLine | None:
    """Return the first event of any log that is ours."""
    for log in base.glob(f"*/{LOG}"):
        for _, text in read_lines(log):
            try:
                event = decode_event(text)
            except ValueError:
                continue
            if event is not None:
                return event
    return None
