"""Find a model by name (entry points of the group `runstate.models`) or by the place it is written in."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from runstate.errors import UnknownModel
from runstate.models.canonical import digest
from runstate.models.model import Model

_group = "runstate.models"


def installed_models() -> list[str]:
    """The names of all models that are installed."""
    return sorted({point.name for point in entry_points(group=_group)})


def find_model(name: str) -> Model[Any, Any, Any]:
    """The model of that name, or at that place: `engine`, `package.module:Order`, `order.py:Order`.

    Raises:
        UnknownModel: nothing is there, or what is there is no model.
    """
    for point in entry_points(group=_group, name=name):
        return _as_model(point.load(), name)
    place, colon, attribute = name.rpartition(":")
    if not colon or not place:
        known = ", ".join(installed_models())
        raise UnknownModel(
            f"There is no model {name!r}. Installed: {known}. One of your own is named by its place: order.py:Order"
        )
    try:
        found = getattr(_module(place), attribute)
    except Exception as error:
        raise UnknownModel(f"The model {name!r} cannot be loaded: {error!r}") from error
    return _as_model(found, name)


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    # Named after its whole path: two files of one name are two modules, and neither hides a module of a library.
    name = f"runstate_model_{digest(str(path).encode())[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Structs look their annotations up in sys.modules, so the module must stand there before it runs.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _as_model(found: Any, name: str) -> Model[Any, Any, Any]:
    if isinstance(found, type) and issubclass(found, Model) and not inspect.isabstract(found):
        found = _made(found)
    if not isinstance(found, Model) or not hasattr(found, "name"):
        raise UnknownModel(f"{name!r} is no model: a subclass of runstate.Model that has a name and can be made")
    return found


@cache
def _made(kind: type[Model[Any, Any, Any]]) -> Model[Any, Any, Any]:
    return kind()
