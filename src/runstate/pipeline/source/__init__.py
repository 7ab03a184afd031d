"""The data source: logs, tables and plain files as DataFrames and SQL, and events back into logs."""
