"""The command line. Data goes to stdout, words to stderr; the exit code says what kind of failure it was."""

from runstate.cli.main import main

__all__ = ["main"]
