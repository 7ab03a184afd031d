"""Fleets for tests, one module for each model: what producers would write, with what goes wrong in real fleets.

A module is named after its model and has `histories(seed, runs)`: for each stream the lines of its producers, in order.
A model that is installed and has none fails the tests that need one.
"""

from collections.abc import Iterable
from importlib import import_module

from tests.fleets import session

from runstate.logs.blob_refs import blob_refs
from runstate.logs.log import EventLog
from runstate.models.registry import installed_models


def histories(model: str, seed: int = 0, runs: int = 12) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = import_module(f"tests.fleets.{model}").histories(seed, runs)
    return found


def put_blobs(log: EventLog, lines: Iterable[bytes]) -> None:
    """Keep the blobs that lines of a history refer to."""
    for ref in {ref for line in lines for ref in blob_refs(line)} & session.contents.keys():
        log.put_blob(session.contents[ref])


def models() -> list[str]:
    return installed_models()
