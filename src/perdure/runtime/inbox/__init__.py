"""Commits by callers without a lease: messages, decisions, results, cancellations."""
