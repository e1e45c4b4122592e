"""Check of the readable files of a files store."""

from perdure.findings.severities import MAX_LISTED, Findings, fine, warning
from perdure.findings.steps import step
from perdure.store.base import Store
from perdure.store.files.inspect import different_files
from perdure.store.files.store import mirror_of


def files_findings(store: Store) -> Findings:
    """Yield whether the files are as the database says, for a files store."""
    mirror = mirror_of(store)
    if mirror is None:
        return
    names = different_files(mirror.base, mirror.layout)
    if not names:
        yield fine("FILES", "files: as the database says")
        return
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    text = f"files that differ from the database: {', '.join(names[:MAX_LISTED])}{more}"
    note = "the database counts: the next start writes them again"
    yield warning("FILES_DIFFER", text, note, steps=[step("write them now", "sessions", "list")])
