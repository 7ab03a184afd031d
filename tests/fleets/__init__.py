"""Fleets for tests, one module for each model: what producers would write, with what goes wrong in real fleets.

A module is named after its model and has `histories(seed, runs)`: for each stream the lines of its producers, in order.
A model that is installed and has none fails the tests that need one.
"""

from importlib import import_module

from runstate.models.registry import installed_models


def histories(model: str, seed: int = 0, runs: int = 12) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = import_module(f"tests.fleets.{model}").histories(seed, runs)
    return found


def models() -> list[str]:
    return installed_models()
