"""Servers for other programs and for people, one package per protocol, all on the service."""
