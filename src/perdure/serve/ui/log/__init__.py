"""The log of a session as pages show it: a list of events, and a timeline."""
