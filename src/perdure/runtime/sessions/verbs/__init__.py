"""Verbs on sessions, their logs and their pending calls for one caller, whose values are views."""
