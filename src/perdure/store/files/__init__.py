"""The files backend: a folder of JSON lines, for one process at a time."""

from perdure.store.files.store import FilesStore

__all__ = ["FilesStore"]
