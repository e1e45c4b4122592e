"""Health checks of a store and repair of a damaged session."""
