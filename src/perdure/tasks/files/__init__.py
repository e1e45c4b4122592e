"""Folders of tasks: where they are, and the files in them that mirror the store."""
