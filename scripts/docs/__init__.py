"""Generators of documentation pages, one module per source of facts."""
