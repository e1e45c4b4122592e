"""A session: the state its log folds to, the life of its calls, and its names in the store."""
