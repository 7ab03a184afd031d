"""Event tables: Delta tables that are brought up to date from logs and files."""
