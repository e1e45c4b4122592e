"""Agents: their definition, output types, permissions, and prices of models."""
