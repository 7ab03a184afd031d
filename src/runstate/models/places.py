"""Load something by the place it is written in: `package.module:NAME`, or `file.py:NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from runstate.models.canonical import digest

_package = Path(__file__).parents[1]


class NoPlace(ValueError):
    """The text is not of the form FILE.py:NAME."""


def load_place(place: str) -> Any:
    """
    Raises:
        NoPlace: it names none.
        Exception: whatever the code at that place raises when it is loaded.
    """
    module, colon, attribute = place.rpartition(":")
    if not colon or not module:
        raise NoPlace(f"{place!r} names no place: write FILE.py:NAME")
    return getattr(_module(module), attribute)


def why(place: str, error: BaseException) -> str:
    """Why nothing could be loaded from a place, in words for its author: what went wrong, in which file and line."""
    module, _, attribute = place.rpartition(":")
    if isinstance(error, NoPlace):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"there is no file {module}"
    if isinstance(error, AttributeError) and error.name == attribute:
        return f"{module} has no {attribute!r}"
    return f"{type(error).__name__}: {error}{where(error)}"


def where(error: BaseException) -> str:
    """The file and line that an error comes from, in parentheses; nothing where that is none of the author's own."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith("<") and not Path(f.filename).is_relative_to(_package)]
    return f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    # Named after its whole path: two files of one name are two modules, and neither hides a module of a library.
    name = f"runstate_place_{digest(str(path).encode())[:16]}"
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
