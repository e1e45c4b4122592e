"""The web UI: pages at the addresses of the HTTP API, rendered on the server."""
