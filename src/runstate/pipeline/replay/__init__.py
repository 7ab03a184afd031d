"""Streams folded to snapshots, and tables of snapshots."""
