"""Code that several backends share: paging, signals, in-memory tables, file locks, line files."""
