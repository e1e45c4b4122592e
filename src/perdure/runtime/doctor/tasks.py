"""Checks of tasks: files that somebody edited, damaged checkpoints, and the sandbox."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perdure.errors import Corrupt
from perdure.findings.severities import MAX_LISTED, Findings, failure, fine, warning
from perdure.findings.texts import plural
from perdure.sandbox.base import Probe
from perdure.store.inspect import StoreInspector, StreamInspection
from perdure.tasks.checkpoints.manifests import ManifestFolder
from perdure.tasks.checkpoints.targets import CheckpointRecord
from perdure.tasks.files.layer_files import (
    DECISION_FILE,
    LOG_FILE,
    STATE,
    StampedFact,
    TaskContent,
)
from perdure.tasks.files.mirror import stored_content
from perdure.tasks.files.place import TaskPlace
from perdure.tasks.findings import damaged_task
from perdure.tasks.model import facts, record
from perdure.views.findings import Finding, Step


@dataclass(frozen=True, slots=True)
class TaskCheckup:
    """Compares the files of the tasks that are here with the store."""

    inspector: StoreInspector
    place: TaskPlace
    full: bool = False  # also read every object of every checkpoint

    def checks(self) -> Findings:
        """Yield the findings, and how many tasks were checked."""
        if self.place.marker is None:
            return
        names = [name for name in self.inspector.streams() if record.parse_task_stream(name)]
        count = 0
        for number, finding in enumerate(self._findings(names)):
            count = number + 1
            if count <= MAX_LISTED:
                yield finding
        if count > MAX_LISTED:
            text = f"{count - MAX_LISTED} more findings about files of tasks"
            yield warning("TASK_FILES", text, "remove the files listed above first")
        if not count:
            yield fine("TASK_FILES", f"files of tasks: {plural(len(names), 'task')}, as recorded")

    def _findings(self, names: list[str]) -> Iterator[Finding]:
        for name in names:
            stream = self.inspector.stream(name)
            folder = self.place.folder(name)
            if stream is None or stream.gone or not folder.is_dir():
                continue
            try:
                yield from _edited_files(folder, _content(stream))
                yield from self._checkpoints(folder, stream)
            except Corrupt as error:
                yield damaged_task(name, error)

    def _checkpoints(self, folder: Path, stream: StreamInspection) -> Iterator[Finding]:
        manifests = ManifestFolder(folder)
        for kind, _, _, data in stream.entries:
            if kind != record.CHECKPOINT:
                continue
            entry = msgspec.json.decode(data, type=CheckpointRecord)
            try:
                manifest = manifests.read(entry.id, entry.digest)
                problems = [manifests.objects.problem(d) for d in manifest.digests()]
                problem = next((p for p in problems if p), None) if self.full else None
            except Corrupt as error:
                problem = error.message
            if problem is not None:
                text = f"checkpoint {entry.id} cannot be restored: {problem}"
                note = "delete it, and take another one"
                yield warning("CHECKPOINT_DAMAGED", text, note, subject=entry.id)


def sandbox_check(probe: Probe, *, is_required: bool) -> Finding:
    """Return whether commands can run in tasks here; without a sandbox a finding if required."""
    if probe.ok:
        names = ", ".join(sorted(probe.guarantees)) or "nothing"
        return fine("SANDBOX", f"commands in tasks: the sandbox {probe.sandbox} guarantees {names}")
    text = f"commands in tasks cannot run: {probe.reason}"
    if is_required:
        return failure("SANDBOX_UNAVAILABLE", text, probe.remedy)
    return fine("SANDBOX_UNAVAILABLE", f"{text}\n{probe.remedy}")


def _content(stream: StreamInspection) -> TaskContent:
    entries = {kind: (data, version) for kind, _, version, data in stream.entries}
    stamped = [StampedFact(item.seq, facts.decode(item.data)) for item in stream.records]
    return stored_content(entries, stamped, stream.head)


def _edited_files(folder: Path, content: TaskContent) -> Iterator[Finding]:
    log = b"".join(data for _, data in content.log_units)
    decisions = b"".join(data for _, data in content.decision_units)
    expected = {
        STATE: content.state_bytes or b"",
        LOG_FILE.name: LOG_FILE.header + log if log else b"",
        DECISION_FILE.name: DECISION_FILE.header + decisions if decisions else b"",
    }
    for name, data in expected.items():
        path = folder / name
        try:
            present = path.read_bytes()
        except OSError:
            continue  # it is written with the next change
        if not _is_as_written(name, present, data):
            yield warning(
                "TASK_FILE_EDITED",
                f"{path} was edited; the store does not have what it says",
                "without it, it is written again at the next change of the task",
                steps=[Step(label="remove it", command=shlex.join(("rm", str(path))))],
            )


def _is_as_written(name: str, present: bytes, expected: bytes) -> bool:
    """Return True for the same content. A crash may leave a file that grows without its end."""
    if name != STATE:
        return expected.startswith(present)
    if not expected:
        return not present
    try:
        return bool(msgspec.json.decode(present) == msgspec.json.decode(expected))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
