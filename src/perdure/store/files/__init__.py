"""The files backend: a folder of readable session logs beside a SQLite database."""

from perdure.store.files.store import files_store

__all__ = ["files_store"]
