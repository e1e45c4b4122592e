"""Words about sessions: why one does not move and what to do about it, for every entry point."""
