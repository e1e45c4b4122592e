"""The store contract and its backends: records, entries and leases, never what an event means."""
