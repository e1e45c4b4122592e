"""A session: the state its log folds to, the life of its calls, and how it is named."""
