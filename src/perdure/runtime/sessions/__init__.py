"""The operations on sessions that HTTP, the command line and Python share."""
