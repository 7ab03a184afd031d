"""Find a model by name (entry points of the group `runstate.models`) or by the place it is written in."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from runstate.errors import UnknownModel
from runstate.models.model import Model

_group = "runstate.models"


def installed_models() -> list[str]:
    """The names of all models that are installed."""
    return sorted({point.name for point in entry_points(group=_group)})


@cache
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
        return _as_model(getattr(_module(place), attribute), name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise UnknownModel(f"The model {name!r} cannot be loaded: {error}") from error


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Structs look their annotations up in sys.modules, so the module must stand there before it runs.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _as_model(found: Any, name: str) -> Model[Any, Any, Any]:
    model = found() if isinstance(found, type) else found
    if not isinstance(model, Model):
        raise UnknownModel(f"{name!r} is a {type(model).__name__}, not a runstate.Model")
    return model
