"""Sessions: runs that fork, rewind, and move to another machine. Errors are data."""

from runstate.runtimes.session.bundles import Imported
from runstate.runtimes.session.finding import Found, Search, Wanted
from runstate.runtimes.session.keyring import Keyring
from runstate.runtimes.session.lineage import Rehydrated
from runstate.runtimes.session.places import Place
from runstate.runtimes.session.results import Failed, Ok, unwrap
from runstate.runtimes.session.sessions import Sessions, open_sessions
from runstate.runtimes.session.workflow import Step, Workflow, compiled, linear

__all__ = [
    "Failed",
    "Found",
    "Imported",
    "Keyring",
    "Ok",
    "Place",
    "Rehydrated",
    "Search",
    "Sessions",
    "Step",
    "Wanted",
    "Workflow",
    "compiled",
    "linear",
    "open_sessions",
    "unwrap",
]
