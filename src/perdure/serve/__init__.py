"""Doors for other machines and for people: HTTP, one protocol per module.

`http` builds the application from the routers of the other modules; `door` is what a route gets;
`gate` stands before all of them.
"""
