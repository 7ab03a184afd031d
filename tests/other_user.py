"""Runs commands as a user who may not write to what others own: `python -m tests.other_user`.

Standard input is a JSON list of commands, each a list of arguments; standard output a list of [exit code, stderr].
Root gives up its rights in a child process for each command, once everything is imported: the interpreter itself may
be in a directory that only root can read.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
import tempfile

import runstate
from runstate.cli.main import main

nobody = 65534


def import_everything() -> None:
    for module in pkgutil.walk_packages(runstate.__path__, "runstate."):
        if not module.name.endswith("__main__") and "conformance" not in module.name:
            importlib.import_module(module.name)


def run(arguments: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(err.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(nobody)
                os.setuid(nobody)
            sys.argv = ["runstate", *arguments]
            try:
                main()
            except SystemExit as ended:
                os._exit(int(ended.code or 0))
            except BaseException:  # noqa: BLE001 - shown as a user would see it
                sys.excepthook(*sys.exc_info())
                os._exit(70)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), err.read().decode()


if __name__ == "__main__":
    import_everything()
    json.dump([run(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
