"""`python -m runstate` is the command `runstate`."""

from runstate.cli import main

main()
