"""Findings about sessions, calls, agents, queues and the store, and the words for them."""
