"""Find a model by name (entry points of the group `runstate.models`) or by the place it is written in.

Only a caller may name a place: `find_model`. A name that was read from data goes through `resolve_model`, which loads
installed models and nothing else.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from runstate.errors import ModelMismatch, UnknownModel
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

    `name` must come from the caller, because a place is imported and so runs code. See `resolve_model` for data.

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


def resolve_model(recorded: str, given: str | AnyModel | None, holder: str) -> AnyModel:
    """The model for data that records the name of its model. No code is loaded because data names it.

    Without `given`, the model must be installed under exactly the recorded name. `given` comes from the caller, and its
    name must be the recorded one. Older versions recorded a place (it has a colon): that needs `given`, whose name is
    then not compared. `holder` is the subject of error messages: "The archive DIR".

    Raises:
        UnknownModel: no such model is installed, or `given` is not a model.
        ModelMismatch: the model has another name.
    """
    shown, is_place = repr(recorded[:80]), ":" in recorded
    if given is not None:
        model = find_model(given) if isinstance(given, str) else given
    elif is_place:
        raise UnknownModel(
            f"{holder} names its model by a place, {shown}. Runstate does not load code that data names. "
            "If you trust that code, pass it yourself: --model FILE.py:CLASS",
            recorded=recorded[:80],
        )
    elif (point := entry_point(_group, recorded)) is None:
        raise UnknownModel(
            f"{holder} holds events of the model {shown}, which is not installed. Pass --model FILE.py:CLASS",
            recorded=recorded[:80],
        )
    else:
        model = _as_model(point.load(), recorded)
    if model.name != recorded and not is_place:
        raise ModelMismatch(
            f"{holder} holds events of the model {shown}, not of {model.name!r}. Pass the model that wrote it",
            recorded=recorded[:80],
            given=model.name,
        )
    return model


def _as_model(found: Any, name: str) -> AnyModel:
    if isinstance(found, type) and issubclass(found, Model) and not inspect.isabstract(found):
        found = _made(found)
    if not isinstance(found, Model) or not hasattr(found, "name"):
        raise UnknownModel(f"{name!r} is no model: a subclass of runstate.Model that has a name and can be made")
    return found


@cache
def _made(kind: type[AnyModel]) -> AnyModel:
    return kind()
