"""The command `runstate`, also as `python -m runstate`."""

import signal


def main() -> None:
    """Load the commands, and run the one that was asked for."""
    # Loading takes a moment. Ctrl-C ends the process at once meanwhile, where Python would print a traceback.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from runstate.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
