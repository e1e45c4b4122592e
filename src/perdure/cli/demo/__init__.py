"""`perdure demo`: a guided run with real worker processes that are really killed."""
