"""Views: the public values that Python, HTTP, the command line and clients show the same way."""
