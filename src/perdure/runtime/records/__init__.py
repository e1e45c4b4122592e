"""Typed values of records and entries: the session log, index entries, and the session cache."""
