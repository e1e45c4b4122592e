"""Tasks as values: their life as a table, their records, and the formats of their files."""
