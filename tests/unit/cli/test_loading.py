"""Commands are loaded one by one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from runstate.cli.loading import LoadedCommands, places


def test_a_command_loads_no_other_command() -> None:
    script = (
        "import json, sys\n"
        "from runstate.cli import main\n"
        "sys.argv = ['runstate', 'validate', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit:\n    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stderr)
    assert "runstate.cli.events" in loaded
    others = {place.partition(":")[0] for place in places.values()} - {"runstate.cli.events"}
    assert others.isdisjoint(loaded)
    assert not [name for name in loaded if name.startswith("runstate.runtimes")]


@pytest.mark.parametrize("name", places)
def test_every_command_is_where_it_is_looked_for(name: str) -> None:
    assert LoadedCommands()[name].name == name


def test_a_command_that_there_is_not_is_not_found() -> None:
    assert LoadedCommands().get("nonsense") is None
