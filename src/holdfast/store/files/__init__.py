"""The JSONL files backend."""

from holdfast.store.files.store import FilesStore

__all__ = ["FilesStore"]
