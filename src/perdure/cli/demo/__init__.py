"""`perdure demo`: a story that anybody can watch, with real processes that are really killed."""
