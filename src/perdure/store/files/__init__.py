"""The JSONL files backend."""

from perdure.store.files.store import FilesStore

__all__ = ["FilesStore"]
