"""Records, entries and leases; never what an event means."""
