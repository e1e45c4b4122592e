"""A session's log: event types, their encoding, and redaction."""
