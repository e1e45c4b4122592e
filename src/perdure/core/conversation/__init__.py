"""The conversation in a log: messages, display parts, compaction and repair."""
