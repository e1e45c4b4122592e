"""A fleet of simulated processes in one: virtual time, faults on purpose, everything from one seed.

`simulate` plays a story; `python -m perdure.testing.simulation` repeats one seed of it.
"""
