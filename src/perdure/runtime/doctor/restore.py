"""Restoring of the rows by which a session is found, from the entries and events that are left."""

from dataclasses import replace

from perdure.core.session.child_tasks import TASK, task_key
from perdure.core.session.naming import session_key, session_label
from perdure.errors import Corrupt
from perdure.runtime.doctor.rows import restored_stream
from perdure.runtime.doctor.session import SessionCheckup
from perdure.store.inspect import StoreInspector


def restore_rows(inspector: StoreInspector, checkup: SessionCheckup) -> SessionCheckup:
    """Write a damaged or missing row again, and return the checkup of the session with it.

    The events and entries of the session stay as they are; its entries at other streams are
    removed. The new checkup says whether it has to be rebuilt too. Raises Conflict BEING_RESUMED
    while a process drives it.
    """
    checkup.require_free()
    names = checkup.names
    stream = checkup.stream.stream
    if checkup.needs_row:
        row = restored_stream(inspector, checkup.stream, names, checkup.log.events, checkup.now)
        if checkup.log.lost:  # no worker may drive it before it is rebuilt
            row = replace(row, due=None, head=max(row.head, *checkup.log.lost))
        inspector.restore_stream(row)
        stream = row.stream
    keys = [("session", session_key(*names[:2])), *(("pending", c) for c in checkup.open_calls())]
    keys += [(TASK, task_key(names.tenant, task)) for task in checkup.state.children]
    inspector.remove_entries(keys, checkup.stream.number)
    restored = inspector.stream(stream)
    if restored is None:
        label = session_label(names.tenant, names.session_id)
        raise Corrupt(f"the row of {label} could not be written", hint="restore a backup")
    return SessionCheckup.create(restored, checkup.now)
