"""Code shared by the backends: paging, wake-up signals, file locks, line files."""
