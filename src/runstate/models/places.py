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
    """The text is not of the form FILE.py:NAME, or names something else than a Python file or module."""


class LoadingEnded(Exception):
    """The code at a place tried to end the process while it was loaded."""


def load_place(place: str) -> Any:
    """
    Raises:
        NoPlace: it names none.
        Exception: whatever the code at that place raises when it is loaded.
    """
    module, colon, attribute = place.rpartition(":")
    if not colon or not module:
        raise NoPlace(f"{place!r} names no place: write FILE.py:NAME")
    if Path(module).is_dir() and not Path(module, "__init__.py").exists():
        raise NoPlace(f"{module} is a directory: write FILE.py:NAME")
    if "/" in module and not module.endswith(".py"):
        raise NoPlace(f"{module} is not a Python file: write FILE.py:NAME")
    try:
        loaded = _module(module)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise LoadingEnded(f"it ends the process when it is imported ({type(error).__name__}: {error})") from error
    return getattr(loaded, attribute)


def why(place: str, error: BaseException) -> str:
    """Why nothing could be loaded from a place, in words for its author: what went wrong, in which file and line."""
    module, _, attribute = place.rpartition(":")
    if isinstance(error, NoPlace):
        return str(error)
    if isinstance(error, FileNotFoundError | UnicodeEncodeError):
        return f"there is no file {module}"
    if isinstance(error, AttributeError) and error.name == attribute:
        return f"{module} has no {attribute!r}{_what_it_has(error.obj)}"
    if isinstance(error, LoadingEnded):
        advice = "Put code that runs, and does not only define, under: if __name__ == '__main__':"
        return f"{error}{where(error.__cause__ or error)}. {advice}"
    said = f"{type(error).__name__}: {error}{where(error)}"
    if isinstance(error, SyntaxError):
        return f"{said}; fix the file"
    if isinstance(error, ModuleNotFoundError) and error.name and error.name != module.partition(".")[0]:
        return f"{said}; {error.name!r} is not installed in this environment: pip install it, or correct the import"
    return said


def _what_it_has(module: Any) -> str:
    """The public classes and objects that a module defines itself, for somebody who has mistyped one."""
    found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = [name for name, value in found.items() if getattr(value, "__module__", "") == module.__name__]
    # What an application makes of a class from elsewhere, such as its graph, comes first: it is what is asked for.
    made = [name for name, value in found.items() if type(value).__module__.startswith("runstate.")]
    names = [*sorted(made), *sorted(own)]
    return f"; it has: {', '.join(names[:10])}" if names else ""


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
