"""Data of releases: what a fixture of a release contains, and the script that writes it."""
