"""Manifests of checkpoints: the files of a workspace by content, with names as bytes."""

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from perdure.errors import Corrupt, NotFound, Refused

FileType = Literal["file", "dir", "link"]
MODE_BITS: Final = 0o777  # no setuid, setgid or sticky bit is ever kept
MAX_DEPTH: Final = 100  # of folders within a workspace
MAX_NAME: Final = 255  # bytes of one name
MAX_TARGET: Final = 4095  # bytes of the text of a link
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class FileEntry(Struct, frozen=True, omit_defaults=True, gc=False):
    """A file, folder or link of a workspace.

    A name that is not UTF-8 is stored in base 64. `stat` has inode, mtime and ctime (in ns) of a
    file at the time of the checkpoint, so that the next one need not read it again.
    """

    name: str = ""
    raw_name: str = field(default="", name="rawName")
    type: FileType = "file"
    mode: int = 0o644
    size: int = 0
    sha256: str = ""
    target: str = ""
    raw_target: str = field(default="", name="rawTarget")
    stat: tuple[int, int, int] | None = None

    @property
    def path(self) -> bytes:
        """The path below the workspace."""
        return base64.b64decode(self.raw_name) if self.raw_name else self.name.encode()

    @property
    def link_target(self) -> bytes:
        """The text of a link."""
        return base64.b64decode(self.raw_target) if self.raw_target else self.target.encode()

    @property
    def shown_name(self) -> str:
        """The path as people see it."""
        return shown_path(self.path)


def shown_path(path: bytes) -> str:
    """Return a path as text, with escapes for bytes that are not UTF-8."""
    return path.decode("utf-8", "backslashreplace")


def _text_and_raw(value: bytes) -> tuple[str, str]:
    try:
        return value.decode(), ""
    except UnicodeDecodeError:
        return "", base64.b64encode(value).decode()


def file_entry(  # noqa: PLR0913 - the fields of an entry
    path: bytes,
    kind: FileType,
    mode: int = 0o644,
    *,
    size: int = 0,
    sha256: str = "",
    target: bytes = b"",
    stat: tuple[int, int, int] | None = None,
) -> FileEntry:
    """Return the entry of a file, folder or link."""
    name, raw_name = _text_and_raw(path)
    text, raw_target = _text_and_raw(target)
    return FileEntry(name, raw_name, kind, mode & MODE_BITS, size, sha256, text, raw_target, stat)


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint: when and why it was taken, and everything that it holds, by SHA-256."""

    id: str
    task_id: str = field(name="taskId")
    timestamp: str
    description: str = ""
    at: int = 0  # ms
    walked_ns: int = field(default=0, name="walkedNs")  # when the walk of the workspace began
    state: str = ""  # objects with state.json, logs.jsonl and decisions.md
    logs: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    entries: tuple[FileEntry, ...] = ()
    skipped: tuple[str, ...] = ()  # sockets, pipes and devices, which no checkpoint holds

    @property
    def files(self) -> list[str]:
        """Names of what it holds, as people see them."""
        return self._layers + [
            f"workspace/{item.shown_name}" for item in self.entries if item.type != "dir"
        ]

    @property
    def file_count(self) -> int:
        """The number of these names."""
        return len(self._layers) + sum(item.type != "dir" for item in self.entries)

    @property
    def _layers(self) -> list[str]:
        layers = {"state.json": self.state, "logs.jsonl": self.logs, "decisions.md": self.decisions}
        return [name for name, objects in layers.items() if objects]

    def digests(self) -> set[str]:
        """Return the objects that it refers to."""
        of_files = {item.sha256 for item in self.entries if item.type == "file"}
        return of_files | {*self.logs, *self.decisions} | ({self.state} if self.state else set())

    def paths(self) -> set[bytes]:
        """Return the paths of its entries; the folders of a file are among them."""
        return {item.path for item in self.entries}

    @property
    def total_bytes(self) -> int:
        """Size of its files."""
        return sum(item.size for item in self.entries)


_decoder = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as the content of its file: one line of JSON, then its SHA-256."""
    data = msgspec.json.encode(manifest)
    return data + b"\n" + hashlib.sha256(data).hexdigest().encode() + b"\n"


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a manifest's JSON, as the end of its file states it."""
    return content.partition(b"\n")[2].decode("ascii", "replace").strip()


def decode(content: bytes, digest: str | None = None) -> Manifest:
    """Return the manifest of a file. Raises Corrupt if it is damaged or names a path outside.

    The entries of one whose digest the store has were checked when it was written.
    """
    data, _, end = content.partition(b"\n")
    actual = hashlib.sha256(data).hexdigest()
    if end.strip() != actual.encode():
        raise Corrupt("its checksum is wrong")
    if digest not in (None, actual):
        raise Corrupt("it is not the manifest that was written")
    try:
        manifest = _decoder.decode(data)
        if digest is None:
            check_entries(manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise Corrupt(f"it is not a manifest: {error}") from error
    except Refused as error:
        raise Corrupt(error.message) from error
    return manifest


def check_entries(manifest: Manifest) -> None:
    """Check that every entry is below the workspace, inside a folder. Raises Refused."""
    folders = {b""}
    paths: set[bytes] = set()
    for item in manifest.entries:
        path = item.path
        parent, _, name = path.rpartition(b"/")
        problem = _name_problem(name, path, item.type) or _content_problem(item)
        if problem is None and (parent not in folders or path in paths):
            problem = "is not in a folder of the manifest, or is there twice"
        if problem is not None:
            raise _invalid(f"{item.shown_name!a} {problem}")
        paths.add(path)
        if item.type == "dir":
            folders.add(path)
    for digest in manifest.digests():
        if not _DIGEST.fullmatch(digest):
            raise _invalid(f"{digest!a} is not a digest")


def _invalid(text: str) -> Refused:
    return Refused(text, code="CHECKPOINT_INVALID", hint="restore the task from another checkpoint")


def _name_problem(name: bytes, path: bytes, kind: FileType) -> str | None:
    if name in (b"", b".", b"..") or b"\0" in path or len(name) > MAX_NAME:
        return "is not the name of a file"
    depth = path.count(b"/") + (kind == "dir")
    return "is nested too deeply" if depth >= MAX_DEPTH else None


def _content_problem(item: FileEntry) -> str | None:
    if item.mode & ~MODE_BITS:
        return "has a mode that no checkpoint keeps"
    if item.type == "file":
        return None if _DIGEST.fullmatch(item.sha256) else "has no digest"
    if item.type == "link" and not _is_target(item.link_target):
        return "is not a link that can be made"
    return None


def _is_target(target: bytes) -> bool:
    return 0 < len(target) <= MAX_TARGET and b"\0" not in target


# --- comparison -----------------------------------------------------------------------------------


class ManifestDiff(Struct, frozen=True):
    """Difference of two manifests, as names that people see."""

    added: list[str]
    removed: list[str]
    changed: list[str]


def diff(before: Manifest, after: Manifest) -> ManifestDiff:
    """Return what changed from one checkpoint to another."""
    old = {item.path: item for item in before.entries}
    new = {item.path: item for item in after.entries}
    return ManifestDiff(
        [shown_path(path) for path in sorted(new.keys() - old.keys())],
        [shown_path(path) for path in sorted(old.keys() - new.keys())],
        [
            shown_path(path)
            for path in sorted(new.keys() & old.keys())
            if _content(old[path]) != _content(new[path])
        ],
    )


def _content(item: FileEntry) -> tuple[str, int, str, bytes]:
    return item.type, item.mode, item.sha256, item.link_target


def merged(present: Manifest, restored: Manifest, paths: Sequence[bytes]) -> tuple[FileEntry, ...]:
    """Return the present entries, with those below `paths` as a checkpoint has them.

    Raises NotFound if neither of the two has such a path.
    """
    prefixes = {path.strip(b"/") for path in paths}
    if missing := prefixes - present.paths() - restored.paths():
        raise path_not_found(min(missing), restored.id)
    kept = {item.path: item for item in present.entries if not _is_below(item.path, prefixes)}
    chosen = {item.path: item for item in restored.entries if _is_below(item.path, prefixes)}
    parents = {item.path: item for item in restored.entries if item.type == "dir"}
    result = {**kept, **chosen}
    for path in chosen:
        for parent in _parents(path):
            if parent not in result or result[parent].type != "dir":  # a file is in the way
                result[parent] = parents[parent]
    return tuple(result[path] for path in sorted(result))


def path_not_found(path: bytes, checkpoint_id: str) -> NotFound:
    """Return the error for a path that cannot be restored."""
    return NotFound(
        f"neither the checkpoint nor the workspace has {shown_path(path)[:200]!a}",
        code="PATH_NOT_FOUND",
        hint=f"list its files: perdure tasks diff TASK {checkpoint_id}",
    )


def _parents(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _is_below(path: bytes, prefixes: set[bytes]) -> bool:
    return path in prefixes or any(parent in prefixes for parent in _parents(path))
