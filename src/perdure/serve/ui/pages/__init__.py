"""Pages by noun: each module has the functions that show and change one kind of thing."""
