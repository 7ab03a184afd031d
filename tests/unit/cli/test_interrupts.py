"""Ctrl-C before a command has begun."""

from __future__ import annotations

import signal
import subprocess
import sys

_interrupted_while_loading = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "runstate.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from runstate.__main__ import main
main()
"""


def test_ctrl_c_while_the_commands_are_loaded_prints_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", _interrupted_while_loading], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
