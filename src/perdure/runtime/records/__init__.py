"""Records and entries as typed values: the session log, index entries, the session cache."""
