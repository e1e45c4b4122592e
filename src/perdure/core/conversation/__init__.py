"""The conversation in a log: its messages, their display form, compaction and repair."""
