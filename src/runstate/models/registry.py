"""Find a model by name (entry points of the group `runstate.models`) or by the place it is written in."""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from runstate.errors import UnknownModel
from runstate.models.model import AnyModel, Model
from runstate.models.places import load_place, why

_group = "runstate.models"
_found: dict[tuple[str, str], EntryPoint] = {}


def installed_models() -> list[str]:
    """The names of all models that are installed."""
    return sorted({point.name for point in entry_points(group=_group)})


def entry_point(group: str, name: str) -> EntryPoint | None:
    """What is installed under a name, not loaded yet.

    What was found once is not looked for again: to go through all that is installed takes longer than to open a log.
    What was not found may come yet, with a package that is sent to a worker.
    """
    if (group, name) not in _found:
        for point in entry_points(group=group, name=name):
            _found.setdefault((group, name), point)
    return _found.get((group, name))


def find_model(name: str) -> AnyModel:
    """The model of that name, or at that place: `engine`, `package.module:Order`, `order.py:Order`.

    Raises:
        UnknownModel: nothing is there, or what is there is no model.
    """
    if (point := entry_point(_group, name)) is not None:
        return _as_model(point.load(), name)
    if ":" not in name:
        known = ", ".join(installed_models())
        raise UnknownModel(
            f"There is no model {name!r}. Installed: {known}. One of your own is named by its place: order.py:Order"
        )
    try:
        found = load_place(name)
    except Exception as error:
        raise UnknownModel(f"The model {name!r} cannot be loaded: {why(name, error)}") from error
    return _as_model(found, name)


def _as_model(found: Any, name: str) -> AnyModel:
    if isinstance(found, type) and issubclass(found, Model) and not inspect.isabstract(found):
        found = _made(found)
    if not isinstance(found, Model) or not hasattr(found, "name"):
        raise UnknownModel(f"{name!r} is no model: a subclass of runstate.Model that has a name and can be made")
    return found


@cache
def _made(kind: type[AnyModel]) -> AnyModel:
    return kind()
