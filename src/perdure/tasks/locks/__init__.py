"""Locks of resources: on streams of a store, or in one process."""
