"""Retention of a fleet: finished runs moved to an archive."""
