"""The classes of the specification, on the tasks of an open runtime."""
