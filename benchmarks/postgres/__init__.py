"""Measures the Postgres log against its server's limits, a peer, and other ways to number events."""
