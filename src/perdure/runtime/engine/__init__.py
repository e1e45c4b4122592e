"""The engine: one process's leases and the drivers that run under them."""
