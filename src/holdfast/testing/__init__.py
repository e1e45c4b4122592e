"""What users and backends test with."""
