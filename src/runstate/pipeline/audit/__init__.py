"""The proof of a fleet: what is wrong with it."""
