"""The proxy through which commands reach the hosts of their allow-list."""
